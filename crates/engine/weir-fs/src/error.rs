//! Errors of operations on a filesystem.
//!
//! Invariant: an operation that returns an error has changed nothing.

use weir_base::ObjectId;
use weir_dataset::DatasetError;
use weir_format::FormatError;
use weir_format::files::OwnerKind;

use crate::directory::DirectoryError;

/// Reason why an operation on a filesystem failed. The operation changed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// No entry has the name (ENOENT).
    #[error("no such file or directory")]
    NotFound,
    /// An entry has the name (EEXIST).
    #[error("the file exists")]
    Exists,
    /// The inode is not a directory (ENOTDIR).
    #[error("not a directory")]
    NotDirectory,
    /// The inode is a directory (EISDIR).
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries (ENOTEMPTY).
    #[error("the directory is not empty")]
    NotEmpty,
    /// The name is not UTF-8, and the filesystem is case-insensitive (EILSEQ).
    #[error("the file name is not UTF-8, and the filesystem is case-insensitive")]
    NotUnicode,
    /// The name is longer than 255 bytes (ENAMETOOLONG).
    #[error("the file name is too long")]
    NameTooLong,
    /// The inode has too many names, or the directory too many subdirectories (EMLINK).
    #[error("too many links")]
    TooManyLinks,
    /// An argument has a value that the operation does not accept (EINVAL).
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The file would become larger than the maximum (EFBIG).
    #[error("the file would be too large")]
    TooLarge,
    /// The operation is not allowed on this inode (EPERM).
    #[error("the operation is not permitted: {0}")]
    NotPermitted(&'static str),
    /// The inode does not exist any more (ESTALE).
    #[error("the file was removed")]
    Stale,
    /// The inode changed since the client read its attributes (NFS3ERR_NOT_SYNC).
    #[error("the file changed since the client read its attributes")]
    Changed,
    /// No extended attribute has the name (ENODATA).
    #[error("no such extended attribute")]
    NoAttribute,
    /// An extended attribute with the name exists (EEXIST), and the caller wanted a new one.
    #[error("the extended attribute exists")]
    AttributeExists,
    /// The value of an extended attribute has more than 64 KiB (E2BIG).
    #[error("the value of the extended attribute is too large")]
    AttributeTooLarge,
    /// The permissions of the inode do not allow the operation (EACCES).
    #[error("permission denied: {0}")]
    AccessDenied(&'static str),
    /// The filesystem does not have this function for the inode (EOPNOTSUPP).
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// A user, group or project would have more blocks or inodes than its limit (EDQUOT).
    #[error("the quota of the {} is used up", owner_name(*.0))]
    Quota(OwnerKind),
    /// New entries of the directory must belong to the directory's project (EXDEV).
    #[error("the directory belongs to another project")]
    OtherProject,
    /// The name belongs to the directory of snapshots, which nothing changes (EROFS).
    #[error("the name .weir in the root belongs to the directory of snapshots")]
    Reserved,
    /// Clients have the maximum number of files open (ENFILE).
    #[error("too many files are open")]
    TooManyOpens,
    /// The inode has no space for the entry or attribute (ENOSPC).
    #[error("no space left: {0}")]
    Full(&'static str),
    /// A structure of the filesystem is damaged (EIO).
    #[error("inode {inode} is damaged: {what}")]
    Damaged {
        /// Number of the inode.
        inode: u64,
        /// Description of the damage.
        what: String,
    },
    /// The engine failed to read or change the dataset.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
}

fn owner_name(kind: OwnerKind) -> &'static str {
    match kind {
        OwnerKind::User => "user",
        OwnerKind::Group => "group",
        OwnerKind::Project => "project",
    }
}

impl FsError {
    pub(crate) fn damaged(inode: ObjectId, what: impl Into<String>) -> Self {
        Self::Damaged { inode: inode.0, what: what.into() }
    }

    pub(crate) fn of_directory(directory: ObjectId, error: DirectoryError) -> Self {
        match error {
            DirectoryError::Exists => Self::Exists,
            DirectoryError::Full => Self::Full("the directory has no space for this name"),
            other => Self::damaged(directory, other.to_string()),
        }
    }

    pub(crate) fn of_inode(inode: ObjectId, error: &FormatError) -> Self {
        Self::damaged(inode, error.to_string())
    }
}
