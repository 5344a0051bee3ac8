//! Operations of users that change nothing.
//!
//! Invariant: the check of the rights and the read are under one lock of the inode.

use async_recursion::async_recursion as boxed;
use weir_base::ObjectId;
use weir_format::files::{Acl, FileType, Inode};

use crate::attributes::Attributes;
use crate::directory::Probe;
use crate::draft::xattrs::stored_acl;
use crate::error::FsError;
use crate::file_data::FileData;
use crate::filesystem::state::Filesystem;
use crate::rights::{Access, Credentials};
use crate::user::call::Call;
use crate::user::types::{Allowed, InodeRef, Listed, Looked};

impl Filesystem {
    /// Returns the attributes of an inode. Every user may read them.
    ///
    /// # Errors
    /// `Stale`.
    #[boxed(?Send)]
    pub async fn attributes_of(&self, inode: InodeRef) -> Result<Attributes, FsError> {
        let attributes = match self.try_attributes(inode.number) {
            Some(known) => known?,
            None => self.attributes(inode.number).await?,
        };
        if attributes.generation == inode.generation { Ok(attributes) } else { Err(FsError::Stale) }
    }

    /// Returns the attributes of an inode and the rights of a user on it.
    ///
    /// # Errors
    /// `Stale`.
    #[boxed(?Send)]
    pub async fn allowed(
        &self,
        user: &Credentials<'_>,
        inode: InodeRef,
    ) -> Result<(Attributes, Allowed), FsError> {
        let named = [inode];
        let call = Call::new(user, &named);
        let slot = self.read_lock(inode.number).await?;
        let (_, stored) = slot.used()?;
        call.check(inode.number, stored, Access::default())?;
        let attributes = call.changed(inode.number).before;
        let acl = stored_acl(inode.number, stored.area.access_acl.as_deref())?;
        let may = |access| user.may(&attributes, acl.as_ref(), access);
        let uses = |access| user.may_use_open(&attributes, acl.as_ref(), access);
        let is_directory = attributes.file_type == FileType::Directory;
        let changes = if is_directory { may(Access::CHANGE_ENTRIES) } else { uses(Access::WRITE) };
        let executes = may(Access::EXECUTE);
        let allowed = Allowed {
            reads: uses(Access::READ),
            looks_up: is_directory && executes,
            modifies: changes,
            extends: changes,
            deletes: is_directory && changes,
            executes: !is_directory && executes,
        };
        Ok((attributes, allowed))
    }

    /// Finds the inode with a name in a directory, as [`Self::lookup`].
    ///
    /// # Errors
    /// As [`Self::lookup`]; `AccessDenied` if the user may not search the directory.
    #[boxed(?Send)]
    pub async fn lookup_for(
        &self,
        user: &Credentials<'_>,
        directory: InodeRef,
        name: &[u8],
    ) -> Result<Looked, FsError> {
        let named = [directory];
        let (call, number) = (Call::new(user, &named), directory.number);
        let found = {
            let slot = self.read_lock(number).await?;
            let (_, inode) = slot.used()?;
            call.check_generation(number, inode)?;
            if inode.file_type != FileType::Directory {
                return Err(FsError::NotDirectory);
            }
            call.check(number, inode, Access::EXECUTE)?;
            match name {
                b"." => number,
                b".." => inode.parent,
                name if name.len() > usize::from(u8::MAX) => return Err(FsError::NameTooLong),
                name => match self.entries(number).probe(inode, name).await? {
                    Probe::Found(entry) => entry.inode,
                    Probe::Free(_) => return Err(FsError::NotFound),
                },
            }
        };
        let directory = call.changed(number).before;
        match self.attributes(found).await {
            Ok(found) => Ok(Looked { found, directory }),
            // The inode was removed after the lookup of its name.
            Err(FsError::Stale) if found != number => Err(FsError::NotFound),
            Err(error) => Err(error),
        }
    }

