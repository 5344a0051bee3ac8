//! Blocks of a directory: a B+tree of entries, keyed by a hash of the name.
//!
//! The blocks are records of the directory's object, and a node names its children by their numbers
//! in that object. Block 0 is the root. A small directory has no blocks: its [`EntryList`] is in
//! the inode.
//!
//! Invariants:
//! - the keys of a leaf or node are in ascending order, and each is unique;
//! - the key of an entry never changes, so a client that lists the directory uses the key as its
//!   cookie.

use std::ops::Range;

use weir_base::{BLOCK_BYTES, ObjectId};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;

const LIST: &str = "directory entry";
const BLOCK: &str = "directory block";
/// Maximum length of a name in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Number of bits of an inode number.
const INODE_BITS: u32 = 46;

/// Type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    /// Named pipe.
    Fifo,
    /// Character device.
    CharDevice,
    /// Directory.
    Directory,
    /// Block device.
    BlockDevice,
    /// Regular file.
    Regular,
    /// Symbolic link.
    SymbolicLink,
    /// Socket.
    Socket,
}

impl FileType {
    /// All types.
    pub const ALL: [Self; 7] = [
        Self::Fifo,
        Self::CharDevice,
        Self::Directory,
        Self::BlockDevice,
        Self::Regular,
        Self::SymbolicLink,
        Self::Socket,
    ];

    /// Bits 12 to 15 of `st_mode`, as Linux numbers the types.
    pub const fn mode(self) -> u32 {
        match self {
            Self::Fifo => 1,
            Self::CharDevice => 2,
            Self::Directory => 4,
            Self::BlockDevice => 6,
            Self::Regular => 8,
            Self::SymbolicLink => 10,
            Self::Socket => 12,
        }
    }

    /// Inverse of [`Self::mode`]; `None` for other numbers.
    pub fn of_mode(mode: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|of| of.mode() == mode)
    }
}

/// Key of a directory entry: 55 bits of a hash of the name, and 7 bits that distinguish names with
/// equal hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryKey(u64);

impl EntryKey {
    /// First possible key. Clients use smaller cookies for `.`, `..` and the start of the list.
    pub const MIN: Self = Self(16);
    /// Last possible key, which is positive as a signed number of 64 bits (telldir(3)).
    pub const MAX: Self = Self((1 << 62) - 1);
    /// Number of names with the same hash that a directory can have.
    pub const SAME_HASH_MAX: u64 = 1 << 7;

    /// Key of this number; `None` if the number is no key.
    pub fn new(number: u64) -> Option<Self> {
        (Self::MIN.0..=Self::MAX.0).contains(&number).then_some(Self(number))
    }

    /// The number, which is the cookie of the entry.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// First key of the names with a hash. The key contains the low 55 bits of the hash.
    pub const fn of_hash(hash: u64) -> Self {
        let bits = hash & ((1 << 55) - 1);
        // The keys of hash 0 would be below `MIN`.
        let bits = if bits == 0 { 1 } else { bits };
        Self(bits * Self::SAME_HASH_MAX)
    }

    /// True if two keys have the same hash.
    pub const fn has_hash_of(self, other: Self) -> bool {
        self.0 / Self::SAME_HASH_MAX == other.0 / Self::SAME_HASH_MAX
    }

    /// Next key with the same hash; `None` after the last.
    pub fn next_of_hash(self) -> Option<Self> {
        let next = Self(self.0 + 1);
        next.has_hash_of(self).then_some(next)
    }
}

/// One name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// Key of the entry.
    pub key: EntryKey,
    /// Inode that the entry names.
    pub inode: ObjectId,
    /// Type of this inode.
    pub file_type: FileType,
    /// Name: 1 to 255 bytes without `/` and NUL; not `.` and `..`.
    pub name: &'a [u8],
}

