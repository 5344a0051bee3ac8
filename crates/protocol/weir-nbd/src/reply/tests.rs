//! Tests of the reply encoder and its buffer.
//!
//! tests/all/sessions.rs checks the replies to requests.
//!
//! Invariant: expected replies are bytes from the specification.

use super::*;

const PLAIN: Negotiated =
    Negotiated { size_bytes: 1 << 20, read_only: false, structured: false, block_status: false };
const STRUCTURED: Negotiated = Negotiated { structured: true, block_status: true, ..PLAIN };
const COOKIE: u64 = 0x0102_0304_0506_0708;

fn built(build: impl FnOnce(&mut OutBuf)) -> Vec<u8> {
    let mut out = OutBuf::default();
    build(&mut out);
    out.filled().to_vec()
}

#[test]
fn simple_replies_have_the_magic_errno_and_cookie() {
    let cookie = [1, 2, 3, 4, 5, 6, 7, 8];
    let head = |errno| [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, errno][..], &cookie].concat();
    assert_eq!(built(|out| done(out, COOKIE)), head(0));
    assert_eq!(built(|out| read_header(out, &PLAIN, COOKIE, 512, 1024)), head(0));
    assert_eq!(built(|out| error(out, &PLAIN, COOKIE, Errno::NoSpc, "full")), head(28));
}

#[test]
fn structured_replies_have_type_cookie_and_length() {
    let head = |kind: [u8; 2], len| {
        let start = [0x66, 0x8e, 0x33, 0xef, 0, 1, kind[0], kind[1], 1, 2, 3, 4, 5, 6, 7, 8];
        [&start[..], &[0, 0, 0, len]].concat()
    };
    assert_eq!(
        built(|out| read_header(out, &STRUCTURED, COOKIE, 0x0200, 100)),
        [head([0, 1], 108), vec![0, 0, 0, 0, 0, 0, 2, 0]].concat()
    );
    assert_eq!(built(|out| read_header(out, &STRUCTURED, COOKIE, 0, 0)), head([0, 0], 0));
    assert_eq!(
        built(|out| error(out, &STRUCTURED, COOKIE, Errno::Io, "disk")),
        [head([0x80, 1], 10), b"\0\0\0\x05\0\x04disk".to_vec()].concat()
    );
    let long = "ä".repeat(1000);
    let bytes = built(|out| error(out, &STRUCTURED, COOKIE, Errno::Io, &long));
    assert_eq!(bytes.len(), 20 + 6 + 512);
    assert!(std::str::from_utf8(&bytes[26..]).is_ok(), "cut between characters");
}

#[test]
fn block_status_joins_and_truncates_extents() {
    let extent = |len_bytes, hole| Extent { len_bytes, hole };
    let extents = [
        extent(512, false),
        extent(512, false),
        extent(0, true),
        extent(1024, true),
        extent(1 << 40, false),
    ];
    let payload = |max, len| {
        let bytes = built(|out| assert!(block_status(out, COOKIE, len, max, &extents)));
        let length = u32::from_be_bytes(bytes[16..20].try_into().unwrap()) as usize;
        assert_eq!(bytes.len(), 20 + length);
        assert_eq!(&bytes[4..8], &[0, 1, 0, 5]);
        assert_eq!(&bytes[20..24], &[0, 0, 0, 1]);
        let number = |at: &[u8]| u32::from_be_bytes(at.try_into().unwrap());
        bytes[24..].chunks(8).map(|d| (number(&d[..4]), number(&d[4..]))).collect::<Vec<_>>()
    };
    assert_eq!(payload(16, 1 << 20), [(1024, 0), (1024, 3), ((1 << 20) - 2048, 0)]);
    assert_eq!(payload(2, 1 << 20), [(1024, 0), (1024, 3)]);
    assert_eq!(payload(1, 1 << 20), [(1024, 0)]);
    assert_eq!(payload(16, 512), [(512, 0)]);
    assert_eq!(payload(16, u32::MAX), [(1024, 0), (1024, 3), (u32::MAX - 2048, 0)]);
    assert!(!block_status(&mut OutBuf::default(), COOKIE, 512, 16, &[extent(0, true)]));
}

#[test]
fn growing_buffer_keeps_its_contents() {
    let mut out = OutBuf::with_room(10);
    let mut expected = Vec::new();
    for round in 0..200_usize {
        let bytes: Vec<u8> = (0..round * 7 % 97).map(|n| (n * round) as u8).collect();
        out.put(&bytes);
        expected.extend_from_slice(&bytes);
    }
    assert_eq!(out.filled(), expected);
    out.truncate(5);
    assert_eq!(out.space(3).len(), 3);
    assert_eq!((out.len(), &out.filled()[..5]), (8, &expected[..5]));
    assert!(!out.is_empty());
}
