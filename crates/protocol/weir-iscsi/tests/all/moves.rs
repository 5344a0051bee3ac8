//! Sessions that move between threads of the server while they are in use.
//!
//! The tests of weir-net cover the automatic balancing of sessions.
//!
//! Invariant: the initiator checks the sequence numbers of every response, and the data of every
//! read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_iscsi::Iscsi;
use weir_iscsi_wire::pdu::{NO_TAG, opcode};
use weir_net::{AllowList, ServerHandle};

use crate::common::initiator::{Initiator, NAME};
use crate::common::memory::{BLOCK, Disk, TARGET};
use crate::common::{Setup, pattern, setup, wait_until};

const SIZE: usize = 32 << 20;

/// Moves the only session between two threads during `work`. Returns the number of moves.
fn moving<T>(server: &ServerHandle<Iscsi>, work: impl FnOnce() -> T) -> (T, u64) {
    let (done, moves) = (AtomicBool::new(false), AtomicU64::new(0));
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = server.connections_of_workers();
            while !done.load(Ordering::Relaxed) {
                let now = server.connections_of_workers();
                if now != last {
                    moves.fetch_add(1, Ordering::Relaxed);
                    last = now;
                }
                server.move_sessions(0, 1, 1);
                server.move_sessions(1, 0, 1);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        // Stop the other thread before a failed test unwinds its stack.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        result
    });
    let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    (result, moves.into_inner())
}

#[test]
fn moved_session_keeps_its_numbers_and_data() {
    let Setup { targets, server, address } = setup(Disk::new(SIZE).slow());
    for digest in ["None", "CRC32C"] {
        let keys = [("HeaderDigest", digest), ("DataDigest", digest), ("InitialR2T", "No")];
        let mut initiator = Initiator::session(address, &keys);
        let tsih = targets.sessions.list()[0].tsih;
        let ((), moves) = moving(&server, || {
            for seed in 0..300 {
                let data = pattern(BLOCK * (1 + seed as usize % 200), seed);
                let block = seed as u32 * 100;
                let at_once = data.len().min(4096);
                let unasked = data.len().min(16 << 10);
                let response = initiator.write(block, &data, at_once, unasked);
                assert_eq!(response.status().0, 0);
                assert_eq!(initiator.read(block, (data.len() / BLOCK) as u16), data);
                assert_eq!(initiator.nop(b"there?").data, b"there?");
            }
        });
        assert!(moves > 5, "it moved {moves} times");
        let list = targets.sessions.list();
        assert_eq!((list.len(), list[0].tsih, list[0].commands), (1, tsih, 600));
        assert_eq!(targets.disk.nexuses.load(Ordering::SeqCst), 1, "the nexus is the same");
        assert_eq!(initiator.log_out(0).header.byte(2), 0);
        initiator.expect_end();
        wait_until("no nexus", || targets.disk.nexuses.load(Ordering::SeqCst) == 0);
    }
    server.stop();
}

#[test]
fn deep_queue_is_answered_while_the_session_moves() {
    let Setup { targets, server, address } = setup(Disk::new(SIZE).slow());
    let data = pattern(SIZE, 1);
    targets.disk.fill(0, &data);
    let mut initiator = Initiator::session(address, &[]);
    let (seen, moves) = moving(&server, || {
        let mut waiting = std::collections::HashMap::new();
        let (mut seen, mut random) = (0, fastrand::Rng::with_seed(1));
        while seen < 5000 {
            while waiting.len() < 16 && seen < 4900 {
                let (block, blocks) = (random.u32(..60_000), random.u16(1..9));
                let header = initiator.read_header(block, blocks);
                waiting.insert(header.itt(), (block as usize * BLOCK, usize::from(blocks) * BLOCK));
                initiator.send(header, &[]);
            }
            if waiting.is_empty() {
                break;
            }
            let reply = initiator.reply();
            let (at, len) = waiting.remove(&reply.header.itt()).expect("one that was asked for");
            assert_eq!(reply.data, &data[at..at + len]);
            seen += 1;
        }
        seen
    });
    assert!(seen >= 4900 && moves > 0, "{seen} reads, {moves} moves");
}

