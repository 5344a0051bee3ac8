//! Tests of the exchange with a minimal target, and with bytes that no target sends.

use std::collections::HashMap;

use proptest::prelude::*;
use weir_iscsi_wire::pdu::{Framed, Request, frame};

use super::*;
use crate::cdb;

const KIB: usize = 1 << 10;

/// Data buffers of the slots.
struct Memory(Vec<Vec<u8>>);

impl Memory {
    fn new(slots: usize, bytes: usize) -> Self {
        Self((0..slots).map(|slot| pattern(slot, bytes)).collect())
    }
}

fn pattern(slot: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251 + slot) as u8).collect()
}

impl Buffers for Memory {
    fn data(&self, slot: usize) -> &[u8] {
        self.0.get(slot).map_or(&[], Vec::as_slice)
    }

    fn data_mut(&mut self, slot: usize) -> &mut [u8] {
        self.0.get_mut(slot).map_or(&mut [], Vec::as_mut_slice)
    }
}

fn negotiated() -> Negotiated {
    Negotiated {
        digests: Digests::default(),
        send_data_bytes_max: 8192,
        receive_data_bytes_max: 64 << 10,
        max_burst_bytes: 32 << 10,
        first_burst_bytes: 16 << 10,
        initial_r2t: false,
        immediate_data: true,
        outstanding_r2t_max: 2,
        portal_group_tag: None,
    }
}

/// Takes all queued bytes in steps of at most `at_once` bytes, and returns them.
fn sent(exchange: &mut Exchange, memory: &Memory, at_once: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while exchange.has_outgoing() {
        let mut pieces = [IoSlice::new(&[]); 5];
        let count = exchange.outgoing(memory, &mut pieces);
        let bytes: Vec<u8> = pieces[..count].iter().flat_map(|piece| piece.to_vec()).collect();
        let now = bytes.len().min(at_once);
        all.extend(&bytes[..now]);
        exchange.sent(now);
    }
    all
}

/// Parses the initiator's requests with their data, as a target receives them.
fn requests(bytes: &[u8], digests: Digests) -> Vec<(Request, Vec<u8>)> {
    let (mut rest, mut found) = (bytes, Vec::new());
    while !rest.is_empty() {
        let Framed::Pdu(pdu, used) = frame(rest, digests, 1 << 20).expect("whole PDUs") else {
            panic!("a PDU is cut off");
        };
        assert!(pdu.data_intact);
        found.push((Request::decode(&pdu).expect("a request"), pdu.data.to_vec()));
        rest = &rest[used..];
    }
    found
}

/// Builds a PDU from a target whose command window ends at `max_cmd_sn`.
fn answer(mut header: Header, stat_sn: u32, max_cmd_sn: u32, data: &[u8], d: Digests) -> Vec<u8> {
    header.set_word(24, stat_sn);
    header.set_word(28, 1);
    header.set_word(32, max_cmd_sn);
    let mut out = Output::default();
    out.put(header, data, d);
    let mut pieces = [IoSlice::new(&[]); 1];
    let memory = Memory(Vec::new());
    assert_eq!(out.pieces(&memory, &mut pieces), 1);
    pieces[0].to_vec()
}

fn response(itt: u32, status: u8) -> Header {
    let mut header = Header::new(opcode::RESPONSE, 0x80);
    header.set(3, [status]);
    header.set_word(16, itt);
    header
}

fn r2t(itt: u32, ttt: u32, sn: u32, offset: u32, len: u32) -> Header {
    let mut header = Header::new(opcode::R2T, 0x80);
    for (at, word) in [(16, itt), (20, ttt), (36, sn), (40, offset), (44, len)] {
        header.set_word(at, word);
    }
    header
}

fn data_in(itt: u32, sn: u32, offset: u32, flags: u8) -> Header {
    let mut header = Header::new(opcode::DATA_IN, flags);
    for (at, word) in [(16, itt), (20, NO_TAG), (36, sn), (40, offset)] {
        header.set_word(at, word);
    }
    header
}

fn take(exchange: &mut Exchange, memory: &mut Memory, bytes: &[u8]) -> Result<(), InitiatorError> {
    let used = exchange.take(bytes, memory)?;
    assert_eq!(used, bytes.len(), "whole PDUs leave nothing");
    Ok(())
}

fn done(exchange: &mut Exchange) -> Vec<Done> {
    let mut done = Vec::new();
    exchange.take_done(&mut done);
    done
}

