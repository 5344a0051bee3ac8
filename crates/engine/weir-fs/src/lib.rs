//! Filesystems: directories and files on the objects of a dataset.
//!
//! The engine (weir-dataset) stores the objects, and weir-format has the structures in them. The
//! protocols and the mount are in other crates.
//!
//! Invariants:
//! - every structure that was read from disk is checked before it is used;
//! - each operation changes the dataset in one txg, with one log record. A replay of the record
//!   makes the same changes.

#![deny(clippy::indexing_slicing)]

mod attributes;
mod changed;
mod check;
mod error;
mod file_data;
mod layout;

pub mod directory;
mod draft;
mod filesystem;
mod inodes;
mod numbers;
mod readable;
mod policy;
mod replay;
mod rights;
mod snapshots;
mod user;

pub use attributes::{Attributes, SetAttributes};
pub use changed::{Changed, ChangedInode};
pub use check::Finding;
pub use draft::xattrs::ACCESS_ACL;
pub use error::FsError;
pub use file_data::{FileData, FilePart};
pub use filesystem::create::{NewInode, NewKind};
pub use filesystem::list::ListedEntry;
pub use filesystem::names::RenameMode;
pub use filesystem::set_id::{S_ISGID, S_ISUID};
pub use filesystem::state::{Filesystem, Now};
pub use filesystem::statistics::Statistics;
pub use filesystem::xattrs::XattrMode;
pub use layout::ROOT;
pub use policy::FreeingLimits;
pub use readable::{ReadableData, ReadableEntries, ReadableInodes};
pub use replay::FilesystemLayer;
pub use rights::{Access, Credentials};
pub use snapshots::{
    SNAPSHOTS_NAME, SnapshotEntry, SnapshotTotals, Snapshots, VirtualDirectory, WEIR_NAME,
};
pub use user::{Allowed, BeforeAfter, Created, InodeRef, Listed, Looked, Removed, Renamed};
pub use weir_format::files::{Layout, NameCase};
