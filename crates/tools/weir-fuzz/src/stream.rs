//! Fuzzes the reader of send streams, of volumes and of datasets with many objects: any bytes, any
//! bytes after a valid begin frame, and any payloads with valid checksums.
//!
//! `forged` fuzzes the receive, which applies the frames.
//!
//! Invariants: no panic; the result does not depend on how the input is split into reads; the
//! changes are in ascending order and inside the volume or object; an accepted stream survives
//! encoding and decoding.

use std::collections::BTreeSet;

use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_codec::checksum::{xxh3_64, xxh3_128, xxh3_128_of};
use weir_format::stream::{
    ResumeToken, StreamBegin, StreamEntry, StreamError, StreamFrame, StreamObjects, StreamReader,
    StreamWriter,
};
use weir_format::{Codec, Compression, ObjectSlot};

const BLOCKS: u64 = 1000;
/// Bytes of the layer above in a slot.
const BODY: [u8; ObjectSlot::BODY_BYTES] = [3; ObjectSlot::BODY_BYTES];
const PREAMBLE_BYTES: usize = 16;

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    check(data);
    if let Some(token) = std::str::from_utf8(data).ok().and_then(|text| text.parse().ok()) {
        let token: ResumeToken = token;
        assert_eq!(token.to_string().parse(), Ok(token));
    }
    for begin in [begin(), begin_of_objects()] {
        let (_, start) = StreamWriter::new(&begin);
        check(&[&start, data].concat());
        let Some((kind, payload)) = data.split_first() else { return };
        // Read the payload as the begin frame, and as a frame after a valid begin frame.
        let (preamble, _) = start.split_at(PREAMBLE_BYTES);
        check(&[preamble, &frame(xxh3_128(preamble), *kind, payload)].concat());
        let last = u128::from_le_bytes(*start.last_chunk().expect("a checksum"));
        check(&[&start[..], &frame(last, *kind, payload)].concat());
    }
}

/// A stream, the payloads of its frames, and a resume token.
pub fn seeds() -> Vec<Vec<u8>> {
    let (mut writer, start) = StreamWriter::new(&begin());
    let stored = [7; 128];
    writer.record(0, Codec::Lz4, &stored, xxh3_128(&stored));
    writer.hole(1, 9);
    writer.record(12, Codec::Raw, &[1; BLOCK_BYTES], xxh3_128(&[1; BLOCK_BYTES]));
    writer.hole(500, 500);
    let (rest, _) = writer.finish();
    let next_object = ObjectId::VOLUME;
    let token = ResumeToken { to: 2, from: Some(1), next_object, next_record: 7 };
    let token = token.to_string().into_bytes();
    let of_volume = [&start[..], &rest].concat();
    let (mut writer, start) = StreamWriter::new(&begin_of_objects());
    writer.object(ObjectId(4), RecordSize::BLOCK, 128, &BODY);
    writer.record(5, Codec::Lz4, &stored, xxh3_128(&stored));
    writer.hole(6, 122);
    writer.unused(5..8);
    writer.object(ObjectId(8), RecordSize::from_shift(2).expect("at most 8"), 0, &BODY);
    let (rest, _) = writer.finish();
    let of_objects = [&start[..], &rest].concat();
    let next_object = ObjectId(9);
    let object_token = ResumeToken { to: 2, from: None, next_object, next_record: 7 };
    let mut seeds = vec![token, object_token.to_string().into_bytes()];
    seeds.push(StreamWriter::new(&begin()).0.finish().0);
    for stream in [&of_volume, &of_objects] {
        let mut frames = &stream[PREAMBLE_BYTES..];
        // A frame: the kind, the length at offset 4, the payload at offset 16, and a checksum of 16
        // bytes.
        while let [kind, _, _, _, a, b, c, d, ..] = *frames {
            let end = 16 + u32::from_le_bytes([a, b, c, d]) as usize;
            seeds.push([&[kind], &frames[16..end]].concat());
            frames = &frames[end + 16..];
        }
    }
    seeds.extend([of_volume, of_objects]);
    seeds
}

fn begin() -> StreamBegin {
    StreamBegin {
        to: 2,
        from: Some(1),
        is_clone: false,
        compression: Compression::Off,
        first_record: 0,
        size_bytes: BLOCKS * BLOCK_BYTES as u64,
        record_size: RecordSize::BLOCK,
        created_unix_ms: 0,
        volume: "v".to_owned(),
        snapshot: "s".to_owned(),
        objects: None,
    }
}

/// The begin frame of a dataset with many objects, whose stream resumes inside an object.
fn begin_of_objects() -> StreamBegin {
    let objects = Some(StreamObjects { first: ObjectId(4), layer: [1; 40] });
    StreamBegin { first_record: 3, size_bytes: 0, objects, ..begin() }
}

