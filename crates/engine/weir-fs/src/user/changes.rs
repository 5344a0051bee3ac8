//! Operations of users that change the filesystem.
//!
//! Invariant: the rights are checked, and the attributes of changed inodes noted, under the locks
//! of the change.

use async_recursion::async_recursion as boxed;
use weir_format::files::{FileRecord, FileType, Inode, TimeStamp};

use crate::attributes::{Attributes, SetAttributes};
use crate::draft::data::check_file;
use crate::draft::xattrs::{ACCESS_ACL, DEFAULT_ACL, stored_acl};
use crate::error::FsError;
use crate::filesystem::content::WRITE_BYTES_MAX;
use crate::filesystem::create::{NewInode, NewKind};
use crate::filesystem::names::RenameMode;
use crate::filesystem::set_id::{S_ISGID, with_permissions};
use crate::filesystem::state::Filesystem;
use crate::filesystem::xattrs::XattrMode;
use crate::rights::{Access, Credentials};
use crate::user::call::Call;
use crate::user::types::{BeforeAfter, Created, InodeRef, Removed, Renamed};

impl Filesystem {
    /// Writes to a file, as [`Self::write`].
    ///
    /// # Durability
    /// As [`Self::write`].
    ///
    /// # Errors
    /// As [`Self::write`]; `AccessDenied`.
    #[boxed(?Send)]
    pub async fn write_for(
        &self,
        user: &Credentials<'_>,
        inode: InodeRef,
        (offset, data): (u64, &[u8]),
    ) -> Result<BeforeAfter, FsError> {
        if data.len() > WRITE_BYTES_MAX {
            return Err(FsError::Invalid("one write has at most 1 MiB"));
        }
        let named = [inode];
        let (call, number) = (Call::new(user, &named), inode.number);
        let mut locked = self.lock(number).await?;
        call.check_generation(number, locked.inode()?.1)?;
        check_file(locked.inode()?.1)?;
        call.check_data(number, locked.inode()?.1, Access::WRITE)?;
        if !data.is_empty() {
            self.write_locked(&mut locked, offset, data, user.clears_set_id()).await?;
            call.note_changed(number, locked.inode()?.1);
        }
        Ok(call.changed(number))
    }

    /// Changes attributes, as [`Self::set_attributes`]. `sets_now`: the client asked for the
    /// server's time. `ctime`: the change happens only if the inode has this ctime.
    ///
    /// # Durability
    /// None until a sync.
    ///
    /// # Errors
    /// As [`Self::set_attributes`]; `NotPermitted`, `AccessDenied`; `Changed` if the ctime differs.
    #[boxed(?Send)]
    pub async fn set_attributes_for(
        &self,
        user: &Credentials<'_>,
        inode: InodeRef,
        (changes, sets_now): (&SetAttributes, bool),
        is_expected: &dyn Fn(TimeStamp) -> bool,
    ) -> Result<BeforeAfter, FsError> {
        let named = [inode];
        let (call, number) = (Call::new(user, &named), inode.number);
        let record = |stored: &Inode| {
            let mut allowed = *changes;
            call.check_as(number, stored, |user, attributes| {
                if !is_expected(stored.ctime) {
                    return Err(FsError::Changed);
                }
                let acl = stored_acl(number, stored.area.access_acl.as_deref())?;
                allowed = user.may_set(attributes, acl.as_ref(), (changes, sets_now))?;
                Ok(())
            })?;
            let clears = user.clears_set_id();
            Ok(FileRecord::SetAttributes(with_permissions(stored, &allowed, clears)))
        };
        self.change_inode_for(&call, number, record).await?;
        Ok(call.changed(number))
    }

    /// Creates a file with a verifier, or finds the file that an earlier call with the same
    /// verifier created: a client repeats the call if it missed the reply (RFC 1813 section
    /// 3.3.8). The permissions are 0o600 until the client sets the attributes. The result has the
    /// attributes of the directory only if the call created the file.
    ///
    /// # Durability
    /// As [`Self::create_inode`].
    ///
    /// # Errors
    /// As [`Self::create_for`]; `Exists` if another call created the file with the name.
    #[boxed(?Send)]
    pub async fn create_exclusive(
        &self,
        user: &Credentials<'_>,
        directory: InodeRef,
        (name, verifier): (&[u8], u64),
    ) -> Result<(Attributes, Option<BeforeAfter>), FsError> {
        let new = NewInode {
            kind: NewKind::Exclusive(verifier),
            permissions: 0o600,
            umask: 0,
            uid: user.uid,
            gid: user.gid,
        };
        match self.create_for(user, directory, (name, &new)).await {
            Ok(created) => Ok((created.inode, Some(created.directory))),
            Err(FsError::Exists) => {
                let found = match self.lookup_for(user, directory, name).await {
                    // The file was removed after it was in the way.
                    Err(FsError::NotFound) => return Err(FsError::Exists),
                    looked => looked?.found,
                };
                let is_repeated = found.verifier == Some(verifier);
                if is_repeated { Ok((found, None)) } else { Err(FsError::Exists) }
            }
            Err(error) => Err(error),
        }
    }

