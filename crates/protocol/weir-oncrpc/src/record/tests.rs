//! Tests of record marking.

use proptest::prelude::*;

use super::*;

const MAX: usize = 1 << 16;

fn mark(len: usize, is_last: bool) -> [u8; 4] {
    (if is_last { LAST } else { 0 } | len as u32).to_be_bytes()
}

/// Encodes a record of these fragments.
fn stream(fragments: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, fragment) in fragments.iter().enumerate() {
        bytes.extend(mark(fragment.len(), index + 1 == fragments.len()));
        bytes.extend(fragment);
    }
    bytes
}

#[test]
fn incomplete_record_of_one_fragment_shows_its_head_and_its_missing_bytes() {
    let mut input = [&mark(100, true)[..], b"head of a call"].concat();
    let framed = frame(&mut input, MAX);
    assert_eq!(framed, Ok(Framed::Need { bytes: 104, head: b"head of a call" }));
}

#[test]
fn record_limit_covers_all_fragments_together() {
    let fragment = vec![7; MAX / 2];
    let mut input = stream(&[fragment.clone(), fragment.clone()]);
    assert!(
        matches!(frame(&mut input, MAX), Ok(Framed::Record { record, .. }) if record.len() == MAX)
    );
    let mut input = stream(&[fragment.clone(), fragment, vec![7]]);
    let too_long = RecordError::TooLong { bytes: MAX + 1, max: MAX };
    assert_eq!(frame(&mut input, MAX), Err(too_long));
    // The mark alone is enough to reject the record.
    let too_long = RecordError::TooLong { bytes: 0x7fff_ffff, max: MAX };
    assert_eq!(frame(&mut [0xff; 4], MAX), Err(too_long));
}

#[test]
fn endless_empty_fragments_are_rejected() {
    let mut input = vec![0; MARK_BYTES * FRAGMENTS_MAX];
    assert_eq!(frame(&mut input, MAX), Err(RecordError::TooManyFragments));
    input.truncate(MARK_BYTES * (FRAGMENTS_MAX - 1));
    let need = Framed::Need { bytes: MARK_BYTES * FRAGMENTS_MAX, head: &[] };
    assert_eq!(frame(&mut input, MAX), Ok(need));
    input.extend(mark(0, true));
    let used = input.len();
    assert_eq!(frame(&mut input, MAX), Ok(Framed::Record { record: b"", used }));
}

#[test]
fn mark_counts_bytes_that_follow_from_other_buffers() {
    let mut out = OutBuf::default();
    out.put(b"earlier reply");
    let start = RecordStart::begin(&mut out);
    out.put(b"12345678");
    start.finish(&mut out, 4096);
    assert_eq!(out.filled(), [&b"earlier reply"[..], &mark(4104, true), b"12345678"].concat());
}

proptest! {
    #[test]
    fn records_are_found_at_any_split(
        records in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..5), 1..5),
        piece in 1_usize..50,
    ) {
        let bytes: Vec<u8> = records.iter().flat_map(|fragments| stream(fragments)).collect();
        let mut found = Vec::new();
        let mut input = Vec::new();
        for piece in bytes.chunks(piece) {
            input.extend(piece);
            loop {
                let received = input.len();
                match frame(&mut input, MAX).expect("short records") {
                    Framed::Need { bytes, .. } => {
                        prop_assert!(bytes > received);
                        break;
                    }
                    Framed::Record { record, used } => {
                        found.push(record.to_vec());
                        input.drain(..used);
                    }
                }
            }
        }
        prop_assert!(input.is_empty());
        let expected: Vec<Vec<u8>> = records.iter().map(|fragments| fragments.concat()).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn hostile_streams_are_framed_or_rejected(
        mut input in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let received = input.len();
        match frame(&mut input, 48) {
            Ok(Framed::Need { bytes, .. }) => prop_assert!(bytes > received),
            Ok(Framed::Record { record, used }) => {
                prop_assert!(record.len() + MARK_BYTES <= used && used <= received);
            }
            Err(_) => {}
        }
    }
}