fn command_of(requests: &[(Request, Vec<u8>)], at: usize) -> (u32, Vec<u8>, bool) {
    match &requests[at] {
        (Request::Command(command), data) => (command.itt, data.clone(), command.is_final),
        other => panic!("no command: {other:?}"),
    }
}

#[test]
fn write_sends_each_byte_once_with_any_parameters() {
    for case in 0..32_u32 {
        let digests = Digests { header: case & 1 != 0, data: case & 2 != 0 };
        let (initial_r2t, immediate_data) = (case & 4 != 0, case & 8 != 0);
        let negotiated = Negotiated { digests, initial_r2t, immediate_data, ..negotiated() };
        let len = if case & 16 != 0 { 100 * KIB } else { 5 * KIB + 3 };
        let mut memory = Memory::new(2, 128 * KIB);
        let mut exchange = Exchange::without_login(negotiated, 100, 2);
        exchange.submit(1, cdb::write16(9, 1, false), Data::Out(len as u32), &memory);
        let mut got = vec![None; len];
        let mut keep = |offset: u32, data: &[u8]| {
            for (at, byte) in (offset as usize..).zip(data) {
                assert!(got[at].replace(*byte).is_none(), "byte {at} comes twice");
            }
        };
        let bytes = sent(&mut exchange, &memory, 1000);
        let first = requests(&bytes, digests);
        let (itt, data, is_final) = command_of(&first, 0);
        assert_eq!(data.is_empty(), !immediate_data);
        assert!(immediate_data || !initial_r2t || is_final);
        keep(0, &data);
        let mut covered = data.len();
        for (request, data) in &first[1..] {
            let Request::DataOut(out) = request else { panic!("{request:?}") };
            assert_eq!((out.offset as usize, out.ttt), (covered, NO_TAG));
            keep(out.offset, data);
            covered += data.len();
        }
        assert!(covered <= 16 * KIB && (initial_r2t || covered == len.min(16 * KIB)));
        let mut sn = 0;
        while covered < len {
            let now = (len - covered).min(32 * KIB);
            let asked = r2t(itt, 77 + sn, sn, covered as u32, now as u32);
            take(&mut exchange, &mut memory, &answer(asked, 1, 100, &[], digests)).expect("taken");
            let bytes = sent(&mut exchange, &memory, 777);
            for (number, (request, data)) in requests(&bytes, digests).iter().enumerate() {
                let Request::DataOut(out) = request else { panic!("{request:?}") };
                assert_eq!((out.ttt, out.data_sn as usize), (77 + sn, number));
                keep(out.offset, data);
            }
            (covered, sn) = (covered + now, sn + 1);
        }
        take(&mut exchange, &mut memory, &answer(response(itt, 0), 1, 100, &[], digests))
            .expect("done");
        let done = done(&mut exchange);
        assert_eq!((done.len(), done[0].slot, done[0].answer.status), (1, 1, Status::GOOD));
        let wanted = pattern(1, len);
        assert!(got.iter().zip(&wanted).all(|(got, wanted)| *got == Some(*wanted)), "case {case}");
    }
}