impl DirectoryEntry<'_> {
    /// Encoded size without the name.
    pub const HEAD_BYTES: usize = 16;

    /// Fields, for the format documentation.
    pub const FIELDS: &'static [Field] = &[
        field(8, "key", "hash of the name (bits 7 to 61), number among equal hashes (bits 0 to 6)"),
        field(6, "inode", "inode number, below 2^46"),
        field(1, "type", "bits 12 to 15 of st_mode"),
        field(1, "name_bytes", "length of the name, 1 to 255"),
        field(0, "name", "bytes of the name, without / and NUL; not . and .."),
    ];

    /// Returns true if a directory can have an entry with this name.
    pub fn is_name(name: &[u8]) -> bool {
        let has_length = (1..=NAME_BYTES_MAX).contains(&name.len());
        has_length
            && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
            && ![&b"."[..], b".."].contains(&name)
    }

    /// Encoded size of an entry.
    pub fn encoded_bytes(&self) -> usize {
        Self::HEAD_BYTES + self.name.len()
    }

    /// Encodes the entry.
    ///
    /// # Panics
    /// The name or the inode number is invalid.
    pub fn encode(&self) -> Vec<u8> {
        assert!(Self::is_name(self.name), "an entry has a valid name");
        let mut w = Writer::with_capacity(self.encoded_bytes());
        w.u64(self.key.0);
        assert!(self.inode.0 >> INODE_BITS == 0, "an inode number has 46 bits");
        w.u48(self.inode.0);
        w.u8(self.file_type.mode() as u8);
        w.u8(self.name.len() as u8);
        w.bytes(self.name);
        w.0
    }
}

impl<'a> DirectoryEntry<'a> {
    fn read(r: &mut Reader<'a>) -> Result<Self, FormatError> {
        let key = r.u64()?;
        let key = EntryKey::new(key).ok_or_else(|| r.bad("key", key))?;
        let inode = r.u48()?;
        if inode == 0 || inode >> INODE_BITS > 0 {
            return Err(r.bad("inode", inode));
        }
        let code = r.u8()?;
        let file_type = FileType::of_mode(u32::from(code)).ok_or_else(|| r.bad("type", code))?;
        let len = r.u8()?;
        let name = r.take(usize::from(len))?;
        if !Self::is_name(name) {
            return Err(r.bad("name", len));
        }
        Ok(Self { key, inode: ObjectId(inode), file_type, name })
    }
}

/// Entries of a leaf or of a small directory: the encoded entries, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryList<'a> {
    bytes: &'a [u8],
    /// Offset of each entry. Each lookup parses a whole leaf, so the offsets are small: the
    /// allocator returns 500 bytes much faster than the 4 KiB of keys and wide offsets.
    offsets: Vec<u16>,
}

impl<'a> EntryList<'a> {
    /// Parses encoded entries.
    ///
    /// # Errors
    /// A field has an invalid value, or the keys are not in ascending order. The entries have 64
    /// KiB or more.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let mut r = Reader::new(LIST, bytes);
        // One allocation has space for the shortest names.
        let entries_max = bytes.len() / (DirectoryEntry::HEAD_BYTES + 1);
        let mut offsets: Vec<u16> = Vec::with_capacity(entries_max);
        let mut last = None;
        while r.left() > 0 {
            let offset = bytes.len() - r.left();
            let DirectoryEntry { key, .. } = DirectoryEntry::read(&mut r)?;
            if last.is_some_and(|last| last >= key) {
                return Err(r.bad("key", key.0));
            }
            last = Some(key);
            offsets.push(u16::try_from(offset).map_err(|_| r.bad("length", offset as u64))?);
        }
        Ok(Self { bytes, offsets })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// The encoded entries.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Offset in [`Self::bytes`] of the entry with this index; the length of the bytes if no entry
    /// has the index.
    fn offset(&self, index: usize) -> usize {
        self.offsets.get(index).map_or(self.bytes.len(), |offset| usize::from(*offset))
    }

