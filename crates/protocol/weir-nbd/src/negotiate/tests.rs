//! Tests of all options, with valid, invalid and hostile input.
//!
//! The tests of sockets and time limits are in tests/all/sessions.rs.
//!
//! Invariant: expected replies are bytes from the specification, independent of the encoder.

use proptest::prelude::*;

use super::*;
use crate::memory::{Memory, MemoryExports};

fn exports() -> MemoryExports {
    MemoryExports::default()
        .with("one", Memory::new(1 << 20))
        .with("two", Memory::new(8192).read_only())
}

fn start(flags: u32) -> Negotiation {
    let mut out = Vec::new();
    let mut negotiation = Negotiation::new(&mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\x00\x03");
    out.clear();
    let (used, step) = negotiation.feed(&flags.to_be_bytes(), &exports(), &mut out);
    assert!(matches!(step, Step::Next), "{step:?}");
    assert_eq!((used, out.len()), (4, 0));
    negotiation
}

fn message(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// Sends one option. Returns the replies as (type, data), and the step that `feed` returned.
fn ask(negotiation: &mut Negotiation, option: u32, data: &[u8]) -> (Vec<(u32, Vec<u8>)>, Step) {
    let bytes = message(option, data);
    let mut out = Vec::new();
    let (used, step) = negotiation.feed(&bytes, &exports(), &mut out);
    assert_eq!(used, bytes.len());
    (replies(&out, option), step)
}

/// Parses the replies to an option into (type, data).
fn replies(bytes: &[u8], option: u32) -> Vec<(u32, Vec<u8>)> {
    let mut reader = Reader::new(bytes);
    let mut replies = Vec::new();
    while !reader.rest().is_empty() {
        assert_eq!(reader.u64(), Some(0x0003_e889_0455_65a9));
        assert_eq!(reader.u32(), Some(option));
        let kind = reader.u32().unwrap();
        let len = reader.u32().unwrap() as usize;
        replies.push((kind, reader.bytes(len).unwrap().to_vec()));
    }
    replies
}

fn kinds(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
    replies.iter().map(|(kind, _)| *kind).collect()
}

fn info_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|one| one.to_be_bytes()));
    data
}

fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend_from_slice(&(query.len() as u32).to_be_bytes());
        data.extend_from_slice(query.as_bytes());
    }
    data
}

const FIXED: u32 = 3;
const ACK: u32 = 1;
const INVALID: u32 = 0x8000_0003;
const UNKNOWN: u32 = 0x8000_0006;
const UNSUP: u32 = 0x8000_0001;
const TLS_REQD: u32 = 0x8000_0005;

#[test]
fn unknown_client_flags_end_the_handshake() {
    let mut out = Vec::new();
    let mut negotiation = Negotiation::new(&mut out);
    let (_, step) = negotiation.feed(b"GET / HTTP/1.1\r\n", &exports(), &mut out);
    assert!(matches!(step, Step::Close(NbdError::ClientFlags { .. })), "{step:?}");
}

#[test]
fn without_fixed_newstyle_only_export_name_works() {
    let (_, step) = ask(&mut start(0), 3, &[]);
    assert!(matches!(step, Step::Close(NbdError::NotFixed { option: 3 })), "{step:?}");
    let mut out = Vec::new();
    let (_, step) = start(0).feed(&message(1, b"one"), &exports(), &mut out);
    assert!(matches!(step, Step::Ready(_)), "{step:?}");
    assert_eq!(out.len(), 10 + 124, "padding, since NO_ZEROES was not agreed on");
}

#[test]
fn export_name_answers_size_and_flags() {
    let mut out = Vec::new();
    let (_, step) = start(FIXED).feed(&message(1, b"two"), &exports(), &mut out);
    let Step::Ready(ready) = step else { panic!("{step:?}") };
    assert_eq!(ready.name, "two");
    assert!(ready.negotiated.read_only && !ready.negotiated.structured);
    // Transmission flags of the read-only export: HAS_FLAGS, READ_ONLY, FLUSH, MULTI_CONN and
    // CACHE.
    assert_eq!(out, [&8192_u64.to_be_bytes()[..], &0x0507_u16.to_be_bytes()].concat());

    for name in [&b"three"[..], b"", b"\xff", &[b'x'; 5000]] {
        out.clear();
        let (_, step) = start(FIXED).feed(&message(1, name), &exports(), &mut out);
        assert!(matches!(step, Step::Close(NbdError::NoExport { .. })), "{step:?}");
        assert!(out.is_empty());
    }
}

