//! Tests of all commands, with valid, invalid and hostile input.
//!
//! tests/all/sessions.rs checks the execution of the commands.
//!
//! Invariant: the tests write requests as literal bytes of the specification, without the encoder
//! of this crate.

use proptest::prelude::*;

use super::*;
use crate::limits::WHOLE_WRITE_BYTES_MAX;

const SIZE: u64 = 1 << 30;
const TERMS: Negotiated =
    Negotiated { size_bytes: SIZE, read_only: false, structured: true, block_status: true };
const COOKIE: u64 = 0x0102_0304_0506_0708;

fn parse<'a>(input: &'a [u8], negotiated: &Negotiated) -> Parsed<'a> {
    super::parse(input, negotiated, WHOLE_WRITE_BYTES_MAX)
}

fn bytes(flags: u16, kind: u16, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13];
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&COOKIE.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

fn accepted(negotiated: &Negotiated, flags: u16, kind: u16, offset: u64, len: u32) -> Command {
    let mut input = bytes(flags, kind, offset, len);
    if kind == 1 {
        input.resize(28 + len as usize, 7);
    }
    let whole = input.len();
    input.extend_from_slice(b"next");
    match parse(&input, negotiated) {
        Parsed::Request(request, payload, used) => {
            assert_eq!(used, whole);
            assert_eq!(payload, &input[28..whole]);
            assert_eq!((request.cookie, request.offset, request.len), (COOKIE, offset, len));
            request.command
        }
        other => panic!("{other:?}"),
    }
}

