//! Send streams with valid checksums and invalid fields.
//!
//! The module `exercise` receives the streams.
//!
//! Invariant: each frame has valid checksums, which also cover the preceding frames, whatever the
//! contents of the frames.

use weir_codec::checksum::{xxh3_64, xxh3_128, xxh3_128_of};

use crate::forgery::change;
use crate::rng::Rng;

const PREAMBLE_BYTES: usize = 16;
const HEADER_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 16;
/// Length of the fields that precede the bytes of a change: code, first record, stored size,
/// checksum.
const CHANGE_BYTES: usize = 1 + 8 + 2 + 16;

/// Kind and payload of a frame.
type Frame = (u8, Vec<u8>);

/// Splits a valid stream into frames.
fn frames(stream: &[u8]) -> Vec<Frame> {
    let (mut rest, mut frames) = (&stream[PREAMBLE_BYTES..], Vec::new());
    while let Some((header, after)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let len = u32::from_le_bytes(*header[4..].first_chunk().expect("four bytes")) as usize;
        frames.push((header[0], after[..len].to_vec()));
        rest = &after[len + CHECKSUM_BYTES..];
    }
    frames
}

/// Builds a stream of these frames.
fn seal(preamble: &[u8], frames: &[Frame]) -> Vec<u8> {
    let mut stream = preamble.to_vec();
    let mut chain = xxh3_128(preamble);
    for (kind, payload) in frames {
        let mut header = [0; HEADER_BYTES];
        header[0] = *kind;
        header[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        let check = xxh3_64(&[&chain.to_le_bytes(), &header[..8]]);
        header[8..].copy_from_slice(&check.to_le_bytes());
        chain = xxh3_128_of(&[&chain.to_le_bytes(), &header, payload]);
        stream.extend(header);
        stream.extend(payload);
        stream.extend(chain.to_le_bytes());
    }
    stream
}

/// Changes a field of a frame, or inserts, removes or swaps frames.
pub fn forge_stream(stream: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut frames = frames(stream);
    for _ in 0..=rng.below(3) {
        let (at, other) = (rng.below(frames.len()), rng.below(frames.len()));
        let len = rng.below(frames[at].1.len());
        match rng.below(12) {
            0 => drop(frames.remove(at)),
            1 => frames.insert(at, frames[other].clone()),
            2 => frames.swap(at, other),
            3 => frames[at].0 = rng.below(6) as u8,
            4 => frames[at].1.truncate(len),
            _ => forge_payload(&mut frames[at].1, rng),
        }
        if frames.is_empty() {
            break;
        }
    }
    seal(&stream[..PREAMBLE_BYTES], &frames)
}

fn forge_payload(payload: &mut [u8], rng: &mut Rng) {
    if payload.is_empty() {
        return;
    }
    // Change the first fields of the payload, which precede the data, more often than the rest.
    let most = if rng.below(4) == 0 { payload.len() } else { payload.len().min(2 * CHANGE_BYTES) };
    change(payload, rng.below(most), rng);
    if rng.below(2) == 0 && payload.len() > CHANGE_BYTES && payload[0] > 0 {
        let units = u16::from_le_bytes([payload[9], payload[10]]);
        let end = CHANGE_BYTES + usize::from(units) * 64;
        if let Some(stored) = payload.get(CHANGE_BYTES..end) {
            let checksum = xxh3_128(stored).to_le_bytes();
            payload[11..CHANGE_BYTES].copy_from_slice(&checksum);
        }
    }
}
