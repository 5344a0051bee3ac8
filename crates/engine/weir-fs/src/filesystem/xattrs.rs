//! Extended attributes.
//!
//! Invariant: the names of an inode's attributes are in ascending order, without duplicates.

use async_recursion::async_recursion as boxed;
use weir_base::ObjectId;
use weir_format::files::{FileRecord, Xattr};

use crate::error::FsError;
use crate::filesystem::state::Filesystem;

/// Maximum length of a name (Linux, XATTR_NAME_MAX).
const NAME_BYTES_MAX: usize = 255;

fn check(name: &[u8]) -> Result<(), FsError> {
    match name {
        [] => Err(FsError::Invalid("the name of an extended attribute is empty")),
        name if name.contains(&0) => Err(FsError::Invalid("the name contains NUL")),
        name if name.len() > NAME_BYTES_MAX => Err(FsError::NameTooLong),
        _ => Ok(()),
    }
}

impl Filesystem {
    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// `NoAttribute`, `Stale`.
    #[boxed(?Send)]
    pub async fn xattr(&self, number: ObjectId, name: &[u8]) -> Result<Vec<u8>, FsError> {
        check(name)?;
        let is_named = |xattr: &&Xattr| &*xattr.name == name;
        let find = |inode: &weir_format::files::Inode| {
            inode.area.xattrs.iter().find(is_named).map(|xattr| xattr.value.to_vec())
        };
        self.with_inode(number, find).await?.ok_or(FsError::NoAttribute)
    }

    /// Returns the names of all extended attributes.
    ///
    /// # Errors
    /// `Stale`.
    #[boxed(?Send)]
    pub async fn xattr_names(&self, number: ObjectId) -> Result<Vec<Box<[u8]>>, FsError> {
        let names = |inode: &weir_format::files::Inode| {
            inode.area.xattrs.iter().map(|xattr| xattr.name.clone()).collect()
        };
        self.with_inode(number, names).await
    }

    /// Sets an extended attribute, or removes it if `value` is `None`.
    ///
    /// # Durability
    /// None until a sync of the inode.
    ///
    /// # Errors
    /// `NoAttribute` if there is none to remove; `Full` if the inode has no space for the value.
    #[boxed(?Send)]
    pub async fn set_xattr(
        &self,
        number: ObjectId,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), FsError> {
        check(name)?;
        let record = FileRecord::SetXattr { name, value, object: None };
        self.change_inode(number, |_| record).await.map(drop)
    }
}