#[test]
fn read_data_reaches_its_buffer_however_the_stream_is_split() {
    for case in 0..16_u64 {
        let mut rng = fastrand::Rng::with_seed(case);
        let digests = Digests { header: case & 1 != 0, data: case & 2 != 0 };
        let mut memory = Memory(vec![vec![0; 64 * KIB]; 3]);
        let mut exchange = Exchange::without_login(Negotiated { digests, ..negotiated() }, 100, 3);
        for slot in 0..3 {
            exchange.submit(slot, cdb::read16(0, 1, false), Data::In(30_001), &memory);
        }
        let bytes = sent(&mut exchange, &memory, usize::MAX);
        let tags: Vec<u32> =
            (0..3).map(|at| command_of(&requests(&bytes, digests), at).0).collect();
        // The data of the three reads is interleaved. The first read has its status in its last
        // Data-In PDU.
        let (mut stream, mut at, mut sn) = (Vec::new(), [0_usize; 3], [0; 3]);
        let mut stat_sn = 1;
        while let Some(slot) = (0..3).filter(|slot| at[*slot] < 30_001).min_by_key(|_| rng.u32(..))
        {
            let len = (30_001 - at[slot]).min(rng.usize(0..12_000));
            let is_last = at[slot] + len == 30_001;
            let flags = if is_last && slot == 0 { 0x81 } else { u8::from(is_last) << 7 };
            let header = data_in(tags[slot], sn[slot], at[slot] as u32, flags);
            let data = &pattern(slot, 30_001)[at[slot]..at[slot] + len];
            stream.extend(answer(header, stat_sn, 100, data, digests));
            (at[slot], sn[slot]) = (at[slot] + len, sn[slot] + 1);
            stat_sn += u32::from(flags == 0x81);
        }
        for tag in &tags[1..] {
            stream.extend(answer(response(*tag, 0), stat_sn, 100, &[], digests));
            stat_sn += 1;
        }
        let (mut held, mut from) = (Vec::new(), 0);
        while from < stream.len() {
            let len = (stream.len() - from).min(rng.usize(1..5000));
            let piece = &stream[from..from + len];
            match exchange.place().filter(|_| held.is_empty() && rng.bool()) {
                Some(place) => {
                    let now = place.range.len().min(len);
                    let to = place.range.start..place.range.start + now;
                    memory.data_mut(place.slot)[to].copy_from_slice(&piece[..now]);
                    exchange.placed(now);
                    held.extend(&piece[now..]);
                }
                None => held.extend(piece),
            }
            let used = exchange.take(&held, &mut memory).expect("taken");
            held.drain(..used);
            from += len;
        }
        assert!(held.is_empty());
        let done = done(&mut exchange);
        assert_eq!(done.len(), 3);
        for Done { slot, answer } in done {
            assert_eq!((answer.status, answer.received_bytes), (Status::GOOD, 30_001));
            assert!(memory.data(slot)[..30_001] == pattern(slot, 30_001), "slot {slot}");
        }
    }
}

#[test]
fn no_command_is_sent_beyond_the_window() {
    let mut memory = Memory::new(8, 512);
    let mut exchange = Exchange::without_login(negotiated(), 3, 8);
    for slot in 0..8 {
        exchange.submit(slot, cdb::test_unit_ready(), Data::None, &memory);
    }
    let bytes = sent(&mut exchange, &memory, usize::MAX);
    let first = requests(&bytes, Digests::default());
    assert_eq!((first.len(), exchange.waiting()), (3, 5));
    let tags: Vec<u32> = (0..3).map(|at| command_of(&first, at).0).collect();
    // The first response leaves the command window closed. The second response opens it by two
    // commands. The third response has a lower MaxCmdSN, which the exchange ignores.
    let mut end = |tag, stat_sn, max| {
        let bytes = answer(response(tag, 0), stat_sn, max, &[], Digests::default());
        take(&mut exchange, &mut memory, &bytes).expect("taken");
        requests(&sent(&mut exchange, &memory, usize::MAX), Digests::default()).len()
    };
    assert_eq!([end(tags[0], 1, 3), end(tags[1], 2, 5), end(tags[2], 3, 2)], [0, 2, 0]);
    assert_eq!((exchange.waiting(), exchange.under_way(), done(&mut exchange).len()), (3, 5, 3));
    assert!(exchange.is_busy(7) && !exchange.is_busy(0));
}

#[test]
fn slot_stays_busy_while_its_data_is_queued() {
    let mut memory = Memory::new(1, 16 * KIB);
    let mut exchange = Exchange::without_login(negotiated(), 9, 1);
    exchange.submit(0, cdb::write16(0, 1, false), Data::Out(16 << 10), &memory);
    let tag = {
        let mut pieces = [IoSlice::new(&[]); 1];
        exchange.outgoing(&memory, &mut pieces);
        Header(pieces[0][..48].try_into().expect("a header")).itt()
    };
    let sense = [0, 18, 0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0, 0, 0];
    let early = answer(response(tag, 2), 1, 9, &sense, Digests::default());
    take(&mut exchange, &mut memory, &early).expect("an answer may come early");
    assert!(done(&mut exchange).is_empty() && exchange.is_busy(0));
    sent(&mut exchange, &memory, 100);
    let done = done(&mut exchange);
    assert_eq!(done[0].answer.status, Status::CHECK_CONDITION);
    assert_eq!(done[0].answer.sense, sense[2..]);
}

