//! Hostile and deliberately slow initiators: the target bounds their memory and drops them, and
//! other sessions are unaffected.
//!
//! Protocol violations that end a connection at once are in sessions.rs.
//!
//! Invariants:
//! - each read has a time limit, so that a hanging target fails the test;
//! - byte counts cover the server's memory, but not the kernel's socket buffers.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use weir_iscsi::Sessions;
use weir_iscsi::limits::{OWN_BYTES, QUIET_LIMIT, TRANSFER_BYTES_MAX};
use weir_iscsi_wire::pdu::{self, Header, NO_TAG, opcode};
use weir_net::limits::PEER_CONNECTIONS_MAX;
use weir_net::{Budget, Own};

use crate::common::initiator::{Initiator, NAME};
use crate::common::memory::{BLOCK, Disk, MemoryTargets, TARGET};
use crate::common::{pattern, serve_targets, setup_with, wait_until};

const SIZE: usize = 64 << 20;
const MIB: usize = 1 << 20;
/// Memory budget of the servers in this file.
const LIMIT: usize = 32 * MIB;

/// Logs in to a session whose ISID contains `id`.
fn initiator(address: SocketAddr, id: u8, keys: &[(&str, &str)]) -> Initiator {
    let mut initiator = Initiator::connect(address);
    initiator.isid[5] = id;
    initiator.log_in(keys).expect("a session");
    initiator
}

/// Runs small requests of an initiator that obeys the protocol. Returns their longest latency.
fn works(good: &mut Initiator) -> Duration {
    let mut longest = Duration::ZERO;
    for seed in 0..50 {
        let start = Instant::now();
        let data = pattern(4096, seed);
        assert_eq!(good.write(8, &data, 4096, 4096).status().0, 0);
        assert_eq!(good.read(8, 8), data);
        longest = longest.max(start.elapsed());
    }
    longest
}

#[test]
fn initiators_that_take_no_responses_share_the_budget() {
    let budget = Budget::new(LIMIT, OWN_BYTES);
    let setup = setup_with(Disk::new(SIZE), budget.clone(), 2);
    let mut greedy: Vec<_> = (1..=3).map(|id| initiator(setup.address, id, &[])).collect();
    let mut good = initiator(setup.address, 9, &[]);
    for hog in &mut greedy {
        for _ in 0..64 {
            let header = hog.read_header(0, 2048);
            hog.send(header, &[]);
        }
    }
    let longest = (0..10).map(|_| works(&mut good)).max().expect("rounds");
    assert!(longest < Duration::from_secs(1), "held up for {longest:?}");
    assert!(budget.used_bytes() <= LIMIT, "{} bytes", budget.used_bytes());
    // The server has run only the reads of 1 MiB whose data is in the kernel's socket buffers
    // (several MiB each) or still in the server's memory.
    let (done, shared) = (&setup.disk().done, &setup.disk().shared);
    let run = done.load(Ordering::Relaxed) + shared.load(Ordering::Relaxed) - 1000;
    assert!((6..100).contains(&run), "{run} reads were run for initiators that take none");
    // A large read of the initiator that obeys the protocol succeeds, because the budget gives free
    // memory to connections that hold none.
    assert_eq!(good.read(0, 4096).len(), 2 * MIB);
    // An initiator that resumes receiving gets all its responses.
    for hog in &mut greedy {
        for _ in 0..64 {
            assert_eq!(hog.take_read(MIB).len(), MIB);
        }
        // After a NOP-Out, the target frees the buffers that it kept for later reads.
        hog.nop(b"");
    }
    good.nop(b"");
    wait_until("all is given back", || budget.used_bytes() == 0);
}