    /// Creates an inode, as [`Self::create_inode`]. Only the superuser creates device files.
    ///
    /// # Durability
    /// As [`Self::create_inode`].
    ///
    /// # Errors
    /// As [`Self::create_inode`]; `AccessDenied`, `NotPermitted`.
    #[boxed(?Send)]
    pub async fn create_for(
        &self,
        user: &Credentials<'_>,
        directory: InodeRef,
        (name, new): (&[u8], &NewInode<'_>),
    ) -> Result<Created, FsError> {
        let devices = [FileType::BlockDevice, FileType::CharDevice];
        if let NewKind::Special(kind, _) = new.kind
            && devices.contains(&kind)
            && !user.is_privileged
        {
            return Err(FsError::NotPermitted("only the superuser creates device files"));
        }
        let named = [directory];
        let call = Call::new(user, &named);
        let inode = self.create_inode_for(&call, directory.number, name, new).await?;
        Ok(Created { inode, directory: call.changed(directory.number) })
    }

    /// Adds a name to an inode, as [`Self::link`].
    ///
    /// # Durability
    /// As [`Self::link`].
    ///
    /// # Errors
    /// As [`Self::link`]; `AccessDenied`.
    #[boxed(?Send)]
    pub async fn link_by(
        &self,
        user: &Credentials<'_>,
        inode: InodeRef,
        (directory, name): (InodeRef, &[u8]),
    ) -> Result<Created, FsError> {
        let named = [inode, directory];
        let call = Call::new(user, &named);
        let inode = self.link_for(&call, inode.number, directory.number, name).await?;
        Ok(Created { inode, directory: call.changed(directory.number) })
    }

    /// Removes a name, as [`Self::remove`].
    ///
    /// # Durability
    /// As [`Self::remove`].
    ///
    /// # Errors
    /// As [`Self::remove`]; `AccessDenied`, `NotPermitted`.
    #[boxed(?Send)]
    pub async fn remove_by(
        &self,
        user: &Credentials<'_>,
        (directory, name): (InodeRef, &[u8]),
        is_directory: bool,
    ) -> Result<Removed, FsError> {
        let named = [directory];
        let call = Call::new(user, &named);
        let inode = self.remove_for(&call, directory.number, name, is_directory).await?;
        Ok(Removed { inode, directory: call.changed(directory.number) })
    }

    /// Renames an inode, as [`Self::rename`] with [`RenameMode::Replace`].
    ///
    /// # Durability
    /// As [`Self::rename`].
    ///
    /// # Errors
    /// As [`Self::rename`]; `AccessDenied`, `NotPermitted`.
    #[boxed(?Send)]
    pub async fn rename_by(
        &self,
        user: &Credentials<'_>,
        (from, old_name): (InodeRef, &[u8]),
        (to, new_name): (InodeRef, &[u8]),
    ) -> Result<Renamed, FsError> {
        let named = [from, to];
        let call = Call::new(user, &named);
        let (old, new) = ((from.number, old_name), (to.number, new_name));
        let inodes = self.rename_for(&call, old, new, RenameMode::Replace).await?;
        Ok(Renamed { inodes, from: call.changed(from.number), to: call.changed(to.number) })
    }

    /// Sets or removes the access ACL or the default ACL of an inode, in the layout of Linux
    /// ([`Self::set_xattr`]). A new access ACL by a user outside of the group clears the
    /// set-group-id bit.
    ///
    /// # Durability
    /// None until a sync.
    ///
    /// # Errors
    /// As [`Self::set_xattr`]; `NotPermitted` unless the user owns the inode.
    #[boxed(?Send)]
    pub async fn set_acl_for(
        &self,
        user: &Credentials<'_>,
        inode: InodeRef,
        (is_default, acl): (bool, Option<&[u8]>),
    ) -> Result<Attributes, FsError> {
        let found = self.attributes_of(inode).await?;
        let is_member = user.is_privileged || user.is_in(found.gid);
        if !is_default && !is_member && found.permissions & S_ISGID != 0 {
            // Before the ACL, so that no crash leaves the new ACL with the bit.
            let permissions = Some(found.permissions & !S_ISGID);
            let changes = SetAttributes { permissions, ..SetAttributes::default() };
            self.set_attributes_for(user, inode, (&changes, false), &|_| true).await?;
        }
        let named = [inode];
        let call = Call::new(user, &named);
        let name = if is_default { DEFAULT_ACL } else { ACCESS_ACL };
        self.set_xattr_for(&call, inode.number, (name, acl), XattrMode::Any).await?;
        Ok(call.changed(inode.number).after)
    }
}
