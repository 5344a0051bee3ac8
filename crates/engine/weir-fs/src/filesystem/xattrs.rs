//! Extended attributes and ACLs.
//!
//! Invariant: the names of an inode's attributes are in ascending order, without duplicates.

use async_recursion::async_recursion as boxed;
use weir_base::ObjectId;
use weir_format::files::{Acl, Area, FileRecord, FileType, Inode, XATTR_VALUE_BYTES_MAX, Xattr};

use crate::draft::xattrs::{ACCESS_ACL, DEFAULT_ACL, read_list, stored_acl};
use crate::error::FsError;
use crate::filesystem::commit::Change;
use crate::filesystem::state::Filesystem;
use crate::rights::Credentials;
use crate::user::call::Call;

/// Maximum length of a name (Linux, `XATTR_NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;
/// Prefixes of the names of attributes. ACLs have names outside these namespaces.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// Action of [`Filesystem::set_xattr_as`] if the inode has, or lacks, an attribute with the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Creates or replaces the attribute.
    Any,
    /// Fails with `AttributeExists` if the attribute exists (`XATTR_CREATE`).
    Create,
    /// Fails with `NoAttribute` if the attribute does not exist (`XATTR_REPLACE`).
    Replace,
}

fn check_name(name: &[u8]) -> Result<(), FsError> {
    let is_whole = |prefix: &&[u8]| name.starts_with(prefix) && name.len() > prefix.len();
    match name {
        [] => Err(FsError::Invalid("the name of an extended attribute is empty")),
        name if name.contains(&0) => Err(FsError::Invalid("the name contains NUL")),
        name if name.len() > NAME_BYTES_MAX => Err(FsError::NameTooLong),
        ACCESS_ACL | DEFAULT_ACL => Ok(()),
        name if NAMESPACES.contains(&name) => Err(FsError::Invalid("the name is only a prefix")),
        _ if NAMESPACES.iter().any(is_whole) => Ok(()),
        _ => Err(FsError::NotSupported("extended attributes of this namespace")),
    }
}

/// Checks that an inode may have an attribute with this name.
fn check_inode(inode: &Inode, name: &[u8]) -> Result<(), FsError> {
    let is_user = name.starts_with(b"user.");
    match inode.file_type {
        FileType::Regular | FileType::Directory => Ok(()),
        _ if is_user => {
            Err(FsError::NotPermitted("only files and directories have user attributes"))
        }
        _ => Ok(()),
    }
}

impl Filesystem {
    /// Returns the value of an extended attribute, or an ACL in the layout of Linux.
    ///
    /// # Errors
    /// `NoAttribute`, `Stale`; `NotSupported` for a name outside the namespaces `user`, `trusted`
    /// and `security` that is not the name of an ACL.
    #[boxed(?Send)]
    pub async fn xattr(&self, number: ObjectId, name: &[u8]) -> Result<Vec<u8>, FsError> {
        check_name(name)?;
        let slot = self.read_lock(number).await?;
        self.find_xattr(number, slot.used()?.1, name).await?.ok_or(FsError::NoAttribute)
    }