// Regression: the target never answered the fifth of several reads of 1 MiB. The read waited for
// memory that spare buffers of its own session held.
#[test]
fn each_transfer_length_is_served_with_little_memory() {
    // Budget of all sessions if the server runs with the smallest value of `--memory`.
    let limit = 8 * MIB;
    for disk in [Disk::new(SIZE), Disk::new(SIZE).slow()] {
        let budget = Budget::new(limit, OWN_BYTES);
        let setup = setup_with(disk, budget.clone(), 2);
        let mut one = initiator(setup.address, 1, &[]);
        let mut other = initiator(setup.address, 2, &[]);
        for blocks in (3..16).map(|shift| 1_u16 << shift) {
            let len = usize::from(blocks) * 512;
            if len > TRANSFER_BYTES_MAX {
                continue;
            }
            let data = pattern(len, u64::from(blocks));
            for initiator in [&mut one, &mut other] {
                assert_eq!(initiator.write(0, &data, 0, 0).status().0, 0);
                let depth = if len > 4 * MIB { 2 } else { 8 };
                for _ in 0..depth {
                    let header = initiator.read_header(0, blocks);
                    initiator.send(header, &[]);
                }
                for _ in 0..depth {
                    assert!(initiator.take_read(len) == data, "{len} bytes");
                }
            }
        }
        for initiator in [&mut one, &mut other] {
            initiator.nop(b"");
        }
        wait_until("all is given back", || budget.used_bytes() == 0);
    }
}

#[test]
fn memory_is_reserved_for_the_cdb_length_of_a_read() {
    let budget = Budget::new(LIMIT, OWN_BYTES);
    let setup = setup_with(Disk::new(SIZE), budget.clone(), 2);
    let mut liar = initiator(setup.address, 1, &[]);
    // In the first round the commands wait for the storage; in the second round they run at once.
    for held in [true, false] {
        setup.disk().held.store(held, Ordering::Relaxed);
        let mut headers: Vec<_> = (0..20).map(|_| liar.read_header(0, 60000)).collect();
        headers.iter_mut().for_each(|header| header.set_word(20, 0));
        headers.iter().for_each(|header| liar.send(*header, &[]));
        if held {
            assert_eq!(liar.nop(b"?").data, b"?", "it waits for nothing");
            let begun = || setup.disk().begun.load(Ordering::Relaxed);
            wait_until("one waits for the storage", || begun() == 1);
            std::thread::sleep(Duration::from_millis(100));
            let (begun, used) = (begun(), budget.used_bytes());
            setup.disk().held.store(false, Ordering::Relaxed);
            assert_eq!(begun, 1, "as many as fit into the memory that there is");
            assert!(used <= LIMIT, "{used} bytes");
        }
        for _ in headers {
            let reply = liar.reply();
            assert_eq!((reply.header.opcode(), reply.header.flags() & 6), (opcode::RESPONSE, 4));
            assert_eq!(reply.header.word(44) as usize, 60000 * BLOCK);
        }
    }
    liar.nop(b"");
    wait_until("all is given back", || budget.used_bytes() == 0);
}

#[test]
fn r2ts_are_sent_only_while_memory_is_available() {
    let budget = Budget::new(LIMIT, OWN_BYTES);
    let setup = setup_with(Disk::new(SIZE), budget.clone(), 2);
    let keys = [("ImmediateData", "No")];
    let mut greedy: Vec<_> = (1..=4).map(|id| initiator(setup.address, id, &keys)).collect();
    let mut good = initiator(setup.address, 9, &[]);
    let mut asked = 0;
    for hog in &mut greedy {
        let writes: Vec<_> = (0..20).map(|_| hog.write_header(0, 4 * MIB, true)).collect();
        writes.iter().for_each(|header| hog.send(*header, &[]));
        // Count the R2Ts that arrive before the NOP-In, which answers the NOP-Out.
        let mut reply = hog.nop(b"!");
        while reply.header.opcode() == opcode::R2T {
            asked += usize::from(reply.header.word(40) == 0);
            reply = hog.reply();
        }
    }
    assert!((4..=LIMIT / (4 * MIB)).contains(&asked), "{asked} writes of 4 MiB may gather");
    assert!(works(&mut good) < Duration::from_secs(1));
    assert!(budget.used_bytes() <= LIMIT);
    // The writes of disconnected initiators no longer hold memory.
    drop(greedy);
    let data = pattern(4 * MIB, 7);
    assert_eq!(good.write(64, &data, 0, 0).status().0, 0);
    wait_until("all is given back", || budget.used_bytes() == 0);
}

