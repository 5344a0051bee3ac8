//! Tests of the PDU codec; the digest examples are from RFC 7143 appendix A.4.

use proptest::prelude::*;
use weir_block::OutBuf;
use weir_scsi::{Attribute, Lun, Status};

use super::*;

const BOTH: Digests = Digests { header: true, data: true };

fn framed(input: &[u8], digests: Digests) -> Option<(Pdu<'_>, usize)> {
    match frame(input, digests, 1 << 20).expect("a good header") {
        Framed::Need(need) => {
            assert!(need > input.len());
            None
        }
        Framed::Pdu(pdu, used) => Some((pdu, used)),
    }
}

#[test]
fn digests_match_the_rfc_examples() {
    let up: Vec<u8> = (0..32).collect();
    let down: Vec<u8> = (0..32).rev().collect();
    for (bytes, sum) in [
        (&[0; 32][..], [0xaa, 0x36, 0x91, 0x8a]),
        (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
        (&up, [0x4e, 0x79, 0xdd, 0x46]),
        (&down, [0x5c, 0xdb, 0x3f, 0x11]),
    ] {
        assert_eq!(digest(bytes), sum);
    }
    let mut read = [0; 48];
    for (at, byte) in [(0, 0x01), (1, 0xc0), (16, 0x14), (22, 0x04), (27, 0x14), (31, 0x18)] {
        read[at] = byte;
    }
    for (at, byte) in [(32, 0x28), (40, 0x02)] {
        read[at] = byte;
    }
    assert_eq!(digest(&read), [0x56, 0x3a, 0x96, 0xd9]);
}

#[test]
fn scsi_command_is_decoded() {
    let mut header = Header::new(opcode::COMMAND, 0xc2);
    header.set(8, [0, 3, 0, 0, 0, 0, 0, 0]);
    header.set_word(16, 0x0102_0304);
    header.set_word(20, 512);
    header.set_word(24, 99);
    header.set(32, *b"0123456789abcdef");
    let pdu = Pdu { header, ahs: &[], data: &[], data_intact: true };
    let Ok(Request::Command(command)) = Request::decode(&pdu) else { panic!("a command") };
    assert!(command.is_final && command.read && !command.write && !command.immediate);
    assert_eq!(command.attribute, Attribute::Ordered);
    assert_eq!(command.lun, Lun([0, 3, 0, 0, 0, 0, 0, 0]));
    assert_eq!((command.itt, command.expected_bytes, command.cmd_sn), (0x0102_0304, 512, 99));
    assert_eq!(command.cdb.bytes(), b"0123456789abcdef");
}

#[test]
fn extended_cdb_is_assembled() {
    let header = Header::new(opcode::COMMAND, 0x80);
    // First an AHS of another type, with padding; then an Extended CDB with its reserved byte and
    // the last 4 bytes of a 20-byte CDB.
    let ahs = [0, 5, 2, 0, 1, 2, 3, 4, 0, 5, 1, 0, 9, 8, 7, 6];
    let pdu = Pdu { header, ahs: &ahs, data: &[], data_intact: true };
    let Ok(Request::Command(command)) = Request::decode(&pdu) else { panic!("a command") };
    assert_eq!(command.cdb.bytes().len(), 20);
    assert_eq!(command.cdb.bytes()[16..], [9, 8, 7, 6]);
    // An AHS length beyond the end of the AHS area, and an AHS that is too short for its reserved
    // byte, are rejected.
    for ahs in [&[0, 9, 1, 0, 1, 2, 3, 4][..], &[0, 0, 1, 0]] {
        let pdu = Pdu { header, ahs, data: &[], data_intact: true };
        assert_eq!(Request::decode(&pdu), Err(RejectReason::InvalidField));
    }
}

#[test]
fn response_fields_are_at_their_offsets() {
    let residual = Residual::of(600, 512);
    let header =
        CommandResponse { itt: 7, status: Status::Busy, residual, exp_data_sn: 3 }.encode();
    assert_eq!(header.0[..4], [0x21, 0x84, 0, 0x08]);
    assert_eq!((header.word(16), header.word(36), header.word(44)), (7, 3, 88));
    let status = Some((Status::Good, Residual::of(100, 512)));
    let data_in = DataIn { itt: 7, is_final: true, status, data_sn: 2, offset: 64, data_bytes: 5 };
    let header = data_in.encode();
    assert_eq!(header.0[..8], [0x25, 0x83, 0, 0, 0, 0, 0, 5]);
    assert_eq!((header.word(20), header.word(36), header.word(40)), (NO_TAG, 2, 64));
    assert_eq!(header.word(44), 412);
    let message = AsyncMessage { event: AsyncEvent::DropsSession, cid: 3, seconds: 1 }.encode();
    assert_eq!(message.0[36..44], [3, 0, 0, 3, 0, 1, 0, 0]);
    assert_eq!(Residual::of(u64::MAX, 0), Residual::Overflow(u32::MAX));
}

#[test]
fn corrupt_pdu_is_detected_by_its_digests() {
    let mut out = OutBuf::default();
    put(&mut out, Header::new(opcode::NOP_OUT, 0x80), b"abc", BOTH);
    for at in 0..52 {
        let mut bytes = out.filled().to_vec();
        bytes[at] ^= 0x10;
        match frame(&bytes, BOTH, 1 << 20) {
            Err(WireError::HeaderDigest) | Ok(Framed::Need(_)) => {}
            other => panic!("{at}: {other:?}"),
        }
    }
    for at in 52..60 {
        let mut bytes = out.filled().to_vec();
        bytes[at] ^= 0x10;
        assert!(framed(&bytes, BOTH).is_some_and(|(pdu, _)| !pdu.data_intact), "{at}");
    }
    let long = frame(out.filled(), BOTH, 2);
    assert!(matches!(long, Err(WireError::DataTooLong { len: 3, max: 2 })));
}

proptest! {
    #[test]
    fn encoded_pdus_are_framed_at_any_split(
        parts in prop::collection::vec(
            (any::<[u8; 16]>(), prop::collection::vec(any::<u8>(), 0..70)), 1..5),
        header in any::<bool>(),
        data in any::<bool>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let digests = Digests { header, data };
        let mut out = OutBuf::default();
        for (fields, bytes) in &parts {
            let mut header = Header::new(opcode::NOP_OUT, 0x80);
            header.set(16, *fields);
            put(&mut out, header, bytes, digests);
        }
        let mut input = out.filled();
        for (fields, bytes) in &parts {
            let (pdu, used) = framed(input, digests).expect("whole");
            let short = &input[..cut.index(used)];
            prop_assert!(framed(short, digests).is_none());
            prop_assert!(pdu.data_intact && used % 4 == 0);
            prop_assert_eq!(pdu.data, &bytes[..]);
            prop_assert_eq!(pdu.header.bytes::<16>(16), *fields);
            input = &input[used..];
        }
        prop_assert!(input.is_empty());
    }

    #[test]
    fn login_header_round_trips(
        flags in any::<[bool; 2]>(),
        stages in (0_u8..4, 0_u8..4),
        isid in any::<[u8; 6]>(),
        numbers in any::<[u32; 3]>(),
        shorts in any::<[u16; 2]>(),
    ) {
        let login = Login {
            transit: flags[0],
            continues: flags[1],
            stage: stages.0,
            next_stage: stages.1,
            version_min: 0,
            isid,
            tsih: shorts[0],
            itt: numbers[0],
            cid: shorts[1],
            cmd_sn: numbers[1],
            exp_stat_sn: numbers[2],
        };
        prop_assert_eq!(Login::decode(&login.encode()), Some(login));
    }

    #[test]
    fn any_header_is_decoded_or_rejected(
        bytes in prop::collection::vec(any::<u8>(), 48..400),
        header in any::<bool>(),
    ) {
        let digests = Digests { header, data: !header };
        if let Ok(Framed::Pdu(pdu, used)) = frame(&bytes, digests, 256) {
            prop_assert!(used <= bytes.len() && pdu.data.len() <= 256);
            if let Ok(Request::Command(command)) = Request::decode(&pdu) {
                prop_assert!((16..=260).contains(&command.cdb.bytes().len()));
            }
        }
    }
}