    async fn find_xattr(
        &self,
        number: ObjectId,
        inode: &Inode,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, FsError> {
        let Area { access_acl, default_acl, xattrs, .. } = &inode.area;
        let acl = match name {
            ACCESS_ACL => Some(access_acl),
            DEFAULT_ACL => Some(default_acl),
            _ => None,
        };
        if let Some(acl) = acl {
            return Ok(acl.as_ref().map(|acl| acl.to_vec()));
        }
        if let Some(xattr) = xattrs.iter().find(|xattr| &*xattr.name == name) {
            return Ok(Some(xattr.value.to_vec()));
        }
        let list = read_list(self.reads(), number, inode.attributes).await?;
        Ok(list.get(name).map(<[u8]>::to_vec))
    }

    /// Returns the names of all extended attributes and ACLs.
    ///
    /// # Errors
    /// `Stale`.
    #[boxed(?Send)]
    pub async fn xattr_names(&self, number: ObjectId) -> Result<Vec<Box<[u8]>>, FsError> {
        let slot = self.read_lock(number).await?;
        let (_, inode) = slot.used()?;
        let list = read_list(self.reads(), number, inode.attributes).await?;
        let Area { access_acl, default_acl, xattrs, .. } = &inode.area;
        let acls = [(access_acl, ACCESS_ACL), (default_acl, DEFAULT_ACL)];
        let acls = acls.into_iter().filter_map(|(acl, name)| acl.as_ref().map(|_| name.into()));
        let named = |xattr: &Xattr| xattr.name.clone();
        let large = list.as_slice().iter().map(named);
        let mut names: Vec<Box<[u8]>> = xattrs.iter().map(named).chain(large).chain(acls).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Sets an extended attribute, or removes it if `value` is `None`. An ACL has the layout of
    /// Linux; an access ACL also sets the permission bits.
    ///
    /// # Durability
    /// None until a sync of the inode.
    ///
    /// # Errors
    /// `NoAttribute` if there is none to remove; `AttributeTooLarge` for more than 64 KiB; `Full`
    /// if the inode has too many attributes; `Invalid` for an ACL that lacks an entry;
    /// `AccessDenied` for a default ACL of a file; `NotPermitted` for a user attribute of a special
    /// file; `NotSupported` as for [`Self::xattr`].
    #[boxed(?Send)]
    pub async fn set_xattr(
        &self,
        number: ObjectId,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), FsError> {
        self.set_xattr_as(number, name, value, XattrMode::Any).await
    }

    /// As [`Self::set_xattr`], with a condition.
    ///
    /// # Errors
    /// As [`Self::set_xattr`], and the errors of [`XattrMode`].
    #[boxed(?Send)]
    pub async fn set_xattr_as(
        &self,
        number: ObjectId,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<(), FsError> {
        self.set_xattr_for(&Call::TRUSTED, number, (name, value), mode).await
    }

    /// Does the same as [`Self::set_xattr_as`], for the owner or the superuser only if the call has
    /// checks.
    #[boxed(?Send)]
    pub(crate) async fn set_xattr_for(
        &self,
        call: &Call<'_>,
        number: ObjectId,
        (name, value): (&[u8], Option<&[u8]>),
        mode: XattrMode,
    ) -> Result<(), FsError> {
        check_name(name)?;
        if value.is_some_and(|value| value.len() > XATTR_VALUE_BYTES_MAX) {
            return Err(FsError::AttributeTooLarge);
        }
        let mut draft = self.draft();
        let mut locked = self.lock_for(&mut draft, number).await?;
        let (_, inode) = locked.inode()?;
        call.check_as(number, inode, Credentials::may_set_acl)?;
        check_inode(inode, name)?;
        if mode != XattrMode::Any {
            let exists = self.find_xattr(number, inode, name).await?.is_some();
            match (mode, exists) {
                (XattrMode::Create, true) => return Err(FsError::AttributeExists),
                (XattrMode::Replace, false) => return Err(FsError::NoAttribute),
                _ => {}
            }
        }
        // Space that the attribute needs in the area: the head of the item, the name and the value.
        let needed = 4 + name.len() + value.map_or(0, <[u8]>::len);
        let may_need_object = value.is_some() && inode.attributes.0 == 0;
        let may_need_object = may_need_object && inode.area.encoded_bytes() + needed > Area::BYTES;
        let mut numbers = self.numbers.lock().await;
        let object = if may_need_object {
            Some(self.find_number(&mut numbers, number.0, &mut draft).await?)
        } else {
            None
        };
        let record = FileRecord::SetXattr { name, value, object };
        draft.apply(number, &record).await?;
        self.commit(&mut draft, Change::inode(number, &record), &mut [&mut locked]).await?;
        call.note_changed(number, locked.inode()?.1);
        numbers.note(draft.number_changes(), self.volume.open_txg());
        Ok(())
    }

    /// True if the inode has an object of its own for attributes that do not fit into the inode.
    ///
    /// # Errors
    /// `Stale`.
    #[boxed(?Send)]
    pub async fn has_large_xattrs(&self, number: ObjectId) -> Result<bool, FsError> {
        self.with_inode(number, |inode| inode.attributes.0 > 0).await
    }

    /// Returns the access ACL of an inode; `None` if the permission bits are its only rights.
    ///
    /// # Errors
    /// `Stale`.
    #[boxed(?Send)]
    pub async fn access_acl(&self, number: ObjectId) -> Result<Option<Acl>, FsError> {
        let slot = self.read_lock(number).await?;
        stored_acl(number, slot.used()?.1.area.access_acl.as_deref())
    }
}