#[test]
fn initiator_with_incomplete_data_is_dropped_when_memory_is_full() {
    let budget = Budget::new(2 * MIB, OWN_BYTES);
    let setup = setup_with(Disk::new(SIZE), budget.clone(), 2);
    let mut good = initiator(setup.address, 9, &[]);
    let mut hog = initiator(setup.address, 1, &[("InitialR2T", "No")]);
    let mut sent = 0;
    for _ in 0..120 {
        // Send a part of the unsolicited data, and never send the rest.
        let header = hog.write_header(0, 64 << 10, false);
        let mut out = weir_block::OutBuf::default();
        pdu::put(&mut out, header, &vec![1; 16 << 10], hog.digests);
        if hog.socket.write_all(out.filled()).is_err() {
            break;
        }
        sent += 1;
    }
    hog.expect_end();
    assert!(sent > 16, "some may always come");
    assert!(works(&mut good) < Duration::from_secs(1));
    wait_until("all is given back", || budget.used_bytes() == 0);
}

#[test]
fn sessions_per_address_and_in_total_are_bounded() {
    for (sessions, most) in
        [(Sessions::with_limits(9, 9, 3), 3), (Sessions::with_limits(9, 4, 9), 4)]
    {
        let targets = MemoryTargets::with_sessions(Disk::new(SIZE), sessions);
        let setup = serve_targets(targets, Budget::new(LIMIT, OWN_BYTES), 2);
        let log_in = |name: usize, id: u8| {
            let mut initiator = Initiator::connect(setup.address);
            initiator.isid[5] = id;
            let name = format!("{NAME}{name}");
            let keys = [("InitiatorName", name.as_str()), ("TargetName", TARGET)];
            initiator.login_step(1, Some(3), &keys).map(|_| initiator)
        };
        // Initiators choose their names freely, so each login uses another name.
        let mut sessions: Vec<_> =
            (0..most).map(|name| log_in(name, 0).expect("there is room")).collect();
        for name in [0, 77] {
            assert_eq!(log_in(name, 9).err(), Some([3, 2]), "{name}: out of resources");
        }
        // Reinstatement replaces a session in its slot; a session that ends frees its slot.
        sessions[0] = log_in(0, 0).expect("its own place");
        drop(sessions.pop());
        setup.wait_for_nexuses(most as u64 - 1);
        log_in(99, 9).expect("room again");
    }
}

// Regression: each of 896 stalled sessions held 1 MiB of memory, nearly 1 GiB in total.
#[test]
fn many_stalled_sessions_stay_within_the_budget() {
    let (limit, own_total) = (4 * MIB, 4 * MIB);
    let own = Own { least_bytes: 64 << 10, most_bytes: MIB, total_bytes: own_total };
    let budget = Budget::new(limit, own);
    let setup = setup_with(Disk::new(SIZE), budget.clone(), 2);
    let mut greedy: Vec<_> = (1..=40).map(|id| initiator(setup.address, id, &[])).collect();
    for hog in &mut greedy {
        for len in [1, 8, 2048].into_iter().cycle().take(60) {
            let header = hog.read_header(0, len);
            hog.send(header, &[]);
        }
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        let used = budget.used_bytes();
        assert!(used <= limit + own_total, "{used} bytes");
        std::thread::sleep(Duration::from_millis(2));
    }
    // The stalled sessions wait for each other's memory, so the server ends some of them.
    let sessions = || setup.targets.sessions.list().len();
    wait_until("one that stalls is ended", || sessions() < 40);
    drop(greedy);
    wait_until("all is given back", || budget.used_bytes() == 0);
}