    /// Key of the entry at an offset from `offsets`.
    fn key_at(&self, offset: u16) -> EntryKey {
        let entry = self.bytes.get(usize::from(offset)..).unwrap_or_default();
        let key = entry.first_chunk().expect("the list was valid when it was parsed");
        EntryKey(u64::from_le_bytes(*key))
    }

    /// Entry with this index, in ascending order of the keys.
    pub fn get(&self, index: usize) -> Option<DirectoryEntry<'a>> {
        let offset = usize::from(*self.offsets.get(index)?);
        let mut r = Reader::new(LIST, self.bytes.get(offset..)?);
        Some(DirectoryEntry::read(&mut r).expect("the entry was valid when the list was parsed"))
    }

    /// Index of the first entry whose key is at least `key`.
    pub fn index_of(&self, key: EntryKey) -> usize {
        self.offsets.partition_point(|offset| self.key_at(*offset) < key)
    }

    /// Entries from an index on.
    pub fn from(&self, index: usize) -> impl Iterator<Item = DirectoryEntry<'a>> + '_ {
        (index..self.len()).filter_map(|index| self.get(index))
    }

    /// Entry with this key.
    pub fn find(&self, key: EntryKey) -> Option<DirectoryEntry<'a>> {
        self.get(self.index_of(key)).filter(|entry| entry.key == key)
    }

    /// Encoded entries with a further entry.
    ///
    /// # Panics
    /// The list has an entry with this key.
    pub fn with(&self, entry: &DirectoryEntry<'_>) -> Vec<u8> {
        assert!(self.find(entry.key).is_none(), "the key of an entry is unique");
        let (before, after) = self.split(self.index_of(entry.key));
        [before, &entry.encode(), after].concat()
    }

    /// Encoded entries without the entry with this key.
    pub fn without(&self, key: EntryKey) -> Vec<u8> {
        self.around(key).concat()
    }

    /// Encoded entries before and after the entry with this key.
    pub fn around(&self, key: EntryKey) -> [&'a [u8]; 2] {
        let index = self.index_of(key);
        let end = index + usize::from(self.find(key).is_some());
        let ((before, _), (_, after)) = (self.split(index), self.split(end));
        [before, after]
    }

    /// Lowest and highest key; `None` for an empty list.
    pub fn keys(&self) -> Option<(EntryKey, EntryKey)> {
        let (first, last) = self.offsets.first().zip(self.offsets.last())?;
        Some((self.key_at(*first), self.key_at(*last)))
    }

    /// Encoded entries before the entry with this index, and the other encoded entries.
    pub fn split(&self, index: usize) -> (&'a [u8], &'a [u8]) {
        self.bytes.split_at(self.offset(index))
    }

    /// Index that splits the encoded entries into two parts of similar size. Both parts have an
    /// entry.
    ///
    /// # Panics
    /// The list has fewer than two entries.
    pub fn middle(&self) -> usize {
        assert!(self.len() >= 2, "two parts need two entries");
        let half = self.bytes.len() / 2;
        let index = self.offsets.partition_point(|offset| usize::from(*offset) < half);
        index.clamp(1, self.len() - 1)
    }
}

/// Child of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryNodeEntry {
    /// Lower bound of the keys below the child. In a stored node, the key of the first child may be
    /// larger than the lower bound of the node.
    pub key: EntryKey,
    /// Number of the child's block in the directory's object; not 0, which is the root.
    pub block: u32,
}

/// Inner node of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryNode {
    /// Distance to the leaves, 1 to [`Self::LEVEL_MAX`].
    pub level: u8,
    /// Children in ascending order of their keys, at least one.
    pub children: Vec<DirectoryNodeEntry>,
}

impl DirectoryNode {
    /// Maximum level of a node.
    pub const LEVEL_MAX: u8 = 8;
    /// Maximum number of children.
    pub const CHILDREN_MAX: usize = (BLOCK_BYTES - DirectoryBlock::HEAD_BYTES) / CHILD_BYTES;

