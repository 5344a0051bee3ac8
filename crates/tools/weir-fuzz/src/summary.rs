//! Fuzzes the segment summary: any bytes, and any fields and blocks with a valid checksum.
//!
//! The fuzz target checks neither the chain of summaries nor the lookup of a block's owner.
//!
//! Invariants: no panic; every accepted block lies inside a segment; an accepted summary survives
//! encoding and decoding unchanged.

use weir_base::{DatasetId, ObjectId, Txg, VsegId};
use weir_codec::checksum::xxh3_128;
use weir_format::layout::{PACK_BYTES, SEGMENT_BYTES_MAX};
use weir_format::{BlockOwner, SEGMENT_BLOCKS_MAX, Summary, SummaryEntry, SummaryPlace};

use crate::valid::trimmed;

const VSEG: VsegId = VsegId(7);

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    check(data);
    // Random bytes never have a valid checksum, so add one. The first byte of the input selects
    // whether the header or the entries are random.
    let Some((mode, rest)) = data.split_first() else { return };
    let empty = Summary { vseg: VSEG, previous: SummaryPlace::default(), entries: Vec::new() };
    let mut bytes = empty.encode();
    let header: usize = Summary::FIELDS.iter().map(|field| field.bytes).sum();
    bytes.truncate(header);
    if mode % 3 == 0 {
        // The header has a random count; the decoder must compare the count with the length.
        bytes.extend_from_slice(rest);
        let from = place("count").start;
        let random = rest.len().min(header - from);
        bytes[from..from + random].copy_from_slice(&rest[..random]);
    } else {
        let with_objects = mode % 3 == 2;
        let entry_bytes =
            if with_objects { SummaryEntry::BYTES_WITH_OBJECT } else { SummaryEntry::BYTES };
        let blocks = (rest.len() / entry_bytes).min(SEGMENT_BLOCKS_MAX as usize);
        bytes[place("count")].copy_from_slice(&(blocks as u32).to_le_bytes());
        bytes[place("flags")].copy_from_slice(&u32::from(with_objects).to_le_bytes());
        bytes.extend_from_slice(&rest[..blocks * entry_bytes]);
        bytes.resize(Summary::bytes_for(blocks, with_objects), 0);
    }
    bytes[place("checksum")].fill(0);
    let checksum = xxh3_128(&bytes);
    bytes[place("checksum")].copy_from_slice(&checksum.to_le_bytes());
    check(&bytes);
}

/// Returns a summary without object numbers and a summary with them, the entries of each, and the
/// bytes of the first summary from its count on.
pub fn seeds() -> Vec<Vec<u8>> {
    let entry = |number: u32| SummaryEntry {
        vseg: VsegId(u64::from(number)),
        offset_units: number * 64,
        at_units: number * 64,
        stored_units: 64,
        owner: BlockOwner {
            dataset: DatasetId(1),
            object: ObjectId::VOLUME,
            level: 0,
            index: u64::from(number),
        },
        birth: Txg(1),
        checksum: 1,
    };
    let previous = SummaryPlace { at: 64, bytes: 4096, checksum: 1 };
    let entries: Vec<SummaryEntry> = (1..4).map(entry).collect();
    let bytes = Summary { vseg: VSEG, previous, entries: entries.clone() }.encode();
    let header: usize = Summary::FIELDS.iter().map(|field| field.bytes).sum();
    let blocks = &bytes[header..header + entries.len() * SummaryEntry::BYTES];
    let fields = trimmed(&bytes[place("count").start..]);
    let mut entries = entries;
    entries[2].owner.object = ObjectId(1 << 40);
    let of_objects = Summary { vseg: VSEG, previous, entries }.encode();
    vec![
        [&[0], &fields[..]].concat(),
        [&[1], blocks].concat(),
        [&[2], &of_objects[header..]].concat(),
        of_objects,
        bytes,
    ]
}

fn check(bytes: &[u8]) {
    let at = place("checksum").start;
    let named = bytes.get(at..).and_then(|bytes| bytes.first_chunk()).copied();
    let named = named.map_or(0, u64::from_le_bytes);
    let Ok(summary) = Summary::decode(bytes, VSEG, named) else { return };
    assert_eq!(summary.vseg, VSEG);
    for entry in &summary.entries {
        let end = (u64::from(entry.at_units) + u64::from(entry.stored_units)) * PACK_BYTES as u64;
        assert!(entry.stored_units > 0 && end <= SEGMENT_BYTES_MAX, "{entry:?}");
    }
    let encoded = summary.encode();
    let again = Summary::decode(&encoded, VSEG, SummaryPlace::of(0, &encoded).checksum);
    assert_eq!(again.expect("an encoded summary is valid"), summary);
    let other = VsegId(VSEG.0 + 1);
    assert!(Summary::decode(bytes, other, named).is_err(), "taken for another segment's");
    assert!(Summary::decode(bytes, VSEG, !named).is_err(), "taken for another one's");
}

/// Byte range of a field in the header of a summary.
fn place(name: &str) -> std::ops::Range<usize> {
    let mut start = 0;
    for field in Summary::FIELDS {
        if field.name == name {
            return start..start + field.bytes;
        }
        start += field.bytes;
    }
    panic!("a summary has no field {name}")
}
