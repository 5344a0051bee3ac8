//! Attributes of an inode, as clients see them.
//!
//! Invariant: the device number and the verifier share a field of the inode, so an inode has at
//! most one of them.

use weir_base::{ObjectId, Txg};
use weir_format::files::{AttributeChanges, FileType, Inode, TimeStamp};

/// Attributes of an inode, as `struct stat` (POSIX.1-2017, sys/stat.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub number: ObjectId,
    /// Txg of the creation, which distinguishes the inodes that have had this number.
    pub generation: Txg,
    /// Type.
    pub file_type: FileType,
    /// Permission bits, set-id bits and sticky bit.
    pub permissions: u32,
    /// Number of names; for a directory, the number of its subdirectories plus 2.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub project: u32,
    /// Flags: `Inode::INHERITS_PROJECT`.
    pub flags: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated blocks of 4 KiB, before compression.
    pub blocks: u64,
    /// Number of a device file.
    pub device: u64,
    /// Verifier of a file that an exclusive create made, until the first change of attributes.
    pub verifier: Option<u64>,
    /// Number that grows with each change.
    pub change: u64,
    /// Time of the last read.
    pub atime: TimeStamp,
    /// Time of the last change of data.
    pub mtime: TimeStamp,
    /// Time of the last change of data or attributes.
    pub ctime: TimeStamp,
    /// Time of creation.
    pub btime: TimeStamp,
}

impl Attributes {
    pub(crate) fn of(number: ObjectId, inode: &Inode) -> Self {
        let is_device = matches!(inode.file_type, FileType::BlockDevice | FileType::CharDevice);
        Self {
            number,
            generation: inode.created_txg,
            file_type: inode.file_type,
            permissions: inode.permissions,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            project: inode.project,
            flags: inode.flags,
            size: inode.size,
            blocks: inode.blocks,
            device: if is_device { inode.device_or_entries } else { 0 },
            verifier: verifier(inode),
            change: inode.change,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
        }
    }
}

fn verifier(inode: &Inode) -> Option<u64> {
    let has_verifier = inode.flags & Inode::HAS_VERIFIER != 0;
    (has_verifier && inode.file_type == FileType::Regular).then_some(inode.device_or_entries)
}

/// New values of attributes. `None`: the attribute does not change.
pub type SetAttributes = AttributeChanges;