fn refused(negotiated: &Negotiated, flags: u16, kind: u16, offset: u64, len: u32) -> (u32, usize) {
    match parse(&bytes(flags, kind, offset, len), negotiated) {
        Parsed::Refuse { refusal, skip } => {
            assert_eq!(refusal.cookie, COOKIE);
            (refusal.errno as u32, skip)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn valid_commands_and_flags_are_accepted() {
    let ok = |flags, kind| accepted(&TERMS, flags, kind, 4096, 512);
    assert_eq!(ok(0, 0), Command::Read { whole: false });
    assert_eq!(
        ok(1 | 4, 0),
        Command::Read { whole: true },
        "FUA is taken on all commands, DF on reads"
    );
    assert_eq!(ok(0, 1), Command::Write { fua: false });
    assert_eq!(ok(1, 1), Command::Write { fua: true });
    assert_eq!(ok(1, 4), Command::Zero { punch: true, fua: true, fast: false });
    assert_eq!(ok(0, 5), Command::Cache);
    assert_eq!(ok(0, 6), Command::Zero { punch: true, fua: false, fast: false });
    assert_eq!(ok(2 | 16, 6), Command::Zero { punch: false, fua: false, fast: true });
    assert_eq!(ok(8, 7), Command::BlockStatus { one: true });
    assert_eq!(ok(0, 7), Command::BlockStatus { one: false });
    assert_eq!(accepted(&TERMS, 0, 2, 0, 0), Command::Disconnect);
    assert_eq!(accepted(&TERMS, 1, 3, 0, 0), Command::Flush);
}

#[test]
fn unknown_commands_and_flags_are_invalid() {
    for kind in [8, 9, 100, u16::MAX] {
        assert_eq!(refused(&TERMS, 0, kind, 0, 512), (22, 28));
    }
    for (kind, flags) in
        [(0, 2), (0, 8), (1, 4), (1, 32), (3, 2), (4, 16), (5, 4), (6, 4), (7, 4), (0, 0x8000)]
    {
        let len = if kind == 3 { 0 } else { 512 };
        let skip = if kind == 1 { 28 + 512 } else { 28 };
        assert_eq!(refused(&TERMS, flags, kind, 0, len), (22, skip), "{kind} {flags}");
    }
    let plain = Negotiated { structured: false, block_status: false, ..TERMS };
    assert_eq!(refused(&plain, 4, 0, 0, 512).0, 22, "DF without structured replies");
    assert_eq!(refused(&plain, 0, 7, 0, 512).0, 22, "no metadata context");
    assert_eq!(refused(&TERMS, 0, 7, 0, 0).0, 22, "block status of nothing");
    assert_eq!(refused(&TERMS, 0, 3, 0, 512).0, 22, "flush with a range");
}

#[test]
fn ranges_are_checked() {
    for (kind, outside) in [(0, 22), (1, 28), (4, 22), (5, 22), (6, 28), (7, 22)] {
        let skip = |len: u32| if kind == 1 { 28 + len as usize } else { 28 };
        accepted(&TERMS, 0, kind, SIZE - 512, 512);
        for (offset, len) in
            [(SIZE, 512), (SIZE - 512, 1024), (u64::MAX - 511, 512), (u64::MAX - 511, 1024)]
        {
            assert_eq!(refused(&TERMS, 0, kind, offset, len), (outside, skip(len)), "{kind}");
        }
        for (offset, len) in [(1, 512), (0, 511), (511, 1), (0, 4097)] {
            assert_eq!(refused(&TERMS, 0, kind, offset, len), (22, skip(len)), "{kind}");
        }
        if kind != 7 {
            accepted(&TERMS, 0, kind, 0, 0);
            accepted(&TERMS, 0, kind, SIZE, 0);
        }
    }
}

#[test]
fn lengths_are_checked() {
    let max = 32 << 20;
    accepted(&TERMS, 0, 0, 0, max);
    accepted(&TERMS, 0, 1, 512, (128 << 10) - 512);
    assert!(matches!(parse(&bytes(0, 1, 512, max - 512), &TERMS), Parsed::LongWrite(_)));
    assert!(matches!(parse(&bytes(0, 1, 0, max), &TERMS), Parsed::LongWrite(_)));
    accepted(&TERMS, 0, 6, 0, SIZE as u32);
    assert_eq!(refused(&TERMS, 0, 0, 0, max + 512).0, 22);
    assert_eq!(refused(&TERMS, 4, 0, 0, max + 512).0, 75, "EOVERFLOW where DF was asked for");
    assert_eq!(refused(&TERMS, 0, 1, 0, max + 512), (22, (max + 512 + 28) as usize));
    for len in [(64 << 20) + 1, u32::MAX] {
        let input = bytes(0, 1, 0, len);
        let parsed = parse(&input, &TERMS);
        assert!(matches!(parsed, Parsed::Close(NbdError::WriteTooLong { .. })), "{parsed:?}");
    }
}

#[test]
fn read_only_export_refuses_writes() {
    let negotiated = Negotiated { read_only: true, ..TERMS };
    for kind in [1, 4, 6] {
        assert_eq!(refused(&negotiated, 0, kind, 0, 512).0, 1, "{kind}");
        // A write to a read-only export gets EPERM even if its range is also invalid.
        assert_eq!(refused(&negotiated, 0, kind, 1, 512).0, 1, "{kind}");
    }
    for kind in [0, 5, 7] {
        accepted(&negotiated, 0, kind, 0, 512);
    }
    accepted(&negotiated, 0, 3, 0, 0);
}

#[test]
fn wrong_request_magic_ends_the_connection() {
    let mut input = bytes(0, 0, 0, 512);
    input[0] = b'G';
    let parsed = parse(&input, &TERMS);
    assert!(matches!(parsed, Parsed::Close(NbdError::RequestMagic { .. })), "{parsed:?}");
}

#[test]
fn partial_request_waits_for_more_input() {
    let mut input = bytes(0, 1, 0, 1024);
    input.resize(28 + 1024, 1);
    for end in 0..input.len() {
        let expected = if end < 28 { 28 } else { 28 + 1024 };
        assert!(matches!(parse(&input[..end], &TERMS), Parsed::Need(need) if need == expected));
    }
}

#[test]
fn large_write_is_processed_while_it_arrives() {
    let negotiated = Negotiated { size_bytes: 1 << 30, ..TERMS };
    let long = |offset, len| {
        matches!(parse(&bytes(1, 1, offset, len), &negotiated), Parsed::LongWrite(request)
            if (request.offset, request.len) == (offset, len)
                && request.command == Command::Write { fua: true })
    };
    assert!(long(4096, 128 << 10) && long(0, 32 << 20) && long(512, 128 << 10));
    assert!(!long(0, (128 << 10) - 512) && !long(0, 64 << 10));
    assert!(!long((1 << 30) - 4096, 128 << 10), "checked before it is taken");
}

proptest! {
    #[test]
    fn hostile_request_bytes_never_panic(
        requests in prop::collection::vec(
            (any::<u16>(), 0_u16..12, any::<u64>(), 0_u32..3000, prop::bool::weighted(0.8)),
            0..20,
        ),
        rest in prop::collection::vec(any::<u8>(), 0..4000),
        read_only in any::<bool>(),
        structured in any::<bool>(),
    ) {
        let negotiated = Negotiated { read_only, structured, ..TERMS };
        let mut input = Vec::new();
        for (flags, kind, offset, len, tame) in requests {
            let (flags, offset, len) = if tame {
                (flags & 31, offset % (2 * SIZE), len & !511)
            } else {
                (flags, offset, len)
            };
            input.extend(bytes(flags, kind, offset & !511, len));
            if kind == 1 {
                input.resize(input.len() + len as usize, 0);
            }
        }
        input.extend(rest);
        let mut at = 0;
        while let Some(left) = input.get(at..) {
            match parse(left, &negotiated) {
                Parsed::Request(request, payload, used) => {
                    prop_assert!(used == 28 + payload.len());
                    at += used;
                    if request.command == Command::Disconnect {
                        continue; // DISC ignores its range
                    }
                    prop_assert!(request.offset + u64::from(request.len) <= SIZE);
                    prop_assert!(request.len % 512 == 0 && request.offset % 512 == 0);
                }
                Parsed::Refuse { skip, .. } => {
                    prop_assert!(skip >= 28);
                    at += skip;
                }
                Parsed::Need(need) => {
                    prop_assert!(need > left.len());
                    break;
                }
                Parsed::LongWrite(_) | Parsed::Close(_) => break,
            }
        }
    }
}