#[test]
fn unexpected_numbers_and_tags_end_the_session() {
    let none = Digests::default();
    let read_and_write = |number: usize, make: &dyn Fn(u32, u32) -> Vec<u8>| {
        let mut memory = Memory::new(2, 64 * KIB);
        let mut exchange = Exchange::without_login(negotiated(), 100, 2);
        exchange.submit(0, cdb::read16(0, 1, false), Data::In(1024), &memory);
        exchange.submit(1, cdb::write16(0, 1, false), Data::Out(40 << 10), &memory);
        let bytes = sent(&mut exchange, &memory, usize::MAX);
        let found = requests(&bytes, none);
        let bytes = make(command_of(&found, 0).0, command_of(&found, 1).0);
        assert!(exchange.take(&bytes, &mut memory).is_err(), "case {number} is taken");
    };
    let cases: [&dyn Fn(u32, u32) -> Vec<u8>; 19] = [
        &|r, _| answer(response(r, 0), 2, 9, &[], none),
        &|_, _| answer(response(0x7777_0005, 0), 1, 9, &[], none),
        &|r, _| answer(response(r, 0), 1, 9, &[0, 9, 1], none),
        &|r, _| answer(data_in(r, 1, 0, 0), 1, 9, &[1; 512], none),
        &|r, _| answer(data_in(r, 0, 512, 0), 1, 9, &[1; 512], none),
        &|r, _| answer(data_in(r, 0, 0, 0x80), 1, 9, &[1; 1025], none),
        &|r, _| answer(data_in(r, 0, 0, 0x01), 1, 9, &[1; 512], none),
        &|_, w| answer(data_in(w, 0, 0, 0), 1, 9, &[1; 512], none),
        &|r, _| answer(r2t(r, 7, 0, 0, 512), 1, 9, &[], none),
        &|_, w| answer(r2t(w, 7, 1, 16 << 10, 512), 1, 9, &[], none),
        &|_, w| answer(r2t(w, 7, 0, 0, 512), 1, 9, &[], none),
        &|_, w| answer(r2t(w, NO_TAG, 0, 16 << 10, 512), 1, 9, &[], none),
        &|_, w| answer(r2t(w, 7, 0, 16 << 10, 0), 1, 9, &[], none),
        &|_, w| answer(r2t(w, 7, 0, 16 << 10, 33 << 10), 1, 9, &[], none),
        &|_, w| answer(r2t(w, 7, 0, 16 << 10, u32::MAX), 1, 9, &[], none),
        // The target opens three R2Ts, although the negotiated maximum is two.
        &|_, w| {
            let ask = |n: u32| answer(r2t(w, n, n, (16 << 10) + n * 512, 512), 1, 9, &[], none);
            (0..3).flat_map(ask).collect()
        },
        &|_, _| answer(Header::new(opcode::NOP_IN, 0x80), 1, 9, &[], none),
        &|_, _| answer(Header::new(opcode::TEXT_RESPONSE, 0x80), 1, 9, &[], none),
        &|_, _| answer(Header::new(opcode::LOGOUT_RESPONSE, 0x80), 1, 9, &[], none),
    ];
    for (number, case) in cases.iter().enumerate() {
        read_and_write(number, case);
    }
}

#[test]
fn nop_is_answered_and_requested_logout_completes() {
    let none = Digests::default();
    let mut memory = Memory::new(1, 512);
    let mut exchange = Exchange::without_login(negotiated(), 100, 1);
    let mut nop = Header::new(opcode::NOP_IN, 0x80);
    nop.set_word(16, NO_TAG);
    nop.set_word(20, 0xabcd);
    take(&mut exchange, &mut memory, &answer(nop, 1, 9, b"ping", none)).expect("taken");
    let bytes = sent(&mut exchange, &memory, usize::MAX);
    let [(Request::NopOut(out), _)] = &requests(&bytes, none)[..] else { panic!("no NOP-Out") };
    assert_eq!((out.ttt, out.itt, out.immediate, out.cmd_sn), (0xabcd, NO_TAG, true, 1));
    // The target requests a logout. The command in flight ends first, and the waiting command is
    // never sent.
    exchange.submit(0, cdb::test_unit_ready(), Data::None, &memory);
    let bytes = sent(&mut exchange, &memory, usize::MAX);
    let tag = command_of(&requests(&bytes, none), 0).0;
    let mut asks = Header::new(opcode::ASYNC, 0x80);
    asks.set_word(16, NO_TAG);
    asks.set(36, [1]);
    take(&mut exchange, &mut memory, &answer(asks, 1, 9, &[], none)).expect("taken");
    assert!(exchange.is_ending() && !exchange.has_outgoing());
    take(&mut exchange, &mut memory, &answer(response(tag, 0), 2, 9, &[], none)).expect("done");
    assert_eq!(done(&mut exchange).len(), 1);
    exchange.submit(0, cdb::test_unit_ready(), Data::None, &memory);
    let bytes = sent(&mut exchange, &memory, usize::MAX);
    let [(Request::Logout(logout), _)] = &requests(&bytes, none)[..] else { panic!("no logout") };
    assert!(logout.immediate);
    let mut gone = Header::new(opcode::LOGOUT_RESPONSE, 0x80);
    gone.set_word(16, logout.itt);
    let ended = take(&mut exchange, &mut memory, &answer(gone, 3, 9, &[], none));
    assert!(matches!(ended, Err(InitiatorError::Ended { .. })), "{ended:?}");
}

