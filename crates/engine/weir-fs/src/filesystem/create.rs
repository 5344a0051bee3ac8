//! Creates inodes, and adds names to them.
//!
//! Invariant: a directory without a name gets no entries.

use std::sync::atomic::Ordering;

use async_recursion::async_recursion as boxed;
use weir_base::ObjectId;
use weir_format::files::{FileRecord, FileType, Inode, InodeState, Stamp, TARGET_BYTES_MAX};

use crate::attributes::Attributes;
use crate::directory::Probe;
use crate::draft::apply::named;
use crate::draft::entries::check_name;
use crate::draft::node::{Draft, new_inode};
use crate::draft::xattrs::stored_acl;
use crate::error::FsError;
use crate::filesystem::commit::Change;
use crate::filesystem::quotas::check_project;
use crate::filesystem::set_id;
use crate::filesystem::state::Filesystem;
use crate::layout::{INLINE_BYTES_MAX, LINKS_MAX};
use crate::numbers::Numbers;
use crate::rights::Access;
use crate::user::call::Call;

/// Type of a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKind<'a> {
    /// An empty file.
    File,
    /// An empty file with the verifier of an exclusive create (RFC 1813 section 3.3.8).
    Exclusive(u64),
    /// An empty directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A device file, FIFO or socket, with the number of the device.
    Special(FileType, u64),
}

/// A new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode<'a> {
    /// Type.
    pub kind: NewKind<'a>,
    /// Permission bits, set-id bits and sticky bit, before the umask.
    pub permissions: u32,
    /// Permission bits that a new inode does not get, unless the directory has a default ACL.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl<'a> NewInode<'a> {
    /// Target of a symbolic link that is too long for the inode; otherwise empty.
    fn long_target(&self) -> &'a [u8] {
        match self.kind {
            NewKind::Symlink(target) if target.len() > INLINE_BYTES_MAX => target,
            _ => b"",
        }
    }

    fn file_type(&self) -> FileType {
        match self.kind {
            NewKind::File | NewKind::Exclusive(_) => FileType::Regular,
            NewKind::Directory => FileType::Directory,
            NewKind::Symlink(_) => FileType::SymbolicLink,
            NewKind::Special(file_type, _) => file_type,
        }
    }
}

/// Builds the inode of a new entry of a directory. `directory`: the directory with its number.
fn build_inode(
    new: &NewInode<'_>,
    (number, directory): (ObjectId, &Inode),
    stamp: Stamp,
) -> Result<Inode, FsError> {
    let file_type = new.file_type();
    let asked = (new.uid, new.gid, new.permissions & Inode::PERMISSIONS);
    let (gid, permissions) = set_id::of_new(directory, file_type, asked);
    let mut inode = Inode { permissions, uid: new.uid, gid, ..new_inode(file_type, number, stamp) };
    if directory.flags & Inode::INHERITS_PROJECT != 0 {
        let is_directory = file_type == FileType::Directory;
        inode.project = directory.project;
        inode.flags |= if is_directory { Inode::INHERITS_PROJECT } else { 0 };
    }
    inherit_acl(&mut inode, (number, directory), new.umask)?;
    match new.kind {
        NewKind::File => {}
        NewKind::Exclusive(verifier) => {
            inode.flags |= Inode::HAS_VERIFIER;
            inode.device_or_entries = verifier;
        }
        NewKind::Directory => inode.nlink = 2,
        NewKind::Symlink(target) => {
            if target.is_empty() || target.contains(&0) {
                return Err(FsError::Invalid("the target of a symbolic link"));
            }
            if target.len() > TARGET_BYTES_MAX {
                return Err(FsError::NameTooLong);
            }
            inode.size = target.len() as u64;
            inode.area.target = (target.len() <= INLINE_BYTES_MAX).then(|| target.into());
        }
        NewKind::Special(FileType::Regular | FileType::Directory | FileType::SymbolicLink, _) => {
            return Err(FsError::Invalid("not the type of a special file"));
        }
        NewKind::Special(_, device) => inode.device_or_entries = device,
    }
    Ok(inode)
}