    /// Index of the child below which an entry with this key is.
    pub fn child_of(&self, key: EntryKey) -> usize {
        self.children.partition_point(|child| child.key <= key).saturating_sub(1)
    }

    /// Sets the lower bound of the first child, which is the lower bound of the node.
    pub fn set_lower_bound(&mut self, key: EntryKey) {
        if let Some(first) = self.children.first_mut() {
            first.key = key;
        }
    }
}

/// Content of a block of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryContent<'a> {
    /// Entries.
    Leaf(EntryList<'a>),
    /// Children.
    Node(DirectoryNode),
    /// Nothing: the block is in the list of free blocks.
    Free,
}

impl DirectoryContent<'_> {
    /// Distance to the leaves; `None` for a free block.
    pub fn level(&self) -> Option<u8> {
        match self {
            Self::Leaf(_) => Some(0),
            Self::Node(node) => Some(node.level),
            Self::Free => None,
        }
    }
}

/// A decoded block of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryBlock<'a> {
    /// In the root, the number of blocks of the directory, free ones included; 0 in other blocks.
    pub blocks: u32,
    /// In the root, the first free block; in a free block, the next free block; 0: none.
    pub free: u32,
    /// Entries or children.
    pub content: DirectoryContent<'a>,
}

const LEAF: u8 = 1;
const NODE: u8 = 2;
const FREE: u8 = 3;

/// Place of the numbers of the root in its head.
const NUMBERS: Range<usize> = 8..16;
/// Encoded size of a child of a node.
const CHILD_BYTES: usize = 12;

impl DirectoryBlock<'_> {
    /// Size of the fields before the entries or children.
    pub const HEAD_BYTES: usize = 16;
    /// Maximum number of encoded bytes of the entries of a leaf.
    pub const LEAF_BYTES: usize = BLOCK_BYTES - Self::HEAD_BYTES;

    /// Fields, for the format documentation.
    pub const FIELDS: &'static [Field] = &[
        field(1, "kind", "1 leaf, 2 node, 3 free block"),
        field(1, "level", "distance of a node to the leaves; 0 in a leaf"),
        field(2, "length", "leaf: bytes of the entries; node: number of children"),
        field(4, "zero", "unused"),
        field(4, "blocks", "root: number of blocks; else 0"),
        field(4, "free", "root: first free block; free block: next free block; 0: none"),
        field(
            Self::LEAF_BYTES,
            "content",
            "entries; or per child its lowest key (u64) and block (u32)",
        ),
    ];

    /// Encodes the block.
    ///
    /// # Panics
    /// The content is larger than a block.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let numbers = (self.blocks, self.free);
        match &self.content {
            DirectoryContent::Leaf(entries) => {
                encoded((LEAF, 0), entries.bytes().len(), numbers, &[entries.bytes()])
            }
            DirectoryContent::Node(DirectoryNode { level, children }) => {
                let mut w = Writer::with_capacity(children.len() * CHILD_BYTES);
                for DirectoryNodeEntry { key, block } in children {
                    w.u64(key.0);
                    w.u32(*block);
                }
                encoded((NODE, *level), children.len(), numbers, &[&w.0])
            }
            DirectoryContent::Free => encoded((FREE, 0), 0, numbers, &[]),
        }
    }

    /// Encodes a leaf that is no root. `parts`: encoded entries that ascend and need no further
    /// check. `None` if they are larger than a leaf.
    pub fn encode_leaf(parts: &[&[u8]]) -> Option<[u8; BLOCK_BYTES]> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        (bytes <= Self::LEAF_BYTES).then(|| encoded((LEAF, 0), bytes, (0, 0), parts))
    }

    /// Sets the two numbers that only a root has: the number of blocks, and the first free block.
    pub fn set_numbers(root: &mut [u8; BLOCK_BYTES], blocks: u32, free: u32) {
        let numbers = [blocks.to_le_bytes(), free.to_le_bytes()];
        let places = root.get_mut(NUMBERS).expect("the head is shorter than a block");
        places.copy_from_slice(numbers.as_flattened());
    }
}