fn answer_ping(initiator: &mut Initiator, ping: &Header) {
    let mut header = Header::new(opcode::NOP_OUT | opcode::IMMEDIATE, 0x80);
    header.set_word(16, NO_TAG);
    header.set_word(20, ping.word(20));
    header.set_word(24, initiator.cmd_sn);
    let mut out = weir_block::OutBuf::default();
    pdu::put(&mut out, header, &[], initiator.digests);
    drop(initiator.socket.write_all(out.filled()));
}

/// Responds to NOP-Ins until the target drops the connection. Returns the time until then.
fn pings_until_dropped(initiator: &mut Initiator) -> Duration {
    let start = Instant::now();
    while let Some(ping) = initiator.try_reply() {
        assert_eq!(ping.header.opcode(), opcode::NOP_IN);
        answer_ping(initiator, &ping.header);
    }
    start.elapsed()
}

#[test]
fn initiator_that_ignores_r2t_is_dropped() {
    let budget = Budget::new(LIMIT, OWN_BYTES);
    let setup = setup_with(Disk::new(SIZE), budget.clone(), 2);
    let limit = Duration::from_millis(200);
    *setup.targets.quiet_limit.lock() = limit;
    for initial_r2t in ["Yes", "No"] {
        let keys = [("ImmediateData", "No"), ("InitialR2T", initial_r2t)];
        let mut slow = initiator(setup.address, 1, &keys);
        // Write data that arrives slowly does not end the session.
        let header = slow.write_header(0, 16 * BLOCK, initial_r2t == "Yes");
        slow.send(header, &[]);
        let ttt = if initial_r2t == "Yes" { slow.reply().header.word(20) } else { NO_TAG };
        for (sn, at) in (0..8 * BLOCK).step_by(BLOCK).enumerate() {
            std::thread::sleep(limit / 2);
            let part = Initiator::data_out(header.itt(), ttt, sn as u32, at, false);
            slow.send(part, &[7; BLOCK]);
        }
        let took = pings_until_dropped(&mut slow);
        assert!((limit..limit * 15).contains(&took), "dropped after {took:?}");
        setup.wait_for_nexuses(0);
        assert_eq!(setup.targets.disk.bytes(0, BLOCK), vec![0; BLOCK], "nothing was written");
    }
    wait_until("all is given back", || budget.used_bytes() == 0);
}

#[test]
fn stalled_initiator_is_dropped_and_its_memory_freed() {
    let budget = Budget::new(LIMIT, OWN_BYTES);
    let setup = setup_with(Disk::new(SIZE), budget.clone(), 2);
    *setup.targets.quiet_limit.lock() = Duration::from_millis(300);
    let mut greedy: Vec<_> = (1..=6).map(|id| initiator(setup.address, id, &[])).collect();
    for hog in &mut greedy {
        // The session has begun, with the short time limit.
        hog.nop(b"");
        for _ in 0..64 {
            let header = hog.read_header(0, 2048);
            hog.send(header, &[]);
        }
    }
    *setup.targets.quiet_limit.lock() = QUIET_LIMIT;
    // A new session gets memory at the latest when the server has dropped the stalled sessions.
    let mut good = initiator(setup.address, 9, &[]);
    assert_eq!(good.read(0, 16384).len(), 8 * MIB);
    assert!(works(&mut good) < Duration::from_secs(1));
    let is_there = |id: u8| setup.targets.sessions.list().iter().any(|one| one.isid.0[5] == id);
    wait_until("those that take nothing are gone", || (1..=6).all(|id| !is_there(id)));
    good.nop(b"");
    wait_until("all is given back", || budget.used_bytes() == 0);
}

