//! Structures of a filesystem: inodes, blocks of directories, and log records.
//!
//! The trees of blocks and the slots that hold the inodes are structures of the pool. weir-fs has
//! the operations.
//!
//! Invariant: no structure here has a pointer to a block of the pool.

mod acl;
mod directory;
mod inode;
mod layout;
mod log;
mod usage;
mod xattrs;

pub use acl::{Acl, AclEntry, AclTag};
pub use directory::{
    DirectoryBlock, DirectoryContent, DirectoryEntry, DirectoryHead, DirectoryNode,
    DirectoryNodeEntry, EntryKey, EntryList, FileType, NAME_BYTES_MAX,
};
pub use inode::{Area, Inode, InodeState, TimeStamp, Xattr};
pub use layout::{Layout, NameCase, UNICODE_VERSION};
pub use log::{
    AttributeChanges, Fate, FileRecord, NamedEntry, Stamp, TARGET_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
pub use usage::{Limits, OwnerId, OwnerKind, Usage, UsageBlock};
pub use xattrs::XattrList;
