//! Limits and counters of one session (requests in progress, and time), and the limits that all
//! discovery sessions share.
//!
//! Memory limits of all connections are in hostile.rs, the command window in sessions.rs.
//!
//! Invariants:
//! - each read has a time limit, so that a hanging target fails the test;
//! - each test fails if its limit is removed.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weir_iscsi::Discovered;
use weir_iscsi::limits::{
    COMMANDS_MAX, DISCOVERIES_MAX, GATHER_BYTES_MAX, MANAGEMENT_MAX, OWN, TEXT_PART_BYTES,
    TRANSFER_BYTES_MAX,
};
use weir_iscsi_wire::pdu::{self, Header, NO_TAG, opcode};
use weir_net::Budget;

use crate::common::initiator::{Initiator, NAME, cdb10};
use crate::common::memory::{BLOCK, Disk, MemoryTargets, TARGET};
use crate::common::{Setup, serve_as, setup, setup_with, wait_until};

const SIZE: usize = 32 << 20;
const MIB: usize = 1 << 20;
/// Reject reason (RFC 7143 11.17.1).
const TOO_MANY_IMMEDIATE: u8 = 6;

/// Holds the disk's commands until this value is dropped, also when a test fails: a server that
/// stops waits for its commands.
struct Held<'a>(&'a Disk);

impl<'a> Held<'a> {
    fn new(disk: &'a Disk) -> Self {
        disk.held.store(true, Ordering::Relaxed);
        Self(disk)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Relaxed);
    }
}

fn discovery(mut initiator: Initiator, keys: &[(&str, &str)]) -> Initiator {
    let names = [("InitiatorName", NAME), ("SessionType", "Discovery")];
    let all: Vec<_> = names.iter().chain(keys).copied().collect();
    initiator.login_step(1, Some(3), &all).expect("a discovery session");
    initiator
}

#[test]
fn discoveries_from_all_addresses_together_are_bounded() {
    let setup = setup(Disk::new(BLOCK));
    let mut discoveries = Vec::new();
    for last in 1..=8 {
        for _ in 0..10 {
            let initiator = Initiator::connect_from([127, 0, 0, last], setup.address);
            discoveries.push(discovery(initiator, &[]));
        }
    }
    assert!(discoveries.len() > DISCOVERIES_MAX);
    let here = || setup.targets.sessions.list().len();
    wait_until("the oldest gave way", || here() <= DISCOVERIES_MAX);
    assert_eq!(here(), DISCOVERIES_MAX);
    let mut newest = discoveries.pop().expect("80 of them");
    newest.nop(b"");
    discoveries[0].expect_end();
}

#[test]
fn discovery_is_ended_after_a_time_limit() {
    const LIMIT: Duration = Duration::from_millis(300);
    let targets = MemoryTargets::new(Disk::new(BLOCK));
    let budget = Budget::new(64 * MIB, OWN);
    let setup = serve_as(targets, budget, 2, |iscsi| iscsi.with_discovery_limit(LIMIT));
    let mut session = Initiator::session(setup.address, &[]);
    let start = Instant::now();
    let mut initiator = discovery(Initiator::connect(setup.address), &[]);
    initiator.nop(b"");
    initiator.expect_end();
    let took = start.elapsed();
    assert!(took + LIMIT / 6 >= LIMIT && took < LIMIT * 10, "ended after {took:?}");
    session.nop(b"");
}