/// Builds a frame of any payload, with valid checksums.
fn frame(before: u128, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(xxh3_64(&[&before.to_le_bytes(), &bytes]).to_le_bytes());
    let checksum = xxh3_128_of(&[&before.to_le_bytes(), &bytes, payload]);
    bytes.extend_from_slice(payload);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

fn read(bytes: &[u8], piece: usize) -> (Vec<StreamFrame>, Result<(), StreamError>) {
    let mut reader = StreamReader::default();
    let mut frames = Vec::new();
    for piece in bytes.chunks(piece) {
        reader.push(piece);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Err(error)),
            }
        }
    }
    (frames, reader.finish())
}

fn check(bytes: &[u8]) {
    let (frames, end) = read(bytes, bytes.len().max(1));
    assert_eq!(read(bytes, 7), (frames.clone(), end));
    let mut writer: Option<StreamWriter> = None;
    let mut again = Vec::new();
    for frame in &frames {
        match frame {
            StreamFrame::Begin(begin) => {
                let (begun, start) = StreamWriter::new(begin);
                (writer, again) = (Some(begun), start);
            }
            StreamFrame::Changes(changes) => {
                let writer = writer.as_mut().expect("a begin comes first");
                for (change, stored) in changes.iter() {
                    match stored {
                        Some((codec, stored)) => {
                            writer.record(change.start, codec, stored, xxh3_128(stored));
                        }
                        None => writer.hole(change.start, change.count),
                    }
                    again.extend(writer.full_frame().into_iter().flatten());
                }
            }
            StreamFrame::Objects(entries) => {
                let writer = writer.as_mut().expect("a begin comes first");
                for entry in entries.iter() {
                    put_entry(writer, &entry);
                    again.extend(writer.full_frame().into_iter().flatten());
                }
            }
            StreamFrame::End(counts) => {
                let (rest, written) = writer.take().expect("one end").finish();
                assert_eq!(written, *counts);
                again.extend(rest);
            }
        }
    }
    if let Some(writer) = writer {
        again.extend(writer.finish().0);
    }
    let (frames_again, end) = read(&again, 4096);
    assert_eq!(end.is_ok(), frames.iter().any(|frame| matches!(frame, StreamFrame::Begin(_))));
    assert_eq!(changes(&frames_again), changes(&frames));
    assert_eq!(objects(&frames_again), objects(&frames));
}

fn put_entry(writer: &mut StreamWriter, entry: &StreamEntry<'_>) {
    match entry {
        StreamEntry::Object { object, size, records, body } => {
            writer.object(*object, *size, *records, body);
        }
        StreamEntry::Unused { objects } => writer.unused(objects.clone()),
        StreamEntry::Change { change, stored: Some((codec, stored)), .. } => {
            writer.record(change.start, *codec, stored, xxh3_128(stored));
        }
        StreamEntry::Change { change, stored: None, .. } => writer.hole(change.start, change.count),
    }
}

/// Returns the objects and their data in these frames, and the numbers at which ranges of holes or
/// of unused objects begin and end. Adjacent ranges are merged.
fn objects(frames: &[StreamFrame]) -> (Vec<String>, BTreeSet<(u64, u64)>) {
    let (mut entries, mut bounds) = (Vec::new(), BTreeSet::new());
    // If a number ends one range and begins the next, it is no bound of the merged range.
    let mut toggle = |bound| {
        if !bounds.remove(&bound) {
            bounds.insert(bound);
        }
    };
    for frame in frames {
        let StreamFrame::Objects(of_frame) = frame else { continue };
        for entry in of_frame.iter() {
            match &entry {
                StreamEntry::Unused { objects } => {
                    toggle((0, objects.start));
                    toggle((0, objects.end));
                }
                StreamEntry::Change { object, change, stored: None, .. } => {
                    toggle((object.0, change.start));
                    toggle((object.0, change.start + change.count));
                }
                StreamEntry::Change { object, change, stored, .. } => {
                    entries.push(format!("{object:?} {} {stored:?}", change.start));
                }
                StreamEntry::Object { .. } => entries.push(format!("{entry:?}")),
            }
        }
    }
    (entries, bounds)
}

/// Returns all changes in these frames; adjacent holes are merged.
fn changes(frames: &[StreamFrame]) -> Vec<(u64, u64, Option<Vec<u8>>)> {
    let mut all: Vec<(u64, u64, Option<Vec<u8>>)> = Vec::new();
    for frame in frames {
        let StreamFrame::Changes(changes) = frame else { continue };
        for (change, stored) in changes.iter() {
            match (all.last_mut(), stored) {
                (Some((start, count, None)), None) if *start + *count == change.start => {
                    *count += change.count;
                }
                (_, stored) => {
                    all.push((change.start, change.count, stored.map(|(_, s)| s.to_vec())));
                }
            }
        }
    }
    all
}
