//! Tests of the stream: round trips, and refusal of hostile streams at the faulty frame.

use proptest::prelude::*;
use weir_base::BLOCK_BYTES;
use weir_codec::checksum::xxh3_128;

use super::*;

mod objects;

const BLOCKS: u64 = 4096;

fn begin() -> StreamBegin {
    StreamBegin {
        to: 7,
        from: Some(6),
        is_clone: false,
        compression: Compression::Lz4,
        first_record: 0,
        size_bytes: BLOCKS * BLOCK_BYTES as u64,
        record_size: RecordSize::BLOCK,
        created_unix_ms: 5,
        volume: "vm1".to_owned(),
        snapshot: "monday".to_owned(),
        objects: None,
    }
}

/// A stream of several frames, and the byte range of each frame.
fn stream() -> (Vec<u8>, Vec<Range<usize>>) {
    let (mut writer, mut bytes) = StreamWriter::new(&begin());
    let mut frames: Vec<_> = std::iter::once(16..bytes.len()).collect();
    let mut add = |bytes: &mut Vec<u8>, frame: Vec<u8>| {
        frames.push(bytes.len()..bytes.len() + frame.len());
        bytes.extend(frame);
    };
    for index in 0..200_u64 {
        let stored = [index as u8; BLOCK_BYTES];
        writer.record(index * 3, Codec::Raw, &stored, xxh3_128(&stored));
        writer.hole(index * 3 + 1, 2);
        if let Some(frame) = writer.full_frame() {
            add(&mut bytes, frame);
        }
    }
    let (rest, counts) = writer.finish();
    assert_eq!((counts.records, counts.hole_records), (200, 400));
    // The end frame has 24 bytes of payload and 32 bytes of header and checksum.
    let end = rest.len() - 56;
    let (changes, end) = rest.split_at(end);
    add(&mut bytes, changes.to_vec());
    add(&mut bytes, end.to_vec());
    (bytes, frames)
}

/// Returns all frames of a stream that arrives in pieces of this size.
fn read(bytes: &[u8], piece: usize) -> Result<Vec<StreamFrame>, StreamError> {
    let mut reader = StreamReader::default();
    let mut frames = Vec::new();
    for piece in bytes.chunks(piece) {
        reader.push(piece);
        while let Some(frame) = reader.next_frame()? {
            frames.push(frame);
        }
    }
    reader.finish()?;
    Ok(frames)
}

fn refused(bytes: &[u8]) -> StreamError {
    let error = read(bytes, 5000).expect_err("a bad stream");
    let mut reader = StreamReader::default();
    reader.push(bytes);
    let again = loop {
        match reader.next_frame() {
            Ok(Some(_)) => {}
            Ok(None) => break reader.finish().expect_err("a bad stream"),
            Err(again) => break again,
        }
    };
    assert_eq!(again, error, "however it comes");
    assert_eq!(reader.next_frame(), Err(again), "for ever");
    error
}

#[test]
fn stream_round_trips_in_pieces_of_any_size() {
    let (bytes, places) = stream();
    for piece in [1, 17, 4096, 1 << 20] {
        let frames = read(&bytes, piece).expect("a good stream");
        assert_eq!(frames.len(), places.len());
        assert_eq!(frames[0], StreamFrame::Begin(begin()));
        let mut seen = 0;
        for frame in &frames {
            let StreamFrame::Changes(changes) = frame else { continue };
            for (change, stored) in changes.iter() {
                match stored {
                    Some((codec, stored)) => {
                        assert_eq!((codec, change.count), (Codec::Raw, 1));
                        assert_eq!(stored, [(change.start / 3) as u8; BLOCK_BYTES]);
                    }
                    None => assert_eq!((change.start % 3, change.count), (1, 2)),
                }
                seen += 1;
            }
        }
        assert_eq!(seen, 400);
    }
}