    /// Reads up to `bytes` bytes of a file, as [`Self::read`], and its attributes. The right
    /// to execute the file is enough.
    ///
    /// # Errors
    /// As [`Self::read`]; `AccessDenied`.
    #[boxed(?Send)]
    pub async fn read_for(
        &self,
        user: &Credentials<'_>,
        inode: InodeRef,
        (offset, bytes): (u64, usize),
    ) -> Result<(FileData, Attributes), FsError> {
        let named = [inode];
        let (call, number) = (Call::new(user, &named), inode.number);
        let cached = self.inode(number)?;
        let slot = self.read_lock_of(&cached).await?;
        call.check_data(number, slot.used()?.1, Access::READ)?;
        let read = self.read_locked(number, &slot, (offset, bytes)).await?;
        let stores_atime = !read.is_empty() && self.note_read(&cached, &slot);
        let attributes = cached.attributes(slot.used()?.1);
        drop(slot);
        if stores_atime && let Err(error) = self.store_atime(number).await {
            tracing::debug!(inode = number.0, %error, "cannot store an atime");
        }
        Ok((read, attributes))
    }

    /// Reads the target of a symbolic link, as [`Self::read_link`], and the link's attributes.
    /// A link has no rights of its own.
    ///
    /// # Errors
    /// As [`Self::read_link`].
    #[boxed(?Send)]
    pub async fn read_link_of(&self, inode: InodeRef) -> Result<(Vec<u8>, Attributes), FsError> {
        self.attributes_of(inode).await?;
        let target = self.read_link(inode.number).await?;
        // A generation belongs to a number until the inode ends, so the target is of this inode.
        Ok((target, self.attributes_of(inode).await?))
    }

    /// Lists a directory, as [`Self::list`].
    ///
    /// # Errors
    /// As [`Self::list`]; `AccessDenied` if the user may not read the directory.
    #[boxed(?Send)]
    pub async fn list_for(
        &self,
        user: &Credentials<'_>,
        directory: InodeRef,
        cookie: u64,
    ) -> Result<Listed, FsError> {
        let named = [directory];
        let (call, number) = (Call::new(user, &named), directory.number);
        let cached = self.inode(number)?;
        let slot = self.read_lock_of(&cached).await?;
        let (_, inode) = slot.used()?;
        call.check_generation(number, inode)?;
        if inode.file_type != FileType::Directory {
            return Err(FsError::NotDirectory);
        }
        call.check(number, inode, Access::READ)?;
        let entries = self.entries(number).after(inode, cookie).await?;
        self.note_read(&cached, &slot);
        let directory = cached.attributes(inode);
        Ok(Listed { directory, entries })
    }

    /// Returns the attributes of an inode with its access ACL and default ACL. Every user may read
    /// them, as the permission bits.
    ///
    /// # Errors
    /// `Stale`.
    #[boxed(?Send)]
    pub async fn acls_of(
        &self,
        inode: InodeRef,
    ) -> Result<(Attributes, [Option<Acl>; 2]), FsError> {
        let slot = self.read_lock(inode.number).await?;
        let (_, stored) = slot.used()?;
        if stored.created_txg != inode.generation {
            return Err(FsError::Stale);
        }
        let acl = |bytes| stored_acl(inode.number, bytes);
        let Inode { area, .. } = stored;
        let acls = [acl(area.access_acl.as_deref())?, acl(area.default_acl.as_deref())?];
        Ok((Attributes::of(inode.number, stored), acls))
    }

    /// Returns the directory above a directory, or the directory itself for the root. A server uses
    /// it to find out whether a directory is inside a share.
    ///
    /// # Errors
    /// `NotDirectory`, `Stale`.
    #[boxed(?Send)]
    pub async fn parent_of(&self, directory: InodeRef) -> Result<ObjectId, FsError> {
        let slot = self.read_lock(directory.number).await?;
        let (_, inode) = slot.used()?;
        match inode.file_type {
            _ if inode.created_txg != directory.generation => Err(FsError::Stale),
            FileType::Directory => Ok(inode.parent),
            _ => Err(FsError::NotDirectory),
        }
    }
}