/// A session that waits for input from its initiator does not move before this input arrives.
#[test]
fn session_with_unfinished_requests_does_not_move() {
    let Setup { targets, server, address } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[("InitialR2T", "Yes")]);
    let ask = |initiator: &mut Initiator| {
        server.move_sessions(0, 1, 1);
        server.move_sessions(1, 0, 1);
        std::thread::sleep(Duration::from_millis(20));
        // The NOP-Out makes the session check for a requested move, which it does when it receives
        // a PDU.
        initiator.nop(b"");
    };

    // The session has a write in progress that waits for solicited data.
    initiator.read(0, 1);
    let before = server.connections_of_workers();
    let data = pattern(64 << 10, 3);
    let header = initiator.write_header(0, data.len(), true);
    initiator.send(header, &[]);
    let r2t = initiator.reply();
    assert_eq!(r2t.header.opcode(), opcode::R2T);
    ask(&mut initiator);
    assert_eq!(server.connections_of_workers(), before);
    initiator.send_sequence(header.itt(), r2t.header.word(20), &data, (0, data.len()));
    assert_eq!(initiator.reply().status().0, 0);
    assert_eq!(targets.disk.bytes(0, data.len()), data);

    // Send the second command before the first, so that it waits for its CmdSN.
    let (first, second) = (initiator.read_header(0, 1), initiator.read_header(1, 1));
    initiator.send(second, &[]);
    ask(&mut initiator);
    assert_eq!(server.connections_of_workers(), before);
    initiator.send(first, &[]);
    assert_eq!(initiator.take_read(BLOCK), data[..BLOCK]);
    assert_eq!(initiator.take_read(BLOCK), data[BLOCK..2 * BLOCK]);

    // The session waits for the rest of a text request.
    let begun = initiator.text(b"X-a=", 0x40, NO_TAG);
    assert_eq!(begun.header.opcode(), opcode::TEXT_RESPONSE);
    ask(&mut initiator);
    assert_eq!(server.connections_of_workers(), before);
    let ended = initiator.text(b"1\0", 0x80, begun.header.word(20));
    assert_eq!(ended.data, b"X-a=NotUnderstood\0");

    // The session ignored the earlier requests to move. It has no unfinished request now, so it
    // moves.
    server.move_sessions(0, 1, 1);
    server.move_sessions(1, 0, 1);
    std::thread::sleep(Duration::from_millis(20));
    initiator.nop(b"");
    wait_until("a move", || server.connections_of_workers() != before);
    assert_eq!(initiator.read(0, 128), data);
}

#[test]
fn partial_pdu_moves_with_its_session() {
    let Setup { targets, server, address } = setup(Disk::new(SIZE));
    let data = pattern(64 << 10, 4);
    targets.disk.fill(0, &data);
    let mut initiator = Initiator::session(address, &[]);
    for part in [1, 20, 47] {
        initiator.nop(b"");
        let before = server.connections_of_workers();
        server.move_sessions(0, 1, 1);
        server.move_sessions(1, 0, 1);
        std::thread::sleep(Duration::from_millis(20));
        let header = initiator.read_header(0, 128);
        initiator.send_raw(&header.0[..part]);
        wait_until("a move", || server.connections_of_workers() != before);
        initiator.send_raw(&header.0[part..]);
        assert_eq!(initiator.take_read(data.len()), data);
    }
}

#[test]
fn server_can_end_moving_sessions() {
    let others = AllowList::parse(["10.0.0.0/8"]).expect("a list");
    for round in 0..60_u32 {
        let Setup { targets, server, address } = setup(Disk::new(SIZE).slow());
        let mut initiator = Initiator::session(address, &[]);
        let end = AtomicBool::new(false);
        let mut server = Some(server);
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| {
                // Wait until the target ends the session, by an Asynchronous Message or by closing
                // the connection.
                let start = Instant::now();
                loop {
                    assert!(start.elapsed() < Duration::from_secs(20), "it is told to go");
                    let header = initiator.read_header(0, 1);
                    let mut out = weir_block::OutBuf::default();
                    weir_iscsi_wire::pdu::put(&mut out, header, &[], initiator.digests);
                    if std::io::Write::write_all(&mut initiator.socket, out.filled()).is_err() {
                        return;
                    }
                    match initiator.try_reply() {
                        Some(reply) if reply.header.opcode() == opcode::DATA_IN => {}
                        Some(reply) if reply.header.opcode() == opcode::RESPONSE => {}
                        _ => return,
                    }
                }
            });
            let handle = server.as_ref().expect("it runs");
            let mover = scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    handle.move_sessions(0, 1, 1);
                    handle.move_sessions(1, 0, 1);
                }
            });
            std::thread::sleep(Duration::from_millis(u64::from(round % 7)));
            match round % 3 {
                0 => handle.disconnect(TARGET),
                1 => handle.disconnect_all_but(TARGET, &others),
                _ => assert_eq!(targets.sessions.end_initiator(TARGET, NAME), 1),
            }
            let read = reads.join();
            end.store(true, Ordering::Relaxed);
            mover.join().expect("it ends");
            read.expect("its answers are right");
        });
        wait_until("no nexus", || targets.disk.nexuses.load(Ordering::SeqCst) == 0);
        drop(server.take());
        assert!(targets.sessions.list().is_empty());
    }
}

#[test]
fn shutdown_ends_moving_sessions() {
    for round in 0..30_u64 {
        let Setup { targets, server, address } = setup(Disk::new(SIZE));
        let mut initiator = Initiator::session(address, &[]);
        for _ in 0..50 + 7 * round {
            server.move_sessions(0, 1, 1);
            server.move_sessions(1, 0, 1);
            initiator.nop(b"");
        }
        server.move_sessions(0, 1, 1);
        server.move_sessions(1, 0, 1);
        server.stop();
        assert_eq!(targets.disk.nexuses.load(Ordering::SeqCst), 0);
        assert!(targets.sessions.list().is_empty());
    }
}