#[test]
fn management_requests_that_wait_are_bounded() {
    let Setup { targets, address, server: _server } = setup(Disk::new(BLOCK));
    let mut initiator = Initiator::session(address, &[]);
    let held = Held::new(&targets.disk);
    let read = initiator.read_header(0, 1);
    initiator.send(read, &[]);
    let aborts: Vec<u32> =
        (0..=MANAGEMENT_MAX).map(|_| initiator.manage(1, read.itt(), read.cmd_sn())).collect();
    let reply = initiator.reply();
    assert_eq!(reply.header.opcode(), opcode::REJECT);
    assert_eq!(reply.header.byte(2), TOO_MANY_IMMEDIATE);
    let rejected = Header(reply.data[..48].try_into().expect("the header of the request"));
    assert_eq!(rejected.itt(), aborts[MANAGEMENT_MAX]);
    drop(held);
    for abort in &aborts[..MANAGEMENT_MAX] {
        let reply = initiator.reply().header;
        assert_eq!(reply.opcode(), opcode::MANAGEMENT_RESPONSE);
        assert_eq!((reply.itt(), reply.byte(2)), (*abort, 0));
    }
    assert_eq!(initiator.read(0, 1).len(), BLOCK);
}

#[test]
fn immediate_commands_above_a_full_window_are_bounded() {
    let Setup { targets, address, server: _server } = setup(Disk::new(BLOCK));
    let mut initiator = Initiator::session(address, &[]);
    let held = Held::new(&targets.disk);
    for _ in 0..COMMANDS_MAX {
        let header = initiator.read_header(0, 1);
        initiator.send(header, &[]);
    }
    let mut last = 0;
    for _ in 0..=MANAGEMENT_MAX {
        let mut header = initiator.read_header(0, 1);
        // An immediate command carries the CmdSN of the next command and does not advance it.
        initiator.cmd_sn -= 1;
        header.set(0, [header.opcode() | opcode::IMMEDIATE]);
        last = header.itt();
        initiator.send(header, &[]);
    }
    let reply = initiator.reply();
    assert_eq!(reply.header.opcode(), opcode::REJECT);
    assert_eq!(reply.header.byte(2), TOO_MANY_IMMEDIATE);
    let rejected = Header(reply.data[..48].try_into().expect("the header of the request"));
    assert_eq!(rejected.itt(), last);
    drop(held);
    for _ in 0..COMMANDS_MAX as usize + MANAGEMENT_MAX {
        initiator.take_read(BLOCK);
    }
    initiator.nop(b"");
}