#[test]
fn list_names_all_exports() {
    let (replies, step) = ask(&mut start(FIXED), 3, &[]);
    assert!(matches!(step, Step::Next));
    assert_eq!(
        replies,
        [(2, b"\0\0\0\x03one".to_vec()), (2, b"\0\0\0\x03two".to_vec()), (ACK, vec![])]
    );
    assert_eq!(kinds(&ask(&mut start(FIXED), 3, b"x").0), [INVALID]);
}

// Regression: each of 600 clients requested a LIST reply with 3,000 names and received no byte of
// the reply. The server held 438 MiB for these clients.
#[test]
fn long_list_is_sent_in_parts_with_each_export_once() {
    let name = |n: usize| format!("{n:04}{}", "x".repeat(500));
    let mut exports = MemoryExports::default();
    for n in 0..300 {
        exports = exports.with(&name(n), Memory::new(4096));
    }
    let mut negotiation = start(FIXED);
    let mut all = Vec::new();
    let mut input = message(3, &[]);
    let mut parts = 0;
    loop {
        let mut out = Vec::new();
        let (used, step) = negotiation.feed(&input, &exports, &mut out);
        input.drain(..used);
        assert!(out.len() <= LIST_PART_BYTES + STRING_BYTES_MAX, "{}", out.len());
        all.extend(replies(&out, 3));
        parts += 1;
        match step {
            Step::More => {}
            Step::Next => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(parts > 10 && input.is_empty());
    assert_eq!(all.pop(), Some((ACK, vec![])));
    let names: Vec<_> = all.iter().map(|(_, data)| data[4..].to_vec()).collect();
    assert!(names.iter().eq((0..300).map(|n| name(n).into_bytes()).collect::<Vec<_>>().iter()));
    // After the LIST, the next option works as usual.
    assert_eq!(kinds(&ask(&mut negotiation, 8, &[]).0), [ACK]);
}

#[test]
fn abort_is_acknowledged() {
    let (replies, step) = ask(&mut start(FIXED), 2, &[]);
    assert_eq!(kinds(&replies), [ACK]);
    assert!(matches!(step, Step::Done));
}

#[test]
fn refused_options_do_not_end_option_haggling() {
    let mut negotiation = start(FIXED);
    for option in [5, 4, 11, 99, u32::MAX] {
        let (replies, step) = ask(&mut negotiation, option, b"whatever");
        assert_eq!(kinds(&replies), [UNSUP]);
        assert!(matches!(step, Step::Next));
    }
    assert!(matches!(ask(&mut negotiation, 7, &info_data("one", &[])).1, Step::Ready(_)));
}

/// Starts a handshake that accepts no option before STARTTLS.
fn start_forced() -> Negotiation {
    let mut negotiation = Negotiation::requiring_tls(&mut Vec::new());
    let (used, step) = negotiation.feed(&FIXED.to_be_bytes(), &exports(), &mut Vec::new());
    assert!(used == 4 && matches!(step, Step::Next), "{step:?}");
    negotiation
}

#[test]
fn options_before_starttls_are_refused() {
    let mut negotiation = start_forced();
    let go = info_data("one", &[]);
    let select = meta_data("one", &["base:allocation"]);
    for (option, data) in [
        (3, &[][..]),
        (6, &go),
        (7, &go),
        (8, &[]),
        (9, &select),
        (10, &select),
        (11, &[]),
        (99, &[]),
    ] {
        let (replies, step) = ask(&mut negotiation, option, data);
        assert_eq!(kinds(&replies), [TLS_REQD], "{option}");
        assert!(matches!(step, Step::Next));
    }
    assert_eq!(kinds(&ask(&mut negotiation, 5, b"x").0), [INVALID], "STARTTLS takes no data");
    let (replies, step) = ask(&mut negotiation, 2, &[]);
    assert_eq!(kinds(&replies), [ACK]);
    assert!(matches!(step, Step::Done));
    let mut out = Vec::new();
    let (_, step) = start_forced().feed(&message(1, b"one"), &exports(), &mut out);
    assert!(matches!(step, Step::Close(NbdError::NotEncrypted)) && out.is_empty(), "{step:?}");
}

#[test]
fn starttls_works_once_and_enables_all_options() {
    let mut negotiation = start_forced();
    let (replies, step) = ask(&mut negotiation, 5, &[]);
    assert_eq!(kinds(&replies), [ACK]);
    assert!(matches!(step, Step::StartTls), "{step:?}");
    negotiation.encrypted();
    let (replies, step) = ask(&mut negotiation, 5, &[]);
    assert_eq!(kinds(&replies), [INVALID], "a second time");
    assert!(matches!(step, Step::Next));
    assert_eq!(kinds(&ask(&mut negotiation, 3, &[]).0), [2, 2, ACK]);
    assert!(matches!(ask(&mut negotiation, 7, &info_data("one", &[])).1, Step::Ready(_)));
}

// CVE-2021-3716: servers processed cleartext after STARTTLS as part of the encrypted session.
#[test]
fn cleartext_after_starttls_ends_the_connection() {
    let go = message(7, &info_data("one", &[]));
    for behind in [&go[..], &[0x16], b"I"] {
        let bytes = [&message(5, &[])[..], behind].concat();
        let mut out = Vec::new();
        let (_, step) = start_forced().feed(&bytes, &exports(), &mut out);
        assert!(matches!(step, Step::Close(NbdError::BytesBeforeTls)), "{step:?}");
        assert!(out.is_empty());
    }
}

#[test]
fn export_for_one_address_is_hidden_from_other_clients() {
    let ours: IpAddr = "10.0.0.7".parse().unwrap();
    let exports = exports().reserve("two", ours);
    let asked = |from, option, data: &[u8]| {
        let mut negotiation = start(FIXED).of(from);
        let structured = message(8, &[]);
        negotiation.feed(&structured, &exports, &mut Vec::new());
        let mut out = Vec::new();
        let (_, step) = negotiation.feed(&message(option, data), &exports, &mut out);
        (out, matches!(step, Step::Ready(_)), format!("{step:?}"))
    };
    let [go, missing, only] = ["two", "six", ""].map(|name| info_data(name, &[]));
    let context = meta_data("two", &["base:allocation"]);
    for from in [None, Some("10.0.0.8".parse().unwrap())] {
        let answer =
            |option, data| String::from_utf8_lossy(&asked(from, option, data).0).into_owned();
        assert!(!answer(3, &[]).contains("two"), "listed");
        for option in [6, 7] {
            assert_eq!(answer(option, &go), answer(option, &missing).replace("six", "two"));
            // The empty name refers to the only export that the client may open.
            let described = replies(&asked(from, option, &only).0, option);
            assert_eq!(kinds(&described), [3, 3, ACK], "{option}");
        }
        assert_eq!(kinds(&replies(&asked(from, 10, &context).0, 10)), [UNKNOWN]);
        let (_, is_ready, step) = asked(from, 1, b"two");
        assert!(!is_ready && step.contains("no export"), "{step}");
    }
    assert!(String::from_utf8_lossy(&asked(Some(ours), 3, &[]).0).contains("two"));
    assert!(asked(Some(ours), 7, &go).1 && asked(Some(ours), 1, b"two").1);
}

#[test]
fn info_and_go_describe_the_export() {
    for option in [6, 7] {
        let data = info_data("one", &[1, 2, 3, 77]);
        let (replies, step) = ask(&mut start(FIXED), option, &data);
        assert_eq!(matches!(step, Step::Ready(_)), option == 7);
        assert_eq!(kinds(&replies), [3, 3, 3, 3, ACK]);
        // The flags are FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, CACHE and FAST_ZERO.
        let flags = 0x0d6d_u16.to_be_bytes();
        assert_eq!(replies[0].1, [&[0, 0][..], &(1_u64 << 20).to_be_bytes(), &flags].concat());
        assert_eq!(replies[1].1, [0, 3, 0, 0, 2, 0, 0, 1, 0, 0, 2, 0, 0, 0]);
        assert_eq!(replies[2].1, b"\0\x01one");
        assert_eq!(replies[3].1, b"\0\x02a volume in memory");
    }
}

#[test]
fn go_refuses_malformed_data_and_unknown_exports() {
    let mut negotiation = start(FIXED);
    for (data, kind) in [
        (info_data("three", &[]), UNKNOWN),
        (info_data("", &[]), UNKNOWN),
        (vec![], INVALID),
        (vec![0, 0, 0, 9, b'o'], INVALID),
        (vec![255; 8], INVALID),
        ([info_data("one", &[]), vec![0]].concat(), INVALID),
        (b"\0\0\0\x03one\0\x05\0\0".to_vec(), INVALID),
        (b"\0\0\0\x02\xff\xfe\0\0".to_vec(), INVALID),
    ] {
        let (replies, step) = ask(&mut negotiation, 7, &data);
        assert_eq!(kinds(&replies), [kind], "{data:?}");
        assert!(matches!(step, Step::Next));
    }
}

#[test]
fn empty_name_selects_the_only_export() {
    let only = MemoryExports::default().with("only", Memory::new(4096));
    let mut out = Vec::new();
    let (_, step) = start(FIXED).feed(&message(7, &info_data("", &[])), &only, &mut out);
    let Step::Ready(ready) = step else { panic!("{step:?}") };
    assert_eq!(ready.name, "only");
}

#[test]
fn metadata_contexts_are_listed_and_selected() {
    let mut negotiation = start(FIXED);
    let all = meta_data("one", &[]);
    assert_eq!(kinds(&ask(&mut negotiation, 9, &all).0), [INVALID], "needs structured replies");
    assert_eq!(kinds(&ask(&mut negotiation, 8, b"x").0), [INVALID]);
    assert_eq!(kinds(&ask(&mut negotiation, 8, &[]).0), [ACK]);

    let listed = (4, b"\0\0\0\0base:allocation".to_vec());
    for queries in [&[][..], &["base:"], &["base:allocation"], &["x:", "base:"]] {
        let (replies, _) = ask(&mut negotiation, 9, &meta_data("one", queries));
        assert_eq!(replies, [listed.clone(), (ACK, vec![])], "{queries:?}");
    }
    for (option, queries) in
        [(9, &["qemu:"][..]), (9, &["base:allocatio"]), (10, &[]), (10, &["base:"])]
    {
        let (replies, _) = ask(&mut negotiation, option, &meta_data("one", queries));
        assert_eq!(kinds(&replies), [ACK], "{queries:?}");
    }
    let selected = meta_data("one", &["base:allocation", "base:allocation"]);
    let (replies, _) = ask(&mut negotiation, 10, &selected);
    assert_eq!(replies, [(4, b"\0\0\0\x01base:allocation".to_vec()), (ACK, vec![])]);
    assert_eq!(kinds(&ask(&mut negotiation, 10, &meta_data("three", &[])).0), [UNKNOWN]);
    assert_eq!(kinds(&ask(&mut negotiation, 10, b"\0\0\0\x03one").0), [INVALID]);

    // Each failed SET_META_CONTEXT above cancelled the selection before it, so no metadata context
    // is selected now. A selection for one export does not count for another export.
    let block_status = |negotiation: &mut Negotiation, name| {
        let (replies, step) = ask(negotiation, 7, &info_data(name, &[]));
        let Step::Ready(ready) = step else { panic!("{step:?}") };
        assert_eq!(replies[0].1[11] & 0x80, 0x80, "SEND_DF with structured replies");
        ready.negotiated.block_status
    };
    assert!(!block_status(&mut negotiation, "one"));
    ask(&mut negotiation, 10, &selected);
    assert!(!block_status(&mut negotiation, "two"));
    assert!(block_status(&mut negotiation, "one"));
}

#[test]
fn invalid_option_header_ends_the_handshake() {
    let mut out = Vec::new();
    let (_, step) = start(FIXED).feed(&[b'A'; 16], &exports(), &mut out);
    assert!(matches!(step, Step::Close(NbdError::OptionMagic { .. })), "{step:?}");
    let long = [b"IHAVEOPT\0\0\0\x03".as_slice(), &u32::MAX.to_be_bytes()].concat();
    let (_, step) = start(FIXED).feed(&long, &exports(), &mut out);
    assert!(matches!(step, Step::Close(NbdError::OptionTooLong { .. })), "{step:?}");
    assert!(out.is_empty());
}

#[test]
fn partial_option_waits_for_more_input() {
    let bytes = message(7, &info_data("one", &[3]));
    let mut negotiation = start(FIXED);
    let mut out = Vec::new();
    for end in 0..bytes.len() {
        let (used, step) = negotiation.feed(&bytes[..end], &exports(), &mut out);
        assert_eq!(used, 0);
        assert!(matches!(step, Step::Need(need) if need > end && need <= bytes.len()));
    }
    assert!(out.is_empty());
    assert!(matches!(negotiation.feed(&bytes, &exports(), &mut out).1, Step::Ready(_)));
}

proptest! {
    #[test]
    fn hostile_option_bytes_never_panic(
        flags in 0_u32..4,
        options in prop::collection::vec(
            (0_u32..14, prop::collection::vec(any::<u8>(), 0..60), any::<bool>()),
            0..20,
        ),
        rest in prop::collection::vec(any::<u8>(), 0..60),
        is_forced in any::<bool>(),
    ) {
        let mut bytes = flags.to_be_bytes().to_vec();
        for (option, data, named) in &options {
            let name: &[u8] = if *named { b"\0\0\0\x03one" } else { b"" };
            bytes.extend(message(*option, &[name, data].concat()));
        }
        bytes.extend(rest);
        let (exports, mut out) = (exports(), Vec::new());
        let mut negotiation = if is_forced {
            Negotiation::requiring_tls(&mut out)
        } else {
            Negotiation::new(&mut out)
        };
        let mut at = 0;
        loop {
            let (used, step) = negotiation.feed(&bytes[at..], &exports, &mut out);
            prop_assert!(used <= bytes.len() - at);
            at += used;
            match step {
                Step::Next => prop_assert!(used > 0),
                Step::Need(need) => {
                    prop_assert!(used == 0 && need > bytes.len() - at);
                    break;
                }
                _ => break,
            }
        }
    }
}
