//! Layout of a filesystem in a dataset: the objects with a fixed number, and limits.
//!
//! weir-format has the settings in the dataset's directory entry (`files::Layout`).
//!
//! Invariant: numbers below [`FIRST`] other than [`ROOT`] belong to no client.

use weir_base::{BLOCK_BYTES, ObjectId};
use weir_format::files::{FileType, Inode, InodeState};

/// Root directory.
pub const ROOT: ObjectId = ObjectId(1);
/// Bitmap of the inode numbers in use.
pub(crate) const BITMAP: ObjectId = ObjectId(2);
/// Directory of the inodes without a name: the name of each entry is the number of its inode.
pub(crate) const ORPHANS: ObjectId = ObjectId(3);
/// Usage and limits of users, groups and projects.
pub(crate) const USAGE: ObjectId = ObjectId(4);
/// Internal inodes and the root directory, with their types.
pub(crate) const FIXED: [(ObjectId, FileType); 4] = [
    (ROOT, FileType::Directory),
    (BITMAP, FileType::Regular),
    (ORPHANS, FileType::Directory),
    (USAGE, FileType::Regular),
];

/// True if an inode with a fixed number has its type and state.
pub(crate) fn is_fixed(inode: &Inode, file_type: FileType) -> bool {
    inode.state == InodeState::Named && inode.file_type == file_type
}

/// First inode number of files that clients create.
pub(crate) const FIRST: ObjectId = ObjectId(16);

/// Number of inodes in one block of the bitmap.
pub(crate) const NUMBERS_PER_BLOCK: u64 = BLOCK_BYTES as u64 * 8;

/// Maximum size of a file in bytes: the offsets of files are signed 64-bit numbers (off_t).
pub(crate) const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Maximum size of a file or target of a symbolic link that is in the inode.
pub(crate) const INLINE_BYTES_MAX: usize = 704;
/// Maximum size of the entries of a directory whose entries are in its inode.
pub(crate) const INLINE_ENTRIES_BYTES_MAX: usize = 700;
/// Maximum number of names of an inode.
pub(crate) const LINKS_MAX: u32 = u32::MAX - 1;

/// Marks a number as used or unused in its block of the bitmap.
pub(crate) fn mark_number(block: &mut [u8; BLOCK_BYTES], number: ObjectId, is_used: bool) {
    let bit = number.0 % NUMBERS_PER_BLOCK;
    let byte = block.get_mut((bit / 8) as usize).expect("a bit of this block");
    let mask = 1 << (bit % 8);
    *byte = if is_used { *byte | mask } else { *byte & !mask };
}
