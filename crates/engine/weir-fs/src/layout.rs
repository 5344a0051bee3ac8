//! Layout of a filesystem in a dataset: the bytes in the dataset's directory entry, and the objects
//! with a fixed number.
//!
//! Invariant: a program opens a filesystem only if it knows the version of the layout.

use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_format::ObjectTable;
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

/// Version of the layout of the bytes in the dataset's directory entry.
const VERSION: u8 = 2;

/// Settings of a filesystem that are fixed at its creation and stored in the directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Secret key of the hash of names.
    pub hash_key: u128,
    /// Maximum record size of files.
    pub record_size: RecordSize,
}

impl Layout {
    /// Encodes the settings: version (u8), record size (u8, log2 of blocks), 6 zeros, key (u128),
    /// 16 zeros.
    pub fn encode(&self) -> [u8; ObjectTable::LAYER_BYTES] {
        let mut bytes = [0; ObjectTable::LAYER_BYTES];
        let head = [VERSION, self.record_size.shift()];
        let fields = head.into_iter().chain([0; 6]).chain(self.hash_key.to_le_bytes());
        bytes.iter_mut().zip(fields).for_each(|(byte, value)| *byte = value);
        bytes
    }

    /// Decodes the settings; `None` if the dataset has another layout.
    pub fn decode(bytes: &[u8; ObjectTable::LAYER_BYTES]) -> Option<Self> {
        let [VERSION, shift, 0, 0, 0, 0, 0, 0, rest @ ..] = bytes else { return None };
        let (key, zeros) = rest.split_first_chunk()?;
        if zeros.iter().any(|byte| *byte != 0) {
            return None;
        }
        let record_size = RecordSize::from_shift(*shift)?;
        Some(Self { hash_key: u128::from_le_bytes(*key), record_size })
    }
}
