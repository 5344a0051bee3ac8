//! The damage list: ranges of volumes and parts of pool metadata that have no good copy.
//!
//! `damage` of weir-pool and of weir-dataset adds and removes entries.
//!
//! The list is stored in records of the dataset directory, each with its own dataset number. A pool
//! without damage has no such record.
//!
//! Invariants:
//! - each record of the list is decoded independently: the loss of a record affects neither the
//!   other records nor a dataset;
//! - no range extends past the largest tree, so that arithmetic on a range never overflows.

use weir_base::{BLOCK_BYTES, DatasetId, ObjectId, Txg};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::node::TreeRoot;
use crate::object_slot::OBJECTS_MAX;

const WHAT: &str = "damage record";

/// Range of records of one object that have no good copy on any disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedRange {
    /// The volume that has these records, in its head or in its snapshots.
    pub volume: DatasetId,
    /// The object with these records; 0 for a volume. Object 0 of a dataset with many objects is
    /// its object table, in which each record holds four slots.
    pub object: ObjectId,
    /// Index of the first damaged record in the object.
    pub first: u64,
    /// Number of damaged records.
    pub count: u64,
    /// The txg that wrote the pointer to the damaged records. Versions of the volume from this txg
    /// on are damaged.
    pub born: Txg,
    /// Last txg of the newest damaged version; [`Self::HEAD`] if the head is damaged too.
    pub until: Txg,
    /// Time of discovery, ms since 1970.
    pub found_unix_ms: u64,
}

impl DamagedRange {
    /// Value of `until` if the head of the volume is damaged; later snapshots of the volume are
    /// then damaged too.
    pub const HEAD: Txg = Txg(u64::MAX);

    /// Volume and object of the range.
    pub fn tree(&self) -> (DatasetId, ObjectId) {
        (self.volume, self.object)
    }

    /// First record after the range.
    pub fn end(&self) -> u64 {
        self.first + self.count
    }
}

/// Kind of pool metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolPart {
    /// The dataset directory. The number is a dataset number.
    Directory,
    /// The segment table. The number is a segment number.
    SegmentTable,
    /// A remap table. The number is the number of its segment.
    RemapTable,
    /// A reference table. The number is the number of its segment.
    ReferenceTable,
    /// A segment summary. The number is a segment number.
    Summary,
    /// The intent log. The number is a batch number.
    IntentLog,
}

impl PoolPart {
    const ALL: [Self; 6] = [
        Self::Directory,
        Self::SegmentTable,
        Self::RemapTable,
        Self::ReferenceTable,
        Self::Summary,
        Self::IntentLog,
    ];

    const fn code(self) -> u8 {
        match self {
            Self::Directory => 1,
            Self::SegmentTable => 2,
            Self::RemapTable => 3,
            Self::ReferenceTable => 4,
            Self::Summary => 5,
            Self::IntentLog => 6,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.code() == code)
    }
}

/// Part of the pool metadata that has no good copy on any disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DamagedPart {
    /// Kind of structure.
    pub part: PoolPart,
    /// Number of the structure; its meaning depends on the [`PoolPart`].
    pub number: u64,
    /// Time of discovery, ms since 1970.
    pub found_unix_ms: u64,
}

/// A directory entry that stores a part of the list of permanent errors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageRecord {
    /// Number of the entry in the dataset directory.
    pub id: DatasetId,
    /// Number of damaged ranges and parts that did not fit into the list of permanent errors.
    pub more: u64,
    /// Damaged ranges of volumes.
    pub ranges: Vec<DamagedRange>,
    /// Damaged parts of the pool metadata.
    pub parts: Vec<DamagedPart>,
}

/// The two kinds of this entry in the directory, and the offset of the kind field. In an entry of
/// the second kind, each range has an object. An entry has the second kind only if the object of a
/// range is not 0.
const KIND: u8 = 4;
const OBJECTS_KIND: u8 = 22;
const KIND_AT: usize = 8;

