//! The block pointer: location, storage format and checksum of one block.
//!
//! weir-pool translates a virtual segment to disk offsets.
//!
//! Invariants:
//! - a hole is all zeros, so a zeroed node is a node of holes;
//! - a move of a block never rewrites its pointers: the pointers keep the old address, which
//!   weir-pool translates;
//! - a damage marker is the unchanged pointer of the unreadable node, with the node's level in
//!   place of its kind;
//! - I8: `birth` is the txg that made the pointer, at most the txg of the tree that contains the
//!   pointer. A pointer that shares an existing block has its own birth.

use weir_base::RecordSize;
use weir_base::{Txg, VsegId};

use crate::bytes::{Field, field};
use crate::compression::Codec;
use crate::error::FormatError;
use crate::layout::{PACK_BYTES, SEGMENT_BYTES_MAX};

/// Kind of object that a pointer refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PtrKind {
    /// Nothing is stored; a read returns zeros.
    #[default]
    Hole,
    /// A record of a dataset or table.
    Data,
    /// A tree node of 128 pointers.
    Node,
    /// A damage marker: replaces a pointer that was in an unreadable node. The other fields of the
    /// marker are the pointer of the unreadable node.
    Damaged {
        /// Level of the unreadable node, 1 for a leaf. The marker replaces a pointer in that node
        /// or in a node below it.
        level: u8,
    },
}

impl PtrKind {
    /// Code of the kind in an encoded pointer to a record of one block; for error messages.
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
    /// Kind of object at this address.
    pub kind: PtrKind,
    /// Virtual segment that contains the object.
    pub vseg: VsegId,
    /// Offset of the object in the segment, in units of [`PACK_BYTES`].
    pub offset_units: u32,
    /// Stored size of the object, in units of [`PACK_BYTES`].
    pub stored_units: u16,
    /// Storage format of the stored bytes.
    pub codec: Codec,
    /// Uncompressed size of the object; one block, unless the object is a record of a volume.
    pub record: RecordSize,
    /// Txg that made the pointer: that txg wrote or shared the block.
    pub birth: Txg,
    /// True if the pointer was made to share an existing block instead of writing a new one.
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
/// Code for data of two blocks. Each doubling of the size adds 2 to the code.
const KIND_LARGE: u64 = 4;
/// Code for a damage marker of a leaf. Each level above the leaves adds 1 to the code.
const KIND_DAMAGED: u64 = 20;
/// Number of node levels that a damage marker can name.
const DAMAGED_LEVELS: u64 = 6;

const fn low(bits: u32) -> u64 {
    (1 << bits) - 1
}

impl BlockPtr {
    /// Encoded size of a pointer in bytes.
    pub const BYTES: usize = 32;

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(
            8,
            "word 0",
            "bits 0-39 vseg, 40-58 offset in 64 B units, 59-63 kind: 0 hole, 1 data, 2 node, \
             3 data shared with an earlier pointer, 2 + 2n and 3 + 2n as 1 and 3 of 2^n blocks, \
             19 + l damage marker: the other fields point to the unreadable node of level l",
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

    /// Pointer of a hole: no block is stored.
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

    /// True if no block is stored.
    pub fn is_hole(&self) -> bool {
        self.kind == PtrKind::Hole
    }

    /// True for a pointer to a stored record or node: neither a hole nor a damage marker.
    pub fn is_stored(&self) -> bool {
        matches!(self.kind, PtrKind::Data | PtrKind::Node)
    }

    /// True for a pointer to a partial record (see [`crate::PartialHeader`]), some of whose blocks
    /// were lost. No other raw record is stored in fewer bytes than its record size.
    pub fn is_partial(&self) -> bool {
        let is_large = self.kind == PtrKind::Data && !self.record.is_block();
        is_large && self.codec == Codec::Raw && self.stored_bytes() < self.record.bytes()
    }

    /// True for a damage marker, which replaces a pointer that was in an unreadable node and refers
    /// to that node.
    pub fn is_damaged(&self) -> bool {
        matches!(self.kind, PtrKind::Damaged { .. })
    }

    /// Converts the pointer of an unreadable node of `level` to the damage marker that replaces
    /// each pointer in that node. Returns a damage marker unchanged.
    #[must_use]
    pub fn damage_marker_of(self, level: u8) -> Self {
        if self.is_damaged() { self } else { Self { kind: PtrKind::Damaged { level }, ..self } }
    }

    /// Returns the node that a damage marker names, and its level; `None` for any other pointer.
    pub fn damaged_node(self) -> Option<(Self, u8)> {
        match self.kind {
            PtrKind::Damaged { level } => Some((Self { kind: PtrKind::Node, ..self }, level)),
            _ => None,
        }
    }

    /// Stored size in bytes.
    pub fn stored_bytes(&self) -> usize {
        usize::from(self.stored_units) * PACK_BYTES
    }

    /// Byte offset in the segment.
    pub fn offset_bytes(&self) -> u64 {
        u64::from(self.offset_units) * PACK_BYTES as u64
    }

    /// Returns a new pointer to the same block, for another index or dataset; `txg` is its birth.
    #[must_use]
    #[inline]
    pub fn shared_in(self, txg: Txg) -> Self {
        assert!(self.kind == PtrKind::Data, "only data is shared: {self:?}");
        Self { birth: txg, shared: true, ..self }
    }

    /// Address of the object as one number, which is never reused for another object; caches use it
    /// as their key.
    pub fn address(&self) -> u64 {
        self.vseg.0 | u64::from(self.offset_units) << VSEG_BITS
    }

    /// Encodes the pointer. Inlined, because callers in other crates encode and decode millions of
    /// pointers in a row.
    ///
    /// ```text
    /// word 0   vseg:40 | offset:19 | kind:5          offset in 64-byte units inside the segment;
    ///                                                the kind also gives the size of the record
    /// word 1   birth:44 | stored:15 | codec:5        stored size in 64-byte units
    /// word 2-3 checksum:128                          XXH3-128 of the stored bytes
    /// ```
    /// Each word lists its lowest bits first.
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

    /// Decodes the pointer.
    ///
    /// # Errors
    /// The pointer has an unknown kind or codec, or its block is empty or extends past the end of
    /// its segment.
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
        // Raw blocks of the pool's metadata tables may have any length, so their length is not
        // compared with the record size.
        let too_long = !record.is_block() && ptr.stored_bytes() > record.bytes();
        if ptr.stored_units == 0 || end > SEGMENT_BYTES_MAX || too_long {
            return Err(bad("stored", u64::from(ptr.stored_units)));
        }
        Ok(ptr)
    }
}