#[test]
fn wrong_digests_end_the_session() {
    let digests = Digests { header: true, data: true };
    for (at, wanted) in [(20, "header"), (60, "data"), (48, "header"), (564, "data")] {
        let mut memory = Memory::new(1, 512);
        let mut exchange = Exchange::without_login(Negotiated { digests, ..negotiated() }, 9, 1);
        exchange.submit(0, cdb::read16(0, 1, false), Data::In(512), &memory);
        let bytes = sent(&mut exchange, &memory, usize::MAX);
        let tag = command_of(&requests(&bytes, digests), 0).0;
        let mut bytes = answer(data_in(tag, 0, 0, 0x81), 1, 9, &[5; 512], digests);
        bytes[at] ^= 1;
        let found = exchange.take(&bytes, &mut memory).expect_err("a flipped bit").to_string();
        assert!(found.contains(wanted), "{at}: {found}");
    }
}

proptest! {
    /// Sends whole PDUs whose fields come from a small set of values, so that many PDUs pass the
    /// checks.
    #[test]
    fn arbitrary_pdus_cause_no_panic_and_bounded_output(
        pdus in proptest::collection::vec(
            (0_usize..12, 0_u32..4, 0_u32..5, 0_usize..6, any::<[u8; 6]>()),
            1..60,
        ),
        digests in 0_u8..4,
    ) {
        let digests = Digests { header: digests & 1 != 0, data: digests & 2 != 0 };
        let mut memory = Memory::new(4, 40 * KIB);
        let mut exchange = Exchange::without_login(Negotiated { digests, ..negotiated() }, 3, 4);
        let mut tags = HashMap::new();
        for slot in 0..4 {
            let data = if slot % 2 == 0 { Data::In(2048) } else { Data::Out(40 << 10) };
            exchange.submit(slot, [0x88; 16], data, &memory);
            tags.insert(slot as u32, 0_u32);
        }
        for (kind, slot, number, len, noise) in pdus {
            for (request, _) in requests(&sent(&mut exchange, &memory, 4096), digests) {
                if let Request::Command(command) = request {
                    tags.insert(command.itt & 0xffff, command.itt);
                }
            }
            let tag = tags.get(&slot).copied().unwrap_or(NO_TAG);
            let codes = [0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x25, 0x26, 0x31, 0x31, 0x32, 0x3f];
            let offsets = [0, 16 << 10, 1024, 48 << 10, u32::MAX];
            let mut header = Header::new(codes[kind], noise[0]);
            header.set(2, [noise[1] & 1, noise[2]]);
            header.set(8, noise);
            header.set_word(16, if noise[3] < 32 { NO_TAG } else { tag });
            let ttt = if noise[3].is_multiple_of(3) { NO_TAG } else { u32::from(noise[4]) };
            header.set_word(20, ttt);
            header.set_word(36, number);
            header.set_word(40, offsets[number as usize]);
            header.set_word(44, u32::from(noise[5]) << 7);
            let data = vec![noise[5]; [0, 1, 2, 512, 1024, 2048][len]];
            let (stat_sn, max) = (1 + u32::from(noise[4] & 3), u32::from(noise[5] & 15));
            let bytes = answer(header, stat_sn, max, &data, digests);
            if exchange.take(&bytes, &mut memory).is_err() {
                break;
            }
            let mut done = Vec::new();
            exchange.take_done(&mut done);
            for Done { slot, .. } in done {
                exchange.submit(slot, [0; 16], Data::None, &memory);
            }
            prop_assert!(exchange.output.own_bytes() < 1 << 20);
        }
    }

    /// Sends arbitrary bytes to the exchange.
    #[test]
    fn arbitrary_bytes_cause_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut memory = Memory::new(2, 4096);
        let mut exchange = Exchange::without_login(negotiated(), 9, 2);
        exchange.submit(0, [0; 16], Data::In(4096), &memory);
        exchange.submit(1, [0; 16], Data::Out(4096), &memory);
        drop(exchange.take(&bytes, &mut memory));
    }
}