/// Encodes a block of this kind and level. `length`: number of bytes of the entries, or number of
/// children.
fn encoded(
    (kind, level): (u8, u8),
    length: usize,
    (blocks, free): (u32, u32),
    content: &[&[u8]],
) -> [u8; BLOCK_BYTES] {
    let length = u16::try_from(length).expect("a block has less than 64 KiB");
    let mut block = [0; BLOCK_BYTES];
    let (head, mut rest) = block.split_at_mut(DirectoryBlock::HEAD_BYTES);
    let mut w = Writer::with_capacity(DirectoryBlock::HEAD_BYTES);
    w.u8(kind);
    w.u8(level);
    w.u16(length);
    w.u32(0);
    w.u32(blocks);
    w.u32(free);
    head.copy_from_slice(&w.0);
    for part in content {
        let (place, after) = rest.split_at_mut(part.len());
        place.copy_from_slice(part);
        rest = after;
    }
    block
}

/// Head of a directory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryHead {
    /// As [`DirectoryBlock::blocks`].
    pub blocks: u32,
    /// As [`DirectoryBlock::free`].
    pub free: u32,
    /// True if the block is a leaf.
    pub is_leaf: bool,
}

impl DirectoryHead {
    /// Reads the head of a block. Does not check the content.
    pub fn read(block: &[u8; BLOCK_BYTES]) -> Self {
        let number = |at: usize| {
            let bytes = block.get(at..).and_then(<[u8]>::first_chunk);
            u32::from_le_bytes(*bytes.expect("the head is shorter than a block"))
        };
        let [kind, ..] = *block;
        let [blocks, free] = [NUMBERS.start, NUMBERS.start + 4].map(number);
        Self { blocks, free, is_leaf: kind == LEAF }
    }
}

impl<'a> DirectoryBlock<'a> {
    /// Decodes a block.
    ///
    /// # Errors
    /// A field has an invalid value.
    pub fn decode(block: &'a [u8; BLOCK_BYTES]) -> Result<Self, FormatError> {
        let mut r = Reader::new(BLOCK, block);
        let (kind, level, length) = (r.u8()?, r.u8()?, r.u16()?);
        r.skip_zeros(4)?;
        let (blocks, free) = (r.u32()?, r.u32()?);
        let content = match kind {
            LEAF if level == 0 => {
                DirectoryContent::Leaf(EntryList::parse(r.take(usize::from(length))?)?)
            }
            NODE => DirectoryContent::Node(DirectoryNode::read(&mut r, level, length)?),
            FREE if level == 0 && length == 0 && blocks == 0 => DirectoryContent::Free,
            LEAF | FREE => return Err(r.bad("level", level)),
            _ => return Err(r.bad("kind", kind)),
        };
        r.zeros()?;
        Ok(Self { blocks, free, content })
    }
}

impl DirectoryNode {
    fn read(r: &mut Reader<'_>, level: u8, count: u16) -> Result<Self, FormatError> {
        if !(1..=Self::LEVEL_MAX).contains(&level) {
            return Err(r.bad("level", level));
        }
        if count == 0 || usize::from(count) > Self::CHILDREN_MAX {
            return Err(r.bad("length", count));
        }
        let mut children: Vec<DirectoryNodeEntry> = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let (key, block) = (r.u64()?, r.u32()?);
            let key = EntryKey::new(key).ok_or_else(|| r.bad("key", key))?;
            if block == 0 {
                return Err(r.bad("block", block));
            }
            if children.last().is_some_and(|last| last.key >= key) {
                return Err(r.bad("key", key.0));
            }
            children.push(DirectoryNodeEntry { key, block });
        }
        Ok(Self { level, children })
    }
}
