//! Tests of object frames: round trips, and refusal of hostile entries.

use weir_base::{ObjectId, RecordSize};

use super::*;
use crate::files::{Layout, NameCase};
use crate::object_slot::{OBJECTS_MAX, ObjectSlot};

const OBJECT: u8 = 16;
const UNUSED: u8 = 17;
const RECORDS_MAX: u64 = 1 << 42;

/// Begin frame of a stream that resumes at a record of an object.
fn begin_at(first: u64, first_record: u64) -> StreamBegin {
    let objects = Some(StreamObjects { first: ObjectId(first), layer: [9; 40] });
    StreamBegin { size_bytes: 0, first_record, objects, ..begin() }
}

/// An entry, with owned bytes.
#[derive(Clone, Debug, PartialEq)]
enum Owned {
    Object(u64, u8, u64, u8),
    Unused(Range<u64>),
    Record(u64, u64, Vec<u8>),
    Hole(u64, Range<u64>),
}

fn owned(entry: StreamEntry<'_>) -> Owned {
    match entry {
        StreamEntry::Object { object, size, records, body } => {
            assert!(body.iter().all(|byte| *byte == body[0]));
            Owned::Object(object.0, size.shift(), records, body[0])
        }
        StreamEntry::Unused { objects } => Owned::Unused(objects),
        StreamEntry::Change { object, change, stored: Some((_, stored)), .. } => {
            Owned::Record(object.0, change.start, stored.to_vec())
        }
        StreamEntry::Change { object, change, stored: None, .. } => {
            Owned::Hole(object.0, change.start..change.start + change.count)
        }
    }
}

#[test]
fn object_stream_round_trips_in_pieces_of_any_size() {
    let begin = begin_at(3, 2);
    let (mut writer, mut bytes) = StreamWriter::new(&begin);
    let mut wanted = Vec::new();
    for number in 3..80_u64 {
        let size = RecordSize::from_shift((number % 3) as u8).expect("at most 8");
        if number.is_multiple_of(5) {
            writer.unused(number..number + 1);
            wanted.push(Owned::Unused(number..number + 1));
            continue;
        }
        let body = [number as u8; ObjectSlot::BODY_BYTES];
        writer.object(ObjectId(number), size, 128, &body);
        wanted.push(Owned::Object(number, size.shift(), 128, number as u8));
        let stored = vec![number as u8; size.bytes()];
        writer.record(2, Codec::Raw, &stored, xxh3_128(&stored));
        wanted.push(Owned::Record(number, 2, stored));
        writer.hole(3, 120);
        writer.hole(123, 5);
        wanted.push(Owned::Hole(number, 3..128));
        bytes.extend(writer.full_frame().into_iter().flatten());
    }
    writer.unused(100..200);
    writer.unused(200..OBJECTS_MAX);
    wanted.push(Owned::Unused(100..OBJECTS_MAX));
    let (rest, counts) = writer.finish();
    bytes.extend(rest);
    assert_eq!((counts.objects, counts.records, counts.hole_records), (62, 62, 62 * 125));
    assert_eq!(bytes[8], 3, "the version");
    for piece in [1, 17, 4096, 1 << 20] {
        let frames = read(&bytes, piece).expect("a good stream");
        assert_eq!(frames.first(), Some(&StreamFrame::Begin(begin.clone())));
        assert_eq!(frames.last(), Some(&StreamFrame::End(counts)));
        let entries = frames.iter().filter_map(|frame| match frame {
            StreamFrame::Objects(entries) => Some(entries),
            _ => None,
        });
        assert_eq!(entries.flat_map(StreamEntries::iter).map(owned).collect::<Vec<_>>(), wanted);
    }
}

fn words(code: u8, words: &[u64]) -> Vec<u8> {
    [vec![code], words.iter().copied().flat_map(u64::to_le_bytes).collect()].concat()
}

fn object(number: u64, shift: u8, records: u64) -> Vec<u8> {
    let head = [words(OBJECT, &[number]), vec![shift], records.to_le_bytes().to_vec()];
    [head.concat(), vec![5; ObjectSlot::BODY_BYTES]].concat()
}

/// Reads a stream whose second frame is an object frame with this payload. Returns the name of the
/// field that the error reports as bad.
fn bad_field(begin: &StreamBegin, payload: &[u8]) -> &'static str {
    match forged_after(begin, KIND_OBJECTS, payload) {
        StreamFault::Format(FormatError::Field { field, .. }) => field,
        StreamFault::Format(FormatError::Truncated { .. }) => "truncated",
        fault => panic!("{fault}"),
    }
}

