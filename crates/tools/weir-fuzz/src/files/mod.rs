//! Fuzz targets for the structures of a filesystem.
//!
//! The structures are in weir-format, the operations in weir-fs.
//!
//! Invariant: each target has one module, as for the targets outside this folder.

pub mod acl;
pub mod directory;
pub mod file_record;
pub mod inode;
pub mod xattr_list;