/// Sets the ACLs and permission bits that a new inode inherits from its directory, or else applies
/// the umask (acl(5)).
fn inherit_acl(
    inode: &mut Inode,
    (number, directory): (ObjectId, &Inode),
    umask: u32,
) -> Result<(), FsError> {
    if inode.file_type == FileType::SymbolicLink {
        return Ok(());
    }
    let Some(default) = stored_acl(number, directory.area.default_acl.as_deref())? else {
        inode.permissions &= !(umask & 0o777);
        return Ok(());
    };
    let acl = default.inherited(inode.permissions & 0o777);
    inode.permissions = inode.permissions & !0o777 | acl.mode();
    inode.area.access_acl = (!acl.is_minimal()).then(|| acl.encode().into());
    if inode.file_type == FileType::Directory {
        inode.area.default_acl = Some(default.encode().into());
    }
    Ok(())
}

/// Checks that an inode is a directory with a name.
pub(crate) fn check_parent(inode: &Inode) -> Result<(), FsError> {
    match (inode.file_type, inode.state) {
        (FileType::Directory, InodeState::Named) => Ok(()),
        (FileType::Directory, _) => Err(FsError::NotFound),
        _ => Err(FsError::NotDirectory),
    }
}

impl Filesystem {
    /// Creates an inode with a name in a directory.
    ///
    /// # Durability
    /// None until a sync of any inode. After a crash the inode and its name exist, or neither does.
    ///
    /// # Errors
    /// `Exists`, `NotDirectory`, `Stale` for a directory that was removed; the errors of a name.
    #[boxed(?Send)]
    pub async fn create_inode(
        &self,
        directory: ObjectId,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attributes, FsError> {
        self.create_inode_for(&Call::TRUSTED, directory, name, new).await
    }

    /// Does the same as [`Self::create_inode`], with the checks of a call.
    #[boxed(?Send)]
    pub(crate) async fn create_inode_for(
        &self,
        call: &Call<'_>,
        directory: ObjectId,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attributes, FsError> {
        check_name(name)?;
        let mut draft = self.draft();
        let mut parent = self.lock_for(&mut draft, directory).await?;
        let (_, parent_inode) = parent.inode()?;
        call.check_generation(directory, parent_inode)?;
        check_parent(parent_inode)?;
        call.check(directory, parent_inode, Access::CHANGE_ENTRIES)?;
        let Probe::Free(key) = self.find_place(&mut draft, directory, name).await? else {
            return Err(FsError::Exists);
        };
        if new.kind == NewKind::Directory && parent_inode.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        let mut numbers = self.numbers.lock().await;
        let hint = parent.cached.next_number.load(Ordering::Relaxed);
        let number = self.find_number(&mut numbers, hint, &mut draft).await?;
        let inode = build_inode(new, (directory, parent_inode), draft.stamp)?;
        let entry = Some(named(directory, key, name));
        let target = new.long_target();
        let record = FileRecord::Create { entry, inode: Box::new(inode), target };
        draft.apply(number, &record).await?;
        let mut created = self.lock(number).await?;
        let change = Change::namespace(number, &record, vec![number, directory], Vec::new());
        self.commit(&mut draft, change, &mut [&mut parent, &mut created]).await?;
        numbers.note(draft.number_changes(), self.volume.open_txg());
        parent.cached.next_number.store(number.0 + 1, Ordering::Relaxed);
        call.note_changed(directory, parent.inode()?.1);
        Ok(Attributes::of(number, created.inode()?.1))
    }

    /// Creates a file without a name (O_TMPFILE), and opens it as [`Self::open_inode`] does.
    /// [`Self::link`] can give the file a name. The rules of `directory` for new files apply.
    ///
    /// # Durability
    /// None. After a crash the file is gone, unless it has a name.
    ///
    /// # Errors
    /// `Invalid` for another type than a file; `NotDirectory`, `Stale`.
    #[boxed(?Send)]
    pub async fn create_unnamed(
        &self,
        directory: ObjectId,
        new: &NewInode<'_>,
    ) -> Result<Attributes, FsError> {
        if new.kind != NewKind::File {
            return Err(FsError::Invalid("only a file can have no name"));
        }
        let handle = self.inodes.new_handle()?;
        let mut draft = self.draft();
        let parent = self.lock(directory).await?;
        let (_, parent_inode) = parent.inode()?;
        check_parent(parent_inode)?;
        let mut numbers = self.numbers.lock().await;
        let hint = parent.cached.next_number.load(Ordering::Relaxed);
        let number = self.find_number(&mut numbers, hint, &mut draft).await?;
        let named = build_inode(new, (directory, parent_inode), draft.stamp)?;
        let inode = Inode { nlink: 0, state: InodeState::Orphan, ..named };
        let record = FileRecord::Create { entry: None, inode: Box::new(inode), target: b"" };
        draft.apply(number, &record).await?;
        let mut created = self.lock(number).await?;
        let change = Change::namespace(number, &record, vec![number], Vec::new());
        self.commit(&mut draft, change, &mut [&mut created]).await?;
        handle.give_to(&created.cached);
        numbers.note(draft.number_changes(), self.volume.open_txg());
        parent.cached.next_number.store(number.0 + 1, Ordering::Relaxed);
        Ok(Attributes::of(number, created.inode()?.1))
    }

    /// Finds an unused number for the new inode of a draft, and renews the stamp of the draft.
    pub(crate) async fn find_number(
        &self,
        numbers: &mut Numbers,
        hint: u64,
        draft: &mut Draft<'_>,
    ) -> Result<ObjectId, FsError> {
        // The lock of the numbers is held from here to the end of the change. So no number that
        // became unused in the txg of the stamp, which is the generation of the inode, is found.
        let now = self.volume.open_txg();
        draft.stamp = self.stamp();
        numbers.find(hint, now, self.reads()).await
    }

    /// Adds a name to an inode that is not a directory. The inode may be without a name.
    ///
    /// # Durability
    /// None until a sync of any inode.
    ///
    /// # Errors
    /// `Exists`, `NotPermitted` for a directory, `TooManyLinks`; the errors of a name.
    #[boxed(?Send)]
    pub async fn link(
        &self,
        number: ObjectId,
        directory: ObjectId,
        name: &[u8],
    ) -> Result<Attributes, FsError> {
        self.link_for(&Call::TRUSTED, number, directory, name).await
    }

    /// Does the same as [`Self::link`], with the checks of a call.
    #[boxed(?Send)]
    pub(crate) async fn link_for(
        &self,
        call: &Call<'_>,
        number: ObjectId,
        directory: ObjectId,
        name: &[u8],
    ) -> Result<Attributes, FsError> {
        check_name(name)?;
        let mut draft = self.draft();
        let mut parent = self.lock_for(&mut draft, directory).await?;
        call.check_generation(directory, parent.inode()?.1)?;
        check_parent(parent.inode()?.1)?;
        if number == directory {
            return Err(FsError::NotPermitted("a directory has one name"));
        }
        call.check(directory, parent.inode()?.1, Access::CHANGE_ENTRIES)?;
        // An inode that is gone has priority over an existing name, as in the server of Linux: the
        // client then looks the old name up again.
        let mut locked = self.lock_for(&mut draft, number).await?;
        call.check(number, locked.inode()?.1, Access::default())?;
        let Probe::Free(key) = self.find_place(&mut draft, directory, name).await? else {
            return Err(FsError::Exists);
        };
        check_project(parent.inode()?.1, locked.inode()?.1)?;
        let _numbers = self.numbers.lock().await;
        let record = FileRecord::Link { entry: named(directory, key, name) };
        draft.apply(number, &record).await?;
        let change = Change::namespace(number, &record, vec![number, directory], Vec::new());
        self.commit(&mut draft, change, &mut [&mut parent, &mut locked]).await?;
        call.note_changed(directory, parent.inode()?.1);
        Ok(Attributes::of(number, locked.inode()?.1))
    }
}