#[test]
fn number_of_writes_with_open_r2ts_is_bounded() {
    let budget = Budget::new(512 * MIB, OWN);
    let setup = setup_with(Disk::new(BLOCK), budget.clone(), 2);
    let mut initiator = Initiator::session(setup.address, &[("ImmediateData", "No")]);
    let blocks = (TRANSFER_BYTES_MAX / BLOCK) as u32;
    for _ in 0..20 {
        let cdb = [&[0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &blocks.to_be_bytes()].concat();
        let header = initiator.command(0xa1, TRANSFER_BYTES_MAX, &cdb);
        initiator.send(header, &[]);
    }
    let most = GATHER_BYTES_MAX / TRANSFER_BYTES_MAX;
    let mut asked = BTreeSet::new();
    while asked.len() < most {
        let reply = initiator.reply().header;
        assert_eq!(reply.opcode(), opcode::R2T);
        asked.insert(reply.itt());
    }
    // If one more write got memory, its R2T would arrive during these waits.
    for _ in 0..3 {
        assert_eq!(initiator.nop(b"!").data, b"!", "data of {most} writes is asked for");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Aborting a write releases its memory for the next write.
    initiator.manage(1, *asked.first().expect("one was asked for"), initiator.cmd_sn - 1);
    let replies = [initiator.reply(), initiator.reply()].map(|reply| reply.header);
    let r2t = replies.iter().find(|reply| reply.opcode() == opcode::R2T).expect("the next one");
    assert!(!asked.contains(&r2t.itt()));
    drop(initiator);
    wait_until("all is given back", || budget.used_bytes() == 0);
}

#[test]
fn target_list_is_sent_in_bounded_parts() {
    let Setup { targets, address, server: _server } = setup(Disk::new(BLOCK));
    let one = targets.targets.lock()[0].clone();
    let named = |n| Discovered { name: format!("{TARGET}{n:04}"), ..one.clone() };
    *targets.targets.lock() = (0..2000).map(named).collect();
    let keys = [("MaxRecvDataSegmentLength", "262144")];
    let mut initiator = discovery(Initiator::connect(address), &keys);
    let mut reply = initiator.text(b"SendTargets=All\0", 0x80, NO_TAG);
    let mut all = reply.data.clone();
    while reply.header.flags() & 0x40 != 0 {
        assert_eq!(reply.data.len(), TEXT_PART_BYTES);
        reply = initiator.text(b"", 0x80, reply.header.word(20));
        all.extend(&reply.data);
    }
    assert!(reply.data.len() <= TEXT_PART_BYTES);
    let text = String::from_utf8(all).expect("text");
    assert_eq!(text.matches("TargetName=").count(), 2000);
    assert!(text.len() > 3 * TEXT_PART_BYTES);
}

// The server has enough free memory in this test. With scarce memory, the test would also accept a
// server that drops a stalled session only when another session waits for memory.
#[test]
fn stalled_initiator_is_dropped_even_if_memory_is_free() {
    let limit = Duration::from_millis(200);
    let setup = setup(Disk::new(SIZE));
    *setup.targets.quiet_limit.lock() = limit;
    let start = Instant::now();
    let mut stalled = Initiator::session(setup.address, &[]);
    for _ in 0..4 {
        let header = stalled.read_header(0, 16384);
        stalled.send(header, &[]);
    }
    // The initiator stays active, but sends only NOP-Outs that need no response.
    let mut header = Header::new(opcode::NOP_OUT | opcode::IMMEDIATE, 0x80);
    header.set_word(16, NO_TAG);
    header.set_word(20, NO_TAG);
    header.set_word(24, stalled.cmd_sn);
    let mut nop = weir_block::OutBuf::default();
    pdu::put(&mut nop, header, &[], stalled.digests);
    while !setup.targets.sessions.list().is_empty() {
        assert!(start.elapsed() < limit * 40, "it is not dropped");
        drop(stalled.socket.write_all(nop.filled()));
        std::thread::sleep(limit / 10);
    }
    let took = start.elapsed();
    assert!(took >= 2 * limit, "dropped after {took:?}");
}

// Regression: `written_bytes` of a session counted the whole Expected Data Transfer Length of
// writes that failed, and of writes with a shorter transfer length.
#[test]
fn session_counts_only_bytes_of_successful_writes() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[]);
    let counted = || {
        let list = targets.sessions.list();
        let [session] = &list[..] else { panic!("one session: {list:?}") };
        (session.commands, session.written_bytes)
    };
    assert_eq!(initiator.write(0, &[1; 4 * BLOCK], 4 * BLOCK, 0).status().0, 0);
    assert_eq!(counted(), (1, 4 * BLOCK as u64));
    // The logical unit refuses a write beyond the end of the unit.
    let end = (SIZE / BLOCK) as u32;
    assert_eq!(initiator.write(end, &[2; 4 * BLOCK], 4 * BLOCK, 0).status(), (2, [5, 0x21, 0]));
    assert_eq!(counted(), (2, 4 * BLOCK as u64));
    // The connection refuses a write above the maximum transfer length before any data arrives.
    let header = initiator.command(0xa1, 1 << 30, &cdb10(0x2a, 0, 1));
    initiator.send(header, &[]);
    assert_eq!(initiator.reply().status(), (2, [5, 0x24, 0]));
    assert_eq!(counted(), (3, 4 * BLOCK as u64));
    // The transfer length in the CDB is shorter than the data.
    let header = initiator.command(0xa1, 4 * BLOCK, &cdb10(0x2a, 0, 1));
    initiator.send(header, &[3; 4 * BLOCK]);
    assert_eq!(initiator.reply().status().0, 0);
    assert_eq!(counted(), (4, 5 * BLOCK as u64));
}