const HEADER_BYTES: usize = 8 + 1 + 8 + 2 + 2;
const RANGE_BYTES: usize = 6 * 8;
const OBJECT_RANGE_BYTES: usize = RANGE_BYTES + 8;
const PART_BYTES: usize = 1 + 2 * 8;

impl DamageRecord {
    /// Maximum number of damaged ranges in one directory entry. The entry also has space for
    /// [`Self::PARTS_MAX`] damaged parts.
    pub const RANGES_MAX: usize =
        (BLOCK_BYTES - HEADER_BYTES - Self::PARTS_MAX * PART_BYTES) / RANGE_BYTES;
    /// Maximum number of damaged ranges in an entry that has a range of an object other than 0.
    pub const OBJECT_RANGES_MAX: usize =
        (BLOCK_BYTES - HEADER_BYTES - Self::PARTS_MAX * PART_BYTES) / OBJECT_RANGE_BYTES;
    /// Maximum number of damaged parts in one directory entry.
    pub const PARTS_MAX: usize = 16;

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "id", "number in the directory; no dataset has it"),
        field(1, "kind", "4; 22: each range has an object"),
        field(8, "more", "number of entries beyond the limit of the list"),
        field(2, "ranges", "count"),
        field(2, "parts", "count"),
        field(
            0,
            "range",
            "u64 volume, u64 first record, u64 records, u64 born txg, u64 last txg (all ones: the",
        ),
        field(0, "", "head of the volume, too), u64 found ms; kind 22: then u64 object"),
        field(
            0,
            "part",
            "u8 structure: 1 directory, 2 segment table, 3 remap table, 4 reference table, 5",
        ),
        field(0, "", "segment summary, 6 intent log; u64 number, u64 found ms"),
    ];

    /// True if a block of the directory is a damage record.
    pub fn is_one(block: &[u8; BLOCK_BYTES]) -> bool {
        matches!(block.get(KIND_AT), Some(&KIND | &OBJECTS_KIND))
    }

    /// Maximum number of ranges in an entry of this kind.
    fn ranges_max(kind: u8) -> usize {
        if kind == OBJECTS_KIND { Self::OBJECT_RANGES_MAX } else { Self::RANGES_MAX }
    }

    /// Encodes the entry as one block of the directory.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let has_objects = self.ranges.iter().any(|range| range.object.0 != 0);
        let kind = if has_objects { OBJECTS_KIND } else { KIND };
        assert!(self.ranges.len() <= Self::ranges_max(kind) && self.parts.len() <= Self::PARTS_MAX);
        let mut w = Writer::default();
        w.u64(self.id.0);
        w.u8(kind);
        w.u64(self.more);
        w.u16(self.ranges.len() as u16);
        w.u16(self.parts.len() as u16);
        for range in &self.ranges {
            let DamagedRange { volume, object, first, count, born, until, found_unix_ms } = *range;
            for word in [volume.0, first, count, born.0, until.0, found_unix_ms] {
                w.u64(word);
            }
            if has_objects {
                w.u64(object.0);
            }
        }
        for DamagedPart { part, number, found_unix_ms } in &self.parts {
            w.u8(part.code());
            w.u64(*number);
            w.u64(*found_unix_ms);
        }
        w.pad_to(BLOCK_BYTES);
        w.0.try_into().expect("padded to one block")
    }

    /// Decodes one block of the directory.
    ///
    /// # Errors
    /// A field has an invalid value.
    pub fn decode(block: &[u8; BLOCK_BYTES]) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, block);
        let (id, kind, more) = (DatasetId(r.u64()?), r.u8()?, r.u64()?);
        if !matches!(kind, KIND | OBJECTS_KIND) {
            return Err(r.bad("kind", kind));
        }
        let (ranges, parts) = (r.u16()?, r.u16()?);
        if usize::from(ranges) > Self::ranges_max(kind) || usize::from(parts) > Self::PARTS_MAX {
            return Err(r.bad("ranges", ranges));
        }
        let mut found = Self { id, more, ..Self::default() };
        for _ in 0..ranges {
            let range = DamagedRange {
                volume: DatasetId(r.u64()?),
                first: r.u64()?,
                count: r.u64()?,
                born: Txg(r.u64()?),
                until: Txg(r.u64()?),
                found_unix_ms: r.u64()?,
                object: ObjectId(if kind == OBJECTS_KIND { r.u64()? } else { 0 }),
            };
            if range.object.0 >= OBJECTS_MAX {
                return Err(r.bad("object", range.object.0));
            }
            let records_max = TreeRoot::BLOCKS_MAX;
            let fits = range.first < records_max && range.count <= records_max - range.first;
            if range.volume.0 == 0 || range.count == 0 || !fits || range.born > range.until {
                return Err(r.bad("range", range.first));
            }
            found.ranges.push(range);
        }
        for _ in 0..parts {
            let code = r.u8()?;
            let part = PoolPart::from_code(code).ok_or_else(|| r.bad("part", code))?;
            let (number, found_unix_ms) = (r.u64()?, r.u64()?);
            found.parts.push(DamagedPart { part, number, found_unix_ms });
        }
        // The bytes after the decoded fields must be zero, and the kind must suit the ranges.
        if found.encode() == *block { Ok(found) } else { Err(r.bad("zero", 1_u8)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> DamageRecord {
        let range = |n: u64| DamagedRange {
            volume: DatasetId(3),
            object: ObjectId::VOLUME,
            first: n * 10,
            count: 1 + n,
            born: Txg(5),
            until: if n.is_multiple_of(2) { DamagedRange::HEAD } else { Txg(9) },
            found_unix_ms: 1000 + n,
        };
        let part = |n: u64| DamagedPart {
            part: PoolPart::ALL[n as usize % PoolPart::ALL.len()],
            number: n,
            found_unix_ms: 7,
        };
        DamageRecord {
            id: DatasetId(12),
            more: 3,
            ranges: (0..DamageRecord::RANGES_MAX as u64).map(range).collect(),
            parts: (0..DamageRecord::PARTS_MAX as u64).map(part).collect(),
        }
    }

    /// A full entry with ranges of several objects.
    fn full_of_objects() -> DamageRecord {
        let mut record = full();
        record.ranges.truncate(DamageRecord::OBJECT_RANGES_MAX);
        for (range, object) in record.ranges.iter_mut().zip(0..) {
            range.object = ObjectId(object);
        }
        record
    }

    #[test]
    fn full_and_empty_damage_records_round_trip() {
        let empty = DamageRecord { id: DatasetId(1), ..DamageRecord::default() };
        assert_eq!((full().encode()[8], full_of_objects().encode()[8]), (4, 22));
        for record in [full(), full_of_objects(), empty] {
            let block = record.encode();
            assert!(DamageRecord::is_one(&block));
            assert_eq!(DamageRecord::decode(&block), Ok(record));
        }
    }

    #[test]
    fn decoded_record_encodes_to_the_same_bytes() {
        for good in [full().encode(), full_of_objects().encode()] {
            for at in 0..good.len() {
                for flip in [1, 0x80] {
                    let mut bad = good;
                    bad[at] ^= flip;
                    let Ok(read) = DamageRecord::decode(&bad) else { continue };
                    assert!(read.encode() == bad, "byte {at} flipped by {flip}");
                }
            }
        }
    }

    #[test]
    fn impossible_damage_ranges_are_refused() {
        let one = |range| DamageRecord { ranges: vec![range], ..full() }.encode();
        let range = full().ranges[1];
        assert!(DamageRecord::decode(&one(range)).is_ok());
        for bad in [
            DamagedRange { count: 0, ..range },
            DamagedRange { first: u64::MAX, ..range },
            DamagedRange { count: u64::MAX, ..range },
            DamagedRange { born: Txg(10), ..range },
            DamagedRange { volume: DatasetId(0), ..range },
            DamagedRange { object: ObjectId(OBJECTS_MAX), ..range },
        ] {
            assert!(DamageRecord::decode(&one(bad)).is_err(), "{bad:?}");
        }
    }
}