#[test]
fn slow_pdus_time_out_and_delay_no_other_session() {
    let setup = setup_with(Disk::new(SIZE), Budget::new(LIMIT, OWN_BYTES), 1);
    *setup.targets.quiet_limit.lock() = Duration::from_millis(200);
    let mut good = initiator(setup.address, 9, &[]);
    let mut slow: Vec<_> = (1..=20).map(|id| initiator(setup.address, id + 9, &[])).collect();
    // Half of the initiators send an incomplete header; the others send a header with a part of its
    // data.
    let headers: Vec<_> = slow.iter_mut().map(|one| one.write_header(0, 64 << 10, true)).collect();
    let (mut gone, start) = (false, Instant::now());
    for at in 0.. {
        for (one, header) in slow.iter_mut().zip(&headers) {
            let mut header = *header;
            header.set_data_bytes(64 << 10);
            let byte = header.0.get(at).copied().unwrap_or(7);
            let first = if at == 0 && one.isid[5] % 2 == 0 { &header.0[..47] } else { &[byte] };
            gone |= one.socket.write_all(first).is_err();
        }
        assert!(works(&mut good) < Duration::from_secs(1));
        if gone {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "they are let go of");
    }
    setup.wait_for_nexuses(1);
}

#[test]
fn silent_connections_do_not_block_logins() {
    // This process holds both ends of each connection, so raise its limit of open files.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("up to the hard");
    let setup = setup_with(Disk::new(SIZE), Budget::new(LIMIT, OWN_BYTES), 2);
    let mut first = initiator(setup.address, 1, &[]);
    let connect = |_| std::net::TcpStream::connect(setup.address).expect("it listens");
    let mut silent: Vec<_> = (0..PEER_CONNECTIONS_MAX).map(connect).collect();
    wait_until("no room", || setup.server.connections() >= PEER_CONNECTIONS_MAX);
    for id in 2..12 {
        let start = Instant::now();
        let mut one = initiator(setup.address, id, &[]);
        assert!(works(&mut one).max(start.elapsed()) < Duration::from_secs(1));
        assert_eq!(one.log_out(0).header.byte(2), 0);
        // Another connection without a login takes the slot that became free.
        silent.push(connect(0));
    }
    // The server has closed the oldest connections without a login; all sessions remain.
    let mut byte = [0];
    silent[0].set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    assert_eq!(std::io::Read::read(&mut silent[0], &mut byte).expect("the end"), 0);
    works(&mut first);
    assert!(setup.server.connections() <= PEER_CONNECTIONS_MAX + 20);
}

#[test]
fn connections_of_one_thread_share_it_fairly() {
    const COMMANDS: usize = 5000;
    let setup = setup_with(Disk::new(SIZE), Budget::new(LIMIT, OWN_BYTES), 1);
    let mut initiators: Vec<_> = (1..=4).map(|id| initiator(setup.address, id, &[])).collect();
    *setup.disk().order.lock() = Some(Vec::new());
    // All other commands arrive while the first command blocks the thread.
    *setup.disk().busy.lock() = Duration::from_millis(500);
    for (id, one) in initiators.iter_mut().enumerate() {
        let mut out = weir_block::OutBuf::default();
        for _ in 0..COMMANDS {
            let mut cdb = [0; 16];
            cdb[15] = id as u8;
            // TEST UNIT READY as an immediate command, which has no place in the CmdSN order.
            let mut header = one.command(0x81, 0, &cdb);
            header.set(0, [opcode::COMMAND | opcode::IMMEDIATE]);
            one.cmd_sn -= 1;
            header.set_word(24, one.cmd_sn);
            pdu::put(&mut out, header, &[], one.digests);
        }
        one.send_raw(out.filled());
    }
    for one in &mut initiators {
        (0..COMMANDS).for_each(|_| assert_eq!(one.reply().status().0, 0));
    }
    let order = setup.disk().order.lock().take().expect("it was noted");
    assert_eq!(order.len(), 4 * COMMANDS);
    // Check the first half of the recorded commands, in which all connections have commands left.
    let half = &order[..order.len() / 2];
    let longest = half.chunk_by(|a, b| a == b).map(<[u8]>::len).max().expect("commands");
    assert!(longest <= COMMANDS / 5, "{longest} commands in a row of one connection");
    for id in 0..4 {
        let own: usize = half.iter().map(|of| usize::from(*of == id)).sum();
        assert!(own >= half.len() / 8, "{own} of {} are of connection {id}", half.len());
    }
}