#[test]
fn bad_stream_is_refused_at_the_faulty_frame() {
    let (bytes, frames) = stream();
    assert!(frames.len() > 4, "{}", frames.len());
    for (number, place) in frames.iter().enumerate() {
        let at = |error: &StreamError| (error.frame as usize, error.offset as usize);
        for byte in [place.start, place.start + 5, place.start + 20, place.end - 1] {
            let mut damaged = bytes.clone();
            damaged[byte] ^= 0x10;
            let error = refused(&damaged);
            assert_eq!(at(&error), (number, place.start), "{error}");
            assert_eq!(error.why, StreamFault::Checksum);
        }
        for cut in [place.start, place.start + 3, place.start + 30, place.end - 1] {
            let error = refused(&bytes[..cut]);
            assert_eq!(at(&error), (number, place.start), "{error}");
            assert!(error.is_cut());
        }
        if let Some(next) = frames.get(number + 1) {
            let mut swapped = bytes[..place.start].to_vec();
            swapped.extend(&bytes[next.clone()]);
            swapped.extend(&bytes[place.clone()]);
            swapped.extend(&bytes[next.end..]);
            let error = refused(&swapped);
            assert_eq!((at(&error), error.why), ((number, place.start), StreamFault::Checksum));
            let mut left_out = bytes[..place.start].to_vec();
            left_out.extend(&bytes[place.end..]);
            assert_eq!(at(&refused(&left_out)), (number, place.start));
        }
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(refused(&longer).why, StreamFault::Trailing);
}

#[test]
fn foreign_streams_are_refused_at_once() {
    let (mut bytes, _) = stream();
    bytes[8] = 9;
    assert_eq!(refused(&bytes).why, StreamFault::Version { found: 9 });
    assert_eq!(refused(b"no stream").why, StreamFault::Magic);
    assert!(refused(b"WEIRSE").is_cut());
    assert!(refused(b"").is_cut());
}

/// Returns the fault that the reader reports for a stream whose second frame has this payload and
/// correct checksums.
fn forged(kind: u8, payload: &[u8]) -> StreamFault {
    forged_after(&begin(), kind, payload)
}

fn forged_after(begin: &StreamBegin, kind: u8, payload: &[u8]) -> StreamFault {
    let (mut writer, mut bytes) = StreamWriter::new(begin);
    writer.frame(kind, payload, &mut bytes);
    let error = refused(&bytes);
    assert_eq!(error.frame, 1);
    error.why
}

#[test]
fn frame_beyond_the_limit_is_refused_before_its_payload() {
    // A preamble and a frame header with a correct check.
    let begun = |length: u32| {
        let (_, stream) = StreamWriter::new(&begin());
        let mut bytes = stream[..PREAMBLE_BYTES].to_vec();
        let start = [[KIND_BEGIN, 0, 0, 0], length.to_le_bytes()].concat();
        let check = Chain::new(&bytes).check(&start);
        bytes.extend(start);
        bytes.extend(check.to_le_bytes());
        bytes
    };
    let most = 3 << 19;
    let mut reader = StreamReader::default();
    reader.push(&begun(most));
    assert_eq!(reader.next_frame(), Ok(None), "its payload is waited for");
    let error = refused(&begun(most + 1));
    let is_length = matches!(
        error.why,
        StreamFault::Format(FormatError::Field { field: "length", value: 1_572_865, .. })
    );
    assert!(is_length, "{error}");
}

#[test]
fn fields_with_a_correct_checksum_are_validated() {
    let hole = |start: u64, count: u64| {
        [vec![0], start.to_le_bytes().to_vec(), count.to_le_bytes().to_vec()].concat()
    };
    for (start, count) in [(0, 0), (BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 2), (1, u64::MAX)] {
        assert!(matches!(forged(KIND_CHANGES, &hole(start, count)), StreamFault::Format(_)));
    }
    let back = [hole(5, 2), hole(6, 1)].concat();
    assert!(matches!(forged(KIND_CHANGES, &back), StreamFault::Format(_)));
    for code in [1, 2, 4, 255] {
        let block = [vec![code], 0_u64.to_le_bytes().to_vec(), vec![65], vec![0; 5000]].concat();
        assert!(matches!(forged(KIND_CHANGES, &block), StreamFault::Format(_)), "{code}");
    }
    assert!(matches!(forged(KIND_END, &[1; 24]), StreamFault::Format(_)));
    assert!(matches!(forged(KIND_BEGIN, &[1; 24]), StreamFault::Kind { .. }));
    assert!(matches!(forged(9, &[]), StreamFault::Kind { kind: 9 }));
}

#[test]
fn changed_or_truncated_token_is_refused() {
    let next_object = weir_base::ObjectId::VOLUME;
    let token = ResumeToken { to: 99, from: Some(u64::MAX), next_object, next_record: 12345 };
    let text = token.to_string();
    assert!(text.starts_with("weir1-"));
    assert_eq!(text.parse(), Ok(token));
    let of_object = ResumeToken { next_object: weir_base::ObjectId(1 << 40), ..token };
    let other = of_object.to_string();
    assert!(other.starts_with("weir2-"));
    assert_eq!(other.parse(), Ok(of_object));
    assert_eq!(other.replace("weir2-", "weir1-").parse::<ResumeToken>(), Err(TokenError));
    assert_eq!(text.replace("weir1-", "weir2-").parse::<ResumeToken>(), Err(TokenError));
    assert_eq!(format!(" {text}\n").parse(), Ok(token));
    let none = ResumeToken { from: None, ..token };
    assert_eq!(none.to_string().parse(), Ok(none));
    for at in 0..text.len() {
        let mut other = text.clone().into_bytes();
        other[at] = if other[at] == b'0' { b'1' } else { b'0' };
        let other = String::from_utf8(other).expect("digits");
        assert_eq!(other.parse::<ResumeToken>(), Err(TokenError), "{at}");
        assert_eq!(text[..at].parse::<ResumeToken>(), Err(TokenError));
    }
}

proptest! {
    #[test]
    fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        drop(read(&bytes, 7));
        let mut behind = StreamWriter::new(&begin()).1;
        behind.extend(bytes);
        assert!(read(&behind, 50).is_err());
    }
}
