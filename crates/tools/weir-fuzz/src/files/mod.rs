//! Fuzz targets for the structures of a filesystem.
//!
//! The structures are in weir-format, the operations in weir-fs.
//!
//! Invariant: as for the other targets, a module for each target.

pub mod acl;
pub mod directory;
pub mod file_record;
pub mod inode;
pub mod xattr_list;
