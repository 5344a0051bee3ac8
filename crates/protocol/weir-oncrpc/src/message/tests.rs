//! Tests of call and reply headers.

use proptest::prelude::*;
use weir_block::OutBuf;

use super::*;
use crate::xdr::{Encoder, Opaque, Xdr, XdrError};

fn encoded(encode: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    let mut out = OutBuf::default();
    encode(&mut Encoder::new(&mut out));
    out.filled().to_vec()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Header of a GETATTR call, with these credential and verifier.
fn header(auth: &[u32]) -> Vec<u8> {
    [words(&[7, 0, 2, 100_003, 3, 1]), words(auth)].concat()
}

#[test]
fn call_has_the_layout_of_the_rfc() {
    let call = Call {
        xid: 7,
        program: 100_003,
        version: 3,
        procedure: 1,
        credential: OpaqueAuth::NONE,
        verifier: OpaqueAuth::NONE,
    };
    let bytes = header(&[0, 0, 0, 0]);
    assert_eq!(encoded(|out| call.encode(out)), bytes);
    let with_argument = [&bytes[..], b"argument"].concat();
    let (decoded, input) = Call::decode(&with_argument).unwrap();
    assert_eq!((decoded, input.rest()), (call, &b"argument"[..]));
    for len in 0..bytes.len() {
        assert_eq!(Call::decode(&bytes[..len]).unwrap_err(), CallError::Truncated);
    }
}

#[test]
fn malformed_calls_are_denied_or_unanswerable() {
    let error = |bytes: &[u8]| Call::decode(bytes).unwrap_err();
    let reply = error(&words(&[7, 0, 3])).reply().expect("a reply to another version");
    assert_eq!(encoded(|out| reply.encode(out)), words(&[7, 1, 1, 0, 2, 2]));
    assert_eq!(error(&words(&[7, 1, 0])), CallError::NotCall(1));
    assert_eq!(error(&words(&[7, 1, 0])).reply(), None);
    // 401 bytes of credential, then of verifier.
    let reply = error(&header(&[1, 401])).reply().expect("a reply to a long credential");
    assert_eq!(encoded(|out| reply.encode(out)), words(&[7, 1, 1, 1, 1]));
    let reply = error(&header(&[0, 0, 0, 401])).reply().expect("a reply to a long verifier");
    assert_eq!(encoded(|out| reply.encode(out)), words(&[7, 1, 1, 1, 3]));
    let longest = [header(&[6, 400]), vec![1; 400], words(&[0, 0])].concat();
    let (call, _) = Call::decode(&longest).expect("400 bytes are allowed");
    assert_eq!(call.credential.credential(), Ok(Credential::RpcsecGss));
}

#[test]
fn credential_with_trailing_bytes_or_too_many_groups_is_bad() {
    let sys = |body: Vec<u8>| {
        let body = Opaque::new(&body).unwrap();
        OpaqueAuth { flavor: flavor::AUTH_SYS, body }.credential().map(|_| ())
    };
    let head = [words(&[9, 3]), b"abc\0".to_vec(), words(&[1000, 100])].concat();
    let with = |gids: &[u32]| [head.clone(), words(gids)].concat();
    assert_eq!(sys(with(&[2, 5, 6])), Ok(()));
    assert_eq!(sys(with(&[2, 5, 6, 7])), Err(AuthStat::BadCred));
    assert_eq!(sys(with(&[2, 5])), Err(AuthStat::BadCred));
    assert_eq!(sys(with(&[&[16][..], &[1; 16]].concat())), Ok(()));
    assert_eq!(sys(with(&[&[17][..], &[1; 17]].concat())), Err(AuthStat::BadCred));
    assert_eq!(
        sys([words(&[9, 256]), vec![0; 256], words(&[1, 1, 0])].concat()),
        Err(AuthStat::BadCred)
    );
    let none = OpaqueAuth { flavor: flavor::AUTH_NONE, body: Opaque::new(b"any").unwrap() };
    assert_eq!(none.credential(), Ok(Credential::None));
    let short = OpaqueAuth { flavor: flavor::AUTH_SHORT, body: Opaque::EMPTY };
    assert_eq!(short.credential(), Ok(Credential::Unknown(2)));
}

#[test]
fn credential_has_the_layout_of_the_rfc() {
    let gids = Gids::new(&[5, 6]).unwrap();
    let machine_name = Opaque::new(b"abc").unwrap();
    let sys = AuthSys { stamp: 9, machine_name, uid: 1000, gid: 100, gids };
    let layout = [words(&[1, 32, 9, 3]), b"abc\0".to_vec(), words(&[1000, 100, 2, 5, 6])].concat();
    assert_eq!(encoded(|out| sys.encode_opaque(out)), layout);
    let opaque = OpaqueAuth::decode_whole(&layout).unwrap();
    assert_eq!(opaque.credential(), Ok(Credential::Sys(sys)));
}

#[test]
fn replies_have_the_layout_of_the_rfc() {
    let accepted = |stat| Reply::accepted(7, stat);
    let mismatch = AcceptStat::ProgMismatch { low: 3, high: 4 };
    let mut cases = vec![
        (accepted(AcceptStat::Success), vec![7, 1, 0, 0, 0, 0]),
        (accepted(AcceptStat::ProgUnavail), vec![7, 1, 0, 0, 0, 1]),
        (accepted(mismatch), vec![7, 1, 0, 0, 0, 2, 3, 4]),
        (accepted(AcceptStat::ProcUnavail), vec![7, 1, 0, 0, 0, 3]),
        (accepted(AcceptStat::GarbageArgs), vec![7, 1, 0, 0, 0, 4]),
        (accepted(AcceptStat::SystemErr), vec![7, 1, 0, 0, 0, 5]),
    ];
    for (number, stat) in (1..).zip(AuthStat::ALL) {
        cases.push((Reply::auth_error(7, *stat), vec![7, 1, 1, 1, number]));
    }
    assert_eq!(cases.len(), 6 + 14);
    for (reply, layout) in cases {
        let bytes = words(&layout);
        assert_eq!(encoded(|out| reply.encode(out)), bytes);
        let (decoded, input) = Reply::decode(&bytes).unwrap();
        assert_eq!((decoded, input.rest()), (reply, &b""[..]));
        for len in 0..bytes.len() {
            assert_eq!(Reply::decode(&bytes[..len]).unwrap_err(), XdrError::Truncated);
        }
    }
}

#[test]
fn hostile_replies_are_rejected() {
    let error = |layout: &[u32]| Reply::decode(&words(layout)).unwrap_err();
    let unknown = |name, value| XdrError::UnknownValue { name, value };
    assert_eq!(error(&[7, 0, 0]), unknown("REPLY", 0));
    assert_eq!(error(&[7, 1, 2]), unknown("reply_stat", 2));
    assert_eq!(error(&[7, 1, 0, 0, 0, 6]), unknown("accept_stat", 6));
    assert_eq!(error(&[7, 1, 1, 2]), unknown("reject_stat", 2));
    // AUTH_OK is no reason to deny a call.
    assert_eq!(error(&[7, 1, 1, 1, 0]), unknown("AuthStat", 0));
    assert_eq!(error(&[7, 1, 0, 0, 401]), XdrError::TooLong { len: 401, max: 400 });
}

proptest! {
    #[test]
    fn calls_round_trip(
        numbers in any::<[u32; 4]>(),
        ids in any::<[u32; 3]>(),
        machine_name in prop::collection::vec(any::<u8>(), 0..=255),
        gids in prop::collection::vec(any::<u32>(), 0..=16),
        verifier in prop::collection::vec(any::<u8>(), 0..=400),
    ) {
        let [xid, program, version, procedure] = numbers;
        let [stamp, uid, gid] = ids;
        let machine_name = Opaque::new(&machine_name).unwrap();
        let sys = AuthSys { stamp, machine_name, uid, gid, gids: Gids::new(&gids).unwrap() };
        let credential = encoded(|out| sys.encode_opaque(out));
        let credential = OpaqueAuth::decode_whole(&credential).unwrap();
        let verifier = OpaqueAuth { flavor: 77, body: Opaque::new(&verifier).unwrap() };
        let call = Call { xid, program, version, procedure, credential, verifier };
        let bytes = encoded(|out| call.encode(out));
        let (decoded, input) = Call::decode(&bytes).unwrap();
        prop_assert_eq!(decoded, call);
        prop_assert!(input.finish().is_ok());
        prop_assert_eq!(decoded.credential.credential(), Ok(Credential::Sys(sys)));
    }

    #[test]
    fn hostile_messages_are_rejected_or_survive_encoding(
        mut bytes in prop::collection::vec(any::<u8>(), 0..100),
        numbers in prop::collection::vec(0..5_u32, 0..20),
    ) {
        // Small numbers, so that most messages pass the first checks.
        let small = words(&numbers);
        bytes.splice(..0, small);
        if let Ok((call, _)) = Call::decode(&bytes) {
            let again = encoded(|out| call.encode(out));
            prop_assert_eq!(Call::decode(&again).unwrap().0, call);
            let credential = call.credential.credential();
            prop_assert!(matches!(credential, Ok(_) | Err(AuthStat::BadCred)));
        }
        if let Ok((reply, _)) = Reply::decode(&bytes) {
            let again = encoded(|out| reply.encode(out));
            prop_assert_eq!(Reply::decode(&again).unwrap().0, reply);
        }
    }
}