#[test]
fn fields_of_an_object_frame_are_validated() {
    let begin = begin_at(0, 0);
    let bad = |payload: &[Vec<u8>]| bad_field(&begin, &payload.concat());
    assert_eq!(bad(&[object(0, 0, 1)]), "object");
    assert_eq!(bad(&[object(OBJECTS_MAX, 0, 1)]), "object");
    assert_eq!(bad(&[object(u64::MAX, 0, 1)]), "object");
    assert_eq!(bad(&[object(9, 0, 1), object(9, 0, 1)]), "object");
    assert_eq!(bad(&[object(9, 0, 1), object(8, 0, 1)]), "object");
    assert_eq!(bad(&[object(9, 9, 1)]), "record_size");
    assert_eq!(bad(&[object(9, 0, RECORDS_MAX + 1)]), "records");
    let missing = object(9, 0, 1);
    assert_eq!(bad(&[missing[..missing.len() - 1].to_vec()]), "truncated");
    assert_eq!(bad(&[words(UNUSED, &[0, 1])]), "unused");
    assert_eq!(bad(&[words(UNUSED, &[5, 0])]), "unused");
    assert_eq!(bad(&[words(UNUSED, &[5, u64::MAX])]), "unused");
    assert_eq!(bad(&[words(UNUSED, &[OBJECTS_MAX, 1])]), "unused");
    assert_eq!(bad(&[words(UNUSED, &[5, 2]), object(6, 0, 1)]), "object");
    assert_eq!(bad(&[object(5, 0, 1), words(UNUSED, &[5, 2])]), "unused");
    let hole = |start, count| words(0, &[start, count]);
    assert_eq!(bad(&[hole(0, 1)]), "code", "no object");
    assert_eq!(bad(&[words(UNUSED, &[5, 2]), hole(0, 1)]), "code");
    for (start, count) in [(0, 0), (128, 1), (127, 2), (u64::MAX, 2), (1, u64::MAX)] {
        assert_eq!(bad(&[object(5, 0, 128), hole(start, count)]), "start");
    }
    assert_eq!(bad(&[object(5, 0, 128), hole(5, 2), hole(6, 1)]), "start");
    assert_eq!(bad(&[object(5, 0, 0), hole(0, 1)]), "start", "beyond the tree");
    let block = [vec![1], words(0, &[])[..0].to_vec(), 0_u64.to_le_bytes().to_vec()].concat();
    let block = [block, 64_u16.to_le_bytes().to_vec(), vec![0; 16 + BLOCK_BYTES]].concat();
    assert_eq!(bad(&[object(5, 1, 128), block.clone()]), "stored", "too short for its record");
    assert_eq!(bad(&[object(5, 0, 128), block]), "checksum");
    for code in [4, 15, 18, 255] {
        let entry = words(code, &[1, 1, 1, 1]);
        assert_eq!(bad(&[object(5, 0, 128), entry]), "codec");
    }
}

#[test]
fn resumed_object_stream_begins_at_its_place() {
    let begin = begin_at(9, 7);
    assert_eq!(bad_field(&begin, &object(8, 0, 128)), "object");
    let hole = |start: u64| words(0, &[start, 1]);
    assert_eq!(bad_field(&begin, &[object(9, 0, 128), hole(6)].concat()), "start");
    let (mut writer, mut bytes) = StreamWriter::new(&begin);
    writer.object(ObjectId(10), RecordSize::BLOCK, 128, &[0; ObjectSlot::BODY_BYTES]);
    writer.hole(0, 1);
    bytes.extend(writer.finish().0);
    assert!(read(&bytes, 1000).is_ok(), "a later object begins at its first record");
}

#[test]
fn frames_of_the_other_version_are_refused() {
    let objects = begin_at(0, 0);
    assert_eq!(forged_after(&objects, KIND_CHANGES, &[]), StreamFault::Kind { kind: 2 });
    assert_eq!(forged_after(&begin(), KIND_OBJECTS, &[]), StreamFault::Kind { kind: 4 });
    // An end frame without the count of objects.
    assert!(matches!(forged_after(&objects, KIND_END, &[0; 24]), StreamFault::Format(_)));
    for bad in [begin_at(OBJECTS_MAX + 1, 0), begin_at(5, RECORDS_MAX + 1), begin_at(0, 1)] {
        let bytes = StreamWriter::new(&bad).1;
        assert!(matches!(refused(&bytes).why, StreamFault::Format(_)), "{bad:?}");
    }
    let large = StreamBegin { record_size: RecordSize::MAX, ..objects };
    assert!(matches!(refused(&StreamWriter::new(&large).1).why, StreamFault::Format(_)));
}

/// A receiver that lacks the tables of Unicode reads versions 2 and 3 only.
#[test]
fn stream_of_a_case_insensitive_filesystem_has_its_own_version() {
    let begin_of = |layer| {
        let objects = Some(StreamObjects { first: ObjectId(0), layer });
        StreamBegin { objects, ..begin_at(0, 0) }
    };
    let layer = |case| Layout { hash_key: 1, record_size: RecordSize::BLOCK, case }.encode();
    let (plain, folded) = (layer(NameCase::Sensitive), layer(NameCase::Insensitive));
    let mut unknown = folded;
    unknown[4] += 1;
    for (layer, version) in [(plain, 3), (folded, 4), (unknown, 3)] {
        let (writer, mut bytes) = StreamWriter::new(&begin_of(layer));
        assert_eq!(bytes[8..12], [version, 0, 0, 0]);
        bytes.extend(writer.finish().0);
        let frames = read(&bytes, 1000).expect("a valid stream");
        assert_eq!(frames[0], StreamFrame::Begin(begin_of(layer)));
    }
    for (layer, version) in [(plain, 4), (folded, 3), (unknown, 4)] {
        let (_, bytes) = StreamWriter::with_version(&begin_of(layer), version);
        let fault = refused(&bytes).why;
        let is_layer =
            matches!(fault, StreamFault::Format(FormatError::Field { field: "layer", .. }));
        assert!(is_layer, "{fault}");
    }
    let (_, newer) = StreamWriter::with_version(&begin_of(folded), 5);
    assert_eq!(refused(&newer).why, StreamFault::Version { found: 5 });
}
