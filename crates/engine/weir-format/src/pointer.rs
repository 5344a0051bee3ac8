//! The block pointer: where a block is, how it is stored, what its stored bytes hash to.
//!
//! Not here: the translation of a virtual segment to disks (weir-pool).
//!
//! Invariants:
//! - a hole is all zeros, so a zeroed node is a node of holes;
//! - a pointer is never rewritten to move a block: segments move, addresses do not;
//! - a damage marker has the pointer of the node that could not be read, unchanged, and the node's
//!   level instead of its kind;
//! - `birth` is the txg that made the pointer, at most the txg of the tree that holds it (I8); a
//!   pointer to a block that was there before (a reference) has its own.
//!
//! ```text
//! word 0   vseg:40 | offset:19 | kind:5          offset in 64-byte units inside the segment;
//!                                                the kind tells the size of the record, too
//! word 1   birth:44 | stored:15 | codec:5        stored size in 64-byte units
//! word 2-3 checksum:128                          XXH3-128 of the stored bytes
//! ```
//! Lowest bits first.

use weir_base::RecordSize;
use weir_base::{Txg, VsegId};

use crate::bytes::{Field, field};
use crate::compression::Codec;
use crate::error::FormatError;
use crate::layout::{PACK_BYTES, SEGMENT_BYTES_MAX};

/// What a pointer leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PtrKind {
    /// Nothing is stored; reads as zeros.
    #[default]
    Hole,
    /// A record of an object.
    Data,
    /// A tree node of 128 pointers.
    Node,
    /// A damage marker: what is here is what an unreadable node holds for this place. The rest of
    /// the pointer leads to that node.
    Damaged {
        /// Level of the node, 1 for a leaf. The marker is at a lower one.
        level: u8,
    },
}

impl PtrKind {
    /// The number of the kind in an encoded pointer to one block, for errors.
    pub fn code(self) -> u64 {
        match self {
            Self::Hole => 0,
            Self::Data => KIND_DATA,
            Self::Node => KIND_NODE,
            Self::Damaged { level } => KIND_DAMAGED - 1 + u64::from(level),
        }
    }
}

/// A decoded block pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockPtr {
    /// What is there.
    pub kind: PtrKind,
    /// Virtual segment.
    pub vseg: VsegId,
    /// Start inside the segment, in units of [`PACK_BYTES`].
    pub offset_units: u32,
    /// Stored size in units of [`PACK_BYTES`].
    pub stored_units: u16,
    /// How the stored bytes were made.
    pub codec: Codec,
    /// What they were made of; one block unless this is data of a volume.
    pub record: RecordSize,
    /// Transaction group that made the pointer: wrote the block, or shared it.
    pub birth: Txg,
    /// Made to a block that something else led to already, instead of writing it.
    pub shared: bool,
    /// XXH3-128 of the stored bytes.
    pub checksum: u128,
}

const VSEG_BITS: u32 = 40;
const OFFSET_BITS: u32 = 19;
const BIRTH_BITS: u32 = 44;
const STORED_BITS: u32 = 15;

const KIND_DATA: u64 = 1;
const KIND_NODE: u64 = 2;
const KIND_SHARED: u64 = 3;
/// Data of two blocks; with each power of two more, two more.
const KIND_LARGE: u64 = 4;
/// Damage marker of a leaf; with each level more, one more.
const KIND_DAMAGED: u64 = 20;
/// Levels of nodes that a damage marker can name.
const DAMAGED_LEVELS: u64 = 6;

const fn low(bits: u32) -> u64 {
    (1 << bits) - 1
}

