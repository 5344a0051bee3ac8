//! A partial record: the known blocks of a record whose other blocks were lost.
//!
//! Not here: creation (weir-dataset's replay), reading and storing (weir-pool).
//!
//! Invariants:
//! - the stored form is a header and the known blocks in their order, nothing else;
//! - at least one block of the record is unknown.

use weir_base::BLOCK_BYTES;
use weir_base::RecordSize;

use crate::bytes::{Field, field};
use crate::error::FormatError;
use crate::pointer::BlockPtr;

const MAGIC: [u8; 8] = *b"WEIRPART";
const WHAT: &str = "partial record";
const REST_OFFSET: usize = 8;
const KNOWN_OFFSET: usize = REST_OFFSET + BlockPtr::BYTES;
/// Length of the set of stored blocks: one bit for each block of the largest record.
const KNOWN_BYTES: usize = 32;
const INDEX_OFFSET: usize = KNOWN_OFFSET + KNOWN_BYTES;
const INDEX_BYTES: usize = 8;

/// Header of a partial record. If the intent log has writes to a part of an unreadable record,
/// replay stores a partial record in place of the unreadable one. Weir versions without partial
/// records read a partial record as a damaged record, because no other raw record is shorter than
/// its record size.
///
/// ```text
/// 0    magic:8 | rest:32 | known:32 | index:8 | zeros:48
/// 128  the known blocks, 4096 bytes each
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialHeader {
    /// Pointer to the replaced record, which has the blocks that this record lacks. `rest` is a
    /// damage marker if the node with that pointer was unreadable, and a hole if the pointer is
    /// unknown.
    pub rest: BlockPtr,
    /// Index of the record in its volume, needed to resolve a damage marker.
    pub index: u64,
    /// Set of the stored blocks: bit n mod 8 of byte n / 8 is set if block n is stored.
    known: [u8; KNOWN_BYTES],
}

impl PartialHeader {
    /// Stored size of the header: two units of 64 bytes.
    pub const BYTES: usize = 128;

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "magic", "`WEIRPART`"),
        field(32, "rest", "pointer to the replaced record, or damage marker; zeros: lost"),
        field(32, "known", "bit n of byte n / 8: block n of the record is stored"),
        field(8, "index", "position of the record in its volume; zero in older pools"),
        field(48, "zeros", ""),
        field(0, "blocks", "the stored blocks in their order, 4096 bytes each"),
    ];

    /// Creates a header without known blocks for the record at `index`; `rest` points to the
    /// replaced record.
    pub fn new(rest: BlockPtr, index: u64) -> Self {
        Self { rest, index, known: [0; KNOWN_BYTES] }
    }

    /// Returns true if a block of the record is stored.
    pub fn has(&self, part: usize) -> bool {
        self.known.get(part / 8).is_some_and(|byte| byte & (1 << (part % 8)) != 0)
    }

    /// Marks a block of the record as stored.
    ///
    /// # Panics
    /// `part` is beyond the largest record.
    pub fn put(&mut self, part: usize) {
        let byte = self.known.get_mut(part / 8).expect("it is a part of a record");
        *byte |= 1 << (part % 8);
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        let fields = MAGIC.into_iter().chain(self.rest.encode()).chain(self.known);
        let fields = fields.chain(self.index.to_le_bytes());
        out.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        out
    }

    /// Decodes the header of `stored`, the whole stored form of a partial record of `size`.
    ///
    /// # Errors
    /// The header is missing or invalid, or the number of stored blocks differs from the number in
    /// the header.
    pub fn decode(stored: &[u8], size: RecordSize) -> Result<Self, FormatError> {
        let bad = |field, value| FormatError::Field { what: WHAT, field, value };
        let (header, blocks) = stored
            .split_first_chunk::<{ Self::BYTES }>()
            .ok_or(FormatError::Truncated { what: WHAT })?;
        if !header.starts_with(&MAGIC) {
            return Err(FormatError::Magic { what: WHAT });
        }
        let truncated = FormatError::Truncated { what: WHAT };
        let rest = header.get(REST_OFFSET..).and_then(<[u8]>::first_chunk);
        let rest = BlockPtr::decode(rest.ok_or(truncated.clone())?)?;
        let known = header.get(KNOWN_OFFSET..).and_then(<[u8]>::first_chunk);
        let index = header.get(INDEX_OFFSET..).and_then(<[u8]>::first_chunk);
        let index = u64::from_le_bytes(*index.ok_or(truncated.clone())?);
        let this = Self { rest, index, known: *known.ok_or(truncated)? };
        let is_zero = header.iter().skip(INDEX_OFFSET + INDEX_BYTES).all(|byte| *byte == 0);
        if !is_zero {
            return Err(bad("zeros", 1));
        }
        let of_record = (0..size.blocks() as usize).filter(|part| this.has(*part)).count();
        let all: u32 = this.known.iter().map(|byte| byte.count_ones()).sum();
        let is_partial = all as usize == of_record && of_record < size.blocks() as usize;
        if !is_partial || blocks.len() != of_record * BLOCK_BYTES {
            return Err(bad("known", u64::from(all)));
        }
        Ok(this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(parts: &[usize]) -> Vec<u8> {
        let mut header = PartialHeader::new(BlockPtr::HOLE, 1 << 40);
        parts.iter().for_each(|part| header.put(*part));
        let mut stored = header.encode().to_vec();
        stored.resize(PartialHeader::BYTES + parts.len() * BLOCK_BYTES, 7);
        stored
    }

    #[test]
    fn header_must_match_the_number_of_stored_blocks() {
        let size = RecordSize::from_shift(2).expect("4 blocks");
        for parts in [&[][..], &[0], &[3, 1], &[0, 1, 3]] {
            let stored = stored(parts);
            let header = PartialHeader::decode(&stored, size).expect("it was encoded");
            assert!((0..300).all(|part| header.has(part) == parts.contains(&part)), "{parts:?}");
            assert_eq!(header.encode()[..], stored[..PartialHeader::BYTES]);
            let short = &stored[..stored.len() - 1];
            assert!(PartialHeader::decode(short, size).is_err(), "{parts:?}");
        }
        assert!(PartialHeader::decode(&stored(&[0, 1, 2, 3]), size).is_err(), "it is whole");
        assert!(PartialHeader::decode(&stored(&[4]), size).is_err(), "beyond the record");
    }

    #[test]
    fn flipped_bit_of_a_header_is_refused_or_round_trips() {
        let size = RecordSize::from_shift(2).expect("4 blocks");
        let whole = stored(&[1, 2]);
        for bit in 0..PartialHeader::BYTES * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(header) = PartialHeader::decode(&bytes, size) {
                assert_eq!(header.encode()[..], bytes[..PartialHeader::BYTES], "bit {bit}");
            }
        }
    }
}