impl BlockPtr {
    /// Encoded size.
    pub const BYTES: usize = 32;

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(
            8,
            "word 0",
            "bits 0-39 vseg, 40-58 offset in 64 B units, 59-63 kind: 0 hole, 1 data, 2 node, \
             3 data that was there before, 2 + 2n and 3 + 2n as 1 and 3 of 2^n blocks, 19 + l \
             what an unreadable node of level l holds here, and the rest leads to that node",
        ),
        field(
            8,
            "word 1",
            "bits 0-43 birth txg, 44-58 stored size in 64 B units, 59-63 codec: 0 raw, 1 lz4, \
             2 zstd",
        ),
        field(
            16,
            "checksum",
            "XXH3-128 of the stored bytes, trailing zeros of the last 64 B unit included",
        ),
    ];

    /// Nothing stored.
    pub const HOLE: Self = Self {
        kind: PtrKind::Hole,
        vseg: VsegId(0),
        offset_units: 0,
        stored_units: 0,
        codec: Codec::Raw,
        record: RecordSize::BLOCK,
        birth: Txg(0),
        shared: false,
        checksum: 0,
    };

    /// Whether nothing is stored.
    pub fn is_hole(&self) -> bool {
        self.kind == PtrKind::Hole
    }

    /// True for a pointer to a stored record or node: neither a hole nor a damage marker.
    pub fn leads_to_block(&self) -> bool {
        matches!(self.kind, PtrKind::Data | PtrKind::Node)
    }

    /// True for a pointer to a partial record (see [`crate::PartialHeader`]): some of its blocks
    /// were lost. No other raw record is stored in fewer bytes than it has.
    pub fn is_partial(&self) -> bool {
        let is_large = self.kind == PtrKind::Data && !self.record.is_block();
        is_large && self.codec == Codec::Raw && self.stored_bytes() < self.record.bytes()
    }

    /// True for a damage marker. A marker names the bytes of a lost node above its own place.
    pub fn is_damaged(&self) -> bool {
        matches!(self.kind, PtrKind::Damaged { .. })
    }

    /// The marker that stands, in lower levels, for what this node of `level` holds, which cannot
    /// be read; a marker stands for itself.
    #[must_use]
    pub fn damage_marker_of(self, level: u8) -> Self {
        if self.is_damaged() { self } else { Self { kind: PtrKind::Damaged { level }, ..self } }
    }

    /// The node that a damage marker names, and its level; `None` of any other pointer.
    pub fn damaged_node(self) -> Option<(Self, u8)> {
        match self.kind {
            PtrKind::Damaged { level } => Some((Self { kind: PtrKind::Node, ..self }, level)),
            _ => None,
        }
    }

    /// Stored size.
    pub fn stored_bytes(&self) -> usize {
        usize::from(self.stored_units) * PACK_BYTES
    }

    /// Start inside the segment.
    pub fn offset_bytes(&self) -> u64 {
        u64::from(self.offset_units) * PACK_BYTES as u64
    }

    /// As it leads to the same block from another place, made in `txg`.
    #[must_use]
    #[inline]
    pub fn shared_in(self, txg: Txg) -> Self {
        assert!(self.kind == PtrKind::Data, "only data is shared: {self:?}");
        Self { birth: txg, shared: true, ..self }
    }

    /// The address as one number: unique for ever, the key of caches.
    pub fn address(&self) -> u64 {
        self.vseg.0 | u64::from(self.offset_units) << VSEG_BITS
    }

    /// Encodes.
    // Millions are encoded and decoded one after the other by who lives in other crates.
    #[inline]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        if self.is_hole() {
            return [0; Self::BYTES];
        }
        assert!(self.vseg.0 <= low(VSEG_BITS) && self.birth.0 <= low(BIRTH_BITS), "{self:?}");
        assert!(u64::from(self.offset_units) <= low(OFFSET_BITS), "{self:?}");
        assert!(u64::from(self.stored_units) <= low(STORED_BITS), "{self:?}");
        let size = u64::from(self.record.shift());
        let kind = match self.kind {
            PtrKind::Hole => 0,
            PtrKind::Data => match (size, self.shared) {
                (0, false) => KIND_DATA,
                (0, true) => KIND_SHARED,
                (size, shared) => KIND_LARGE + 2 * (size - 1) + u64::from(shared),
            },
            PtrKind::Node => KIND_NODE,
            PtrKind::Damaged { level } => {
                assert!((1..=DAMAGED_LEVELS).contains(&u64::from(level)), "{self:?}");
                KIND_DAMAGED - 1 + u64::from(level)
            }
        };
        let word0 = self.vseg.0
            | u64::from(self.offset_units) << VSEG_BITS
            | kind << (VSEG_BITS + OFFSET_BITS);
        let word1 = self.birth.0
            | u64::from(self.stored_units) << BIRTH_BITS
            | u64::from(self.codec.code()) << (BIRTH_BITS + STORED_BITS);
        let words = u128::from(word0) | u128::from(word1) << 64;
        let mut out = [0; Self::BYTES];
        let (head, tail) = out.split_at_mut(16);
        head.copy_from_slice(&words.to_le_bytes());
        tail.copy_from_slice(&self.checksum.to_le_bytes());
        out
    }

    /// Decodes.
    ///
    /// # Errors
    /// An unknown kind or codec, an empty block, or one that leaves its segment.
    #[inline]
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, FormatError> {
        let (head, rest) = bytes.split_first_chunk::<16>().expect("32 > 16");
        let words = u128::from_le_bytes(*head);
        let (word0, word1) = (words as u64, (words >> 64) as u64);
        let checksum = u128::from_le_bytes(*rest.first_chunk().expect("32 - 16 = 16"));
        let bad = |field, value| FormatError::Field { what: "block pointer", field, value };
        let code = word0 >> (VSEG_BITS + OFFSET_BITS);
        let (kind, size, shared) = match code {
            0 if word0 == 0 && word1 == 0 && checksum == 0 => return Ok(Self::HOLE),
            KIND_DATA | KIND_SHARED => (PtrKind::Data, 0, code == KIND_SHARED),
            KIND_NODE => (PtrKind::Node, 0, false),
            level @ KIND_DAMAGED.. if level < KIND_DAMAGED + DAMAGED_LEVELS => {
                (PtrKind::Damaged { level: (level - KIND_DAMAGED + 1) as u8 }, 0, false)
            }
            large => {
                let above = large.checked_sub(KIND_LARGE).ok_or_else(|| bad("kind", large))?;
                (PtrKind::Data, 1 + (above / 2) as u8, above % 2 == 1)
            }
        };
        let record = RecordSize::from_shift(size).ok_or_else(|| bad("kind", code))?;
        let ptr = Self {
            kind,
            vseg: VsegId(word0 & low(VSEG_BITS)),
            offset_units: (word0 >> VSEG_BITS & low(OFFSET_BITS)) as u32,
            stored_units: (word1 >> BIRTH_BITS & low(STORED_BITS)) as u16,
            codec: Codec::from_code((word1 >> (BIRTH_BITS + STORED_BITS)) as u8)?,
            record,
            birth: Txg(word1 & low(BIRTH_BITS)),
            shared,
            checksum,
        };
        let end = ptr.offset_bytes() + ptr.stored_bytes() as u64;
        // What is stored as it is of the pool's own tables is not whole blocks.
        let too_long = !record.is_block() && ptr.stored_bytes() > record.bytes();
        if ptr.stored_units == 0 || end > SEGMENT_BYTES_MAX || too_long {
            return Err(bad("stored", u64::from(ptr.stored_units)));
        }
        Ok(ptr)
    }
}
