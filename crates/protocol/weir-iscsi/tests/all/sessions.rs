//! Sessions with an initiator that sends raw PDUs: data transfer, task management, ordering,
//! session ends, and protocol violations.
//!
//! Logins are in logins.rs; unit tests cover single PDUs and keys.
//!
//! Invariants:
//! - each read has a time limit, so that a hanging target fails the test;
//! - after a protocol violation, the server still serves other sessions.

use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_iscsi::Discovered;
use weir_iscsi::limits::{COMMANDS_MAX, TRANSFER_BYTES_MAX};
use weir_iscsi_wire::pdu::{Header, NO_TAG, opcode};
use weir_iscsi_wire::text;
use weir_scsi::Management;

use crate::common::initiator::{Initiator, cdb10};
use crate::common::memory::{BLOCK, Disk, TARGET};
use crate::common::{Setup, pattern, setup, wait_until};

const SIZE: usize = 32 << 20;

#[test]
fn writes_work_with_all_negotiated_data_parameters() {
    let Setup { targets, server, address } = setup(Disk::new(SIZE).slow());
    let mut seed = 0;
    for (immediate, initial_r2t) in [("Yes", "Yes"), ("Yes", "No"), ("No", "Yes"), ("No", "No")] {
        for (first, burst, segment, r2ts, digest) in [
            (512, 512, 512, 1, "None"),
            (4096, 8192, 4096, 1, "CRC32C"),
            (1000, 3004, 1000, 4, "CRC32C"),
            (65536, 262_144, 8192, 2, "None"),
            (65536, 1 << 20, 262_144, 4, "CRC32C"),
        ] {
            let texts = [first, burst, segment, r2ts].map(|number: usize| number.to_string());
            let mut initiator = Initiator::session(
                address,
                &[
                    ("ImmediateData", immediate),
                    ("InitialR2T", initial_r2t),
                    ("FirstBurstLength", &texts[0]),
                    ("MaxBurstLength", &texts[1]),
                    ("MaxRecvDataSegmentLength", &texts[2]),
                    ("MaxOutstandingR2T", &texts[3]),
                    ("HeaderDigest", digest),
                    ("DataDigest", digest),
                ],
            );
            assert_eq!(initiator.digests.header, digest == "CRC32C");
            initiator.segment = segment;
            for len in [BLOCK, 4096, 65536, 65536 + BLOCK, 300 << 10] {
                seed += 1;
                let data = pattern(len, seed);
                let first = first.min(len);
                let at_once = if immediate == "Yes" { first.min(segment) } else { 0 };
                let unasked = if initial_r2t == "No" { first } else { at_once };
                let response = initiator.write(64, &data, at_once, unasked);
                assert_eq!(response.status().0, 0, "{immediate} {initial_r2t} {len}");
                assert_eq!(response.header.flags() & 6, 0, "no residual");
                assert_eq!(targets.disk.bytes(64 * BLOCK, len), data);
                assert_eq!(initiator.read(64, (len / BLOCK) as u16), data);
            }
            assert_eq!(initiator.log_out(0).header.byte(2), 0);
            initiator.expect_end();
        }
    }
    server.stop();
}

#[test]
fn large_reads_are_sent_from_cached_blocks_in_any_split() {
    const LARGE: usize = 4 << 20;
    let Setup { targets, address, server } = setup(Disk::new(LARGE));
    targets.disk.fill(0, &pattern(LARGE, 6));
    let mut shared = 0;
    for (digest, segment, burst, is_shared) in [
        ("None", "262144", "1048576", true),
        ("None", "8192", "16384", true),
        ("CRC32C", "12288", "1048576", true),
        ("CRC32C", "1048576", "1048576", true),
        // With this segment length, a Data-In would end inside a block.
        ("CRC32C", "6144", "1048576", false),
    ] {
        let mut initiator = Initiator::session(
            address,
            &[
                ("MaxRecvDataSegmentLength", segment),
                ("MaxBurstLength", burst),
                ("HeaderDigest", digest),
                ("DataDigest", digest),
            ],
        );
        let wanted = [(0_u32, 64 << 10), (128, 4096), (8, 1 << 20), (1, 512), (72, 2 << 20)];
        for (block, len) in wanted {
            let header = initiator.read_header(block, (len / BLOCK) as u16);
            initiator.send(header, &[]);
            shared += u64::from(is_shared && len >= 64 << 10);
        }
        for (block, len) in wanted {
            let data = initiator.take_read(len);
            assert!(data == targets.disk.bytes(block as usize * BLOCK, len), "{len} {segment}");
        }
        assert_eq!(targets.disk.shared.load(Ordering::Relaxed), shared);
    }
    server.stop();
}

#[test]
fn residual_counts_report_unmoved_bytes() {
    let Setup { address, server: _server, .. } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[]);
    // INQUIRY returns 36 bytes, and its allocation length is 255.
    let header = initiator.command(0xc1, 255, &[0x12, 0, 0, 0, 255, 0]);
    initiator.send(header, &[]);
    let reply = initiator.reply();
    assert_eq!((reply.data.len(), reply.header.flags() & 0x87), (36, 0x83));
    assert_eq!(reply.header.word(44), 255 - 36);
    // READ of two blocks; the initiator expects one.
    let header = initiator.command(0xc1, BLOCK, &cdb10(0x28, 0, 2));
    initiator.send(header, &[]);
    let reply = initiator.reply();
    assert_eq!((reply.data.len(), reply.header.flags() & 0x87), (BLOCK, 0x85));
    assert_eq!(reply.header.word(44) as usize, BLOCK);
    // READ; the initiator expects no data.
    let header = initiator.command(0x81, 0, &cdb10(0x28, 0, 1));
    initiator.send(header, &[]);
    let reply = initiator.reply();
    assert_eq!((reply.header.opcode(), reply.header.flags() & 6), (opcode::RESPONSE, 4));
    // WRITE of one block, sent with the data of two blocks.
    let header = initiator.command(0xa1, 2 * BLOCK, &cdb10(0x2a, 0, 1));
    initiator.send(header, &vec![1; 2 * BLOCK]);
    let reply = initiator.reply();
    assert_eq!((reply.header.flags() & 6, reply.header.word(44) as usize), (2, BLOCK));
    // A failed command transfers no data.
    let header = initiator.command(0xc1, 64, &[0xff]);
    initiator.send(header, &[]);
    let reply = initiator.reply();
    assert_eq!(reply.status(), (2, [5, 0x20, 0]));
    assert_eq!(reply.header.word(44), 64);
}

#[test]
fn disallowed_data_is_refused_and_not_written() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(
        address,
        &[("ImmediateData", "No"), ("InitialR2T", "Yes"), ("FirstBurstLength", "1024")],
    );
    let header = initiator.write_header(0, BLOCK, true);
    initiator.send(header, &[9; BLOCK]);
    assert_eq!(initiator.reply().status(), (2, [0x0b, 0x0c, 0x0c]));
    let header = initiator.write_header(0, BLOCK, false);
    initiator.send(header, &[]);
    assert_eq!(initiator.reply().status(), (2, [0x0b, 0x0c, 0x0c]));
    // The target drops the data that belongs to the refused command.
    let data_out = Initiator::data_out(header.itt(), NO_TAG, 0, 0, true);
    initiator.send(data_out, &[9; BLOCK]);
    // The Expected Data Transfer Length is above the maximum transfer length.
    let mut header = initiator.write_header(0, BLOCK, true);
    header.set_word(20, TRANSFER_BYTES_MAX as u32 + 512);
    initiator.send(header, &[]);
    assert_eq!(initiator.reply().status(), (2, [5, 0x24, 0]));
    // The command has both the R bit and the W bit.
    let header = initiator.command(0xe1, BLOCK, &cdb10(0x2a, 0, 1));
    initiator.send(header, &[]);
    assert_eq!(initiator.reply().status(), (2, [5, 0x24, 0]));
    assert_eq!(targets.disk.bytes(0, BLOCK), vec![0; BLOCK]);
    assert_eq!(initiator.nop(b"still here").data, b"still here");
}

#[test]
fn invalid_data_out_ends_the_connection_and_writes_nothing() {
    for wrong in 0..4 {
        let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
        let mut initiator = Initiator::session(address, &[("ImmediateData", "No")]);
        let header = initiator.write_header(0, 2 * BLOCK, true);
        initiator.send(header, &[]);
        let r2t = initiator.reply().header;
        let (itt, ttt) = (header.itt(), r2t.word(20));
        let (sn, offset, last, len) = [
            (1, 0, true, 2 * BLOCK),
            (0, BLOCK, true, BLOCK),
            (0, 0, true, BLOCK),
            (0, 0, true, 3 * BLOCK),
        ][wrong];
        let data_out = Initiator::data_out(itt, ttt, sn, offset, last);
        initiator.send(data_out, &vec![9; len]);
        let reject = initiator.reply();
        assert_eq!((reject.header.opcode(), reject.header.byte(2)), (opcode::REJECT, 4));
        assert_eq!(reject.data[..4], data_out.0[..4]);
        initiator.expect_end();
        assert_eq!(targets.disk.bytes(0, BLOCK), vec![0; BLOCK]);
    }
}

#[test]
fn stray_data_out_is_dropped() {
    let Setup { address, server: _server, .. } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[("ImmediateData", "No")]);
    let stray = Initiator::data_out(4711, 1, 0, 0, true);
    initiator.send(stray, &[9; BLOCK]);
    let header = initiator.write_header(0, BLOCK, true);
    initiator.send(header, &[]);
    let r2t = initiator.reply().header;
    // The Data-Out has a Target Transfer Tag that no open R2T has.
    let stray = Initiator::data_out(header.itt(), r2t.word(20) + 17, 0, 0, true);
    initiator.send(stray, &[9; BLOCK]);
    let data = pattern(BLOCK, 1);
    initiator.send_sequence(header.itt(), r2t.word(20), &data, (0, BLOCK));
    assert_eq!(initiator.reply().status().0, 0);
    assert_eq!(initiator.read(0, 1), data);
}

#[test]
fn data_digest_error_rejects_the_pdu_or_fails_only_its_command() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    let keys = [("DataDigest", "CRC32C"), ("HeaderDigest", "CRC32C")];
    let mut initiator = Initiator::session(address, &keys);
    let data = pattern(BLOCK, 2);
    // Damage immediate data: the target does not consume the CmdSN, and the initiator may send the
    // command again.
    let header = initiator.write_header(8, BLOCK, true);
    let mut out = weir_block::OutBuf::default();
    weir_iscsi_wire::pdu::put(&mut out, header, &data, initiator.digests);
    let mut broken = out.filled().to_vec();
    broken[60] ^= 1;
    initiator.send_raw(&broken);
    let reject = initiator.reply();
    assert_eq!((reject.header.opcode(), reject.header.byte(2)), (opcode::REJECT, 2));
    assert_eq!(targets.disk.bytes(8 * BLOCK, BLOCK), vec![0; BLOCK]);
    initiator.send_raw(out.filled());
    assert_eq!(initiator.reply().status().0, 0);
    assert_eq!(targets.disk.bytes(8 * BLOCK, BLOCK), data);
    // Damage a Data-Out: the command fails after all of its data has arrived.
    let header = initiator.write_header(16, BLOCK, true);
    initiator.send(header, &[]);
    let r2t = initiator.reply().header;
    let data_out = Initiator::data_out(header.itt(), r2t.word(20), 0, 0, true);
    let mut out = weir_block::OutBuf::default();
    weir_iscsi_wire::pdu::put(&mut out, data_out, &data, initiator.digests);
    let mut broken = out.filled().to_vec();
    broken[60] ^= 1;
    initiator.send_raw(&broken);
    assert_eq!(initiator.reply().header.byte(2), 2);
    assert_eq!(initiator.reply().status(), (2, [0x0b, 0x47, 0x05]));
    assert_eq!(targets.disk.bytes(16 * BLOCK, BLOCK), vec![0; BLOCK]);
    // The PDU has a wrong header digest.
    let mut out = weir_block::OutBuf::default();
    let header = initiator.read_header(0, 1);
    weir_iscsi_wire::pdu::put(&mut out, header, &[], initiator.digests);
    let mut broken = out.filled().to_vec();
    broken[20] ^= 1;
    initiator.send_raw(&broken);
    initiator.expect_end();
}

#[test]
fn commands_run_in_cmd_sn_order() {
    let Setup { address, server: _server, .. } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[("InitialR2T", "No")]);
    let (old, new) = (pattern(4096, 3), pattern(4096, 4));
    // The initiator sends the commands in reverse order. The last command in CmdSN order is a read
    // and must return the data of both writes.
    let first = initiator.write_header(0, 4096, false);
    let second = initiator.write_header(4, 4096, true);
    let third = initiator.read_header(0, 12);
    initiator.send(third, &[]);
    initiator.send(second, &new);
    let unsolicited = Initiator::data_out(first.itt(), NO_TAG, 0, 0, true);
    initiator.send(unsolicited, &[7; 4096]);
    initiator.send(third, &[]);
    initiator.send(first, &old);
    let reply = initiator.reply();
    assert_eq!(reply.header.itt(), second.itt(), "the first one waits for its data");
    let read = initiator.take_read(12 * BLOCK);
    assert_eq!(read[4 * BLOCK..], new);
    // The target dropped the first Data-Out, because the command of this Data-Out had not arrived.
    let unsolicited = Initiator::data_out(first.itt(), NO_TAG, 0, 4096, true);
    initiator.send(unsolicited, &[]);
    assert_eq!(initiator.reply().status().0, 0);
    // The target ignores commands whose CmdSN is below or above the window.
    for cmd_sn in [initiator.cmd_sn - 1, initiator.max_cmd_sn + 1] {
        let mut header = initiator.read_header(0, 1);
        initiator.cmd_sn -= 1;
        header.set_word(24, cmd_sn);
        initiator.send(header, &[]);
    }
    assert_eq!(initiator.read(0, 1), old[..BLOCK]);
}

#[test]
fn out_of_order_commands_are_bounded() {
    let Setup { address, server: _server, .. } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[]);
    initiator.cmd_sn += 1;
    let data = vec![0; 64 << 10];
    for _ in 0..20 {
        let header = initiator.write_header(0, data.len(), true);
        let mut out = weir_block::OutBuf::default();
        weir_iscsi_wire::pdu::put(&mut out, header, &data, initiator.digests);
        if std::io::Write::write_all(&mut initiator.socket, out.filled()).is_err() {
            break;
        }
    }
    initiator.expect_end();
}

#[test]
fn command_window_closes_when_full_and_reopens() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[]);
    targets.disk.held.store(true, Ordering::Relaxed);
    for _ in 0..COMMANDS_MAX {
        let header = initiator.read_header(0, 1);
        initiator.send(header, &[]);
    }
    let nop = initiator.nop(b"?");
    assert_eq!(nop.header.word(32), nop.header.word(28).wrapping_sub(1), "closed");
    // The target ignores a command outside the window. The response to the following NOP-Out shows
    // that the target has read the command while the window was closed.
    let header = initiator.read_header(0, 1);
    initiator.send(header, &[]);
    assert_eq!(initiator.nop(b"!").data, b"!");
    targets.disk.held.store(false, Ordering::Relaxed);
    for _ in 0..COMMANDS_MAX {
        initiator.take_read(BLOCK);
    }
    let nop = initiator.nop(b"?");
    let open = nop.header.word(32).wrapping_sub(nop.header.word(28)) + 1;
    assert_eq!(open, COMMANDS_MAX);
    initiator.send(header, &[]);
    initiator.take_read(BLOCK);
}

#[test]
fn abort_response_follows_the_end_of_the_command() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[]);
    targets.disk.held.store(true, Ordering::Relaxed);
    let write = initiator.write_header(0, BLOCK, true);
    initiator.send(write, &[5; BLOCK]);
    let abort = initiator.manage(1, write.itt(), write.cmd_sn());
    assert_eq!(initiator.nop(b"x").data, b"x", "the abort is not answered while it runs");
    assert_eq!(targets.disk.done.load(Ordering::Relaxed), 0);
    targets.disk.held.store(false, Ordering::Relaxed);
    let reply = initiator.reply();
    assert_eq!(reply.header.opcode(), opcode::MANAGEMENT_RESPONSE);
    assert_eq!((reply.header.itt(), reply.header.byte(2)), (abort, 0));
    assert_eq!(targets.disk.done.load(Ordering::Relaxed), 1);
    // The target aborts a write that waits for data at once, and drops the write's data.
    let write = initiator.write_header(8, BLOCK, true);
    initiator.send(write, &[]);
    let r2t = initiator.reply().header;
    initiator.manage(1, write.itt(), write.cmd_sn());
    assert_eq!(initiator.reply().header.byte(2), 0);
    initiator.send_sequence(write.itt(), r2t.word(20), &[5; BLOCK], (0, BLOCK));
    assert_eq!(initiator.read(8, 1), vec![0; BLOCK]);
    // Abort an unknown task that has an old CmdSN, then a command that never arrived. The CmdSN of
    // the command that never arrived counts as received.
    initiator.manage(1, 99, write.cmd_sn());
    assert_eq!(initiator.reply().header.byte(2), 1);
    let lost = initiator.read_header(0, 1);
    initiator.manage(1, lost.itt(), lost.cmd_sn());
    let reply = initiator.reply();
    assert_eq!(reply.header.byte(2), 0);
    assert_eq!(reply.header.word(28), initiator.cmd_sn, "ExpCmdSN is past it");
    assert_eq!(initiator.read(8, 1), vec![0; BLOCK]);
}

#[test]
fn task_management_aborts_the_addressed_tasks() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[]);
    for (function, expected) in [
        (2, Some(Management::AbortTaskSet)),
        (4, Some(Management::ClearTaskSet)),
        (5, Some(Management::LunReset)),
        (6, Some(Management::TargetReset)),
    ] {
        targets.disk.held.store(true, Ordering::Relaxed);
        for _ in 0..3 {
            let header = initiator.read_header(0, 1);
            initiator.send(header, &[]);
        }
        let waiting = initiator.write_header(0, 2 * BLOCK, true);
        initiator.send(waiting, &[]);
        assert_eq!(initiator.reply().header.opcode(), opcode::R2T);
        let itt = initiator.manage(function, NO_TAG, 0);
        wait_until("management", || targets.disk.managed.lock().last().copied() == expected);
        targets.disk.held.store(false, Ordering::Relaxed);
        let reply = initiator.reply();
        assert_eq!((reply.header.itt(), reply.header.byte(2)), (itt, 0), "the only answer");
        assert_eq!(initiator.read(0, 1).len(), BLOCK);
    }
    for (function, response) in [(3, 5), (8, 4), (77, 5)] {
        initiator.manage(function, NO_TAG, 0);
        assert_eq!(initiator.reply().header.byte(2), response);
    }
    // Address a task management function to a logical unit that does not exist.
    let mut header = Header::new(opcode::MANAGEMENT | opcode::IMMEDIATE, 0x85);
    header.set(8, [0, 9, 0, 0, 0, 0, 0, 0]);
    header.set_word(16, 999);
    header.set_word(24, initiator.cmd_sn);
    initiator.send(header, &[]);
    assert_eq!(initiator.reply().header.byte(2), 2);
    // TARGET COLD RESET also ends the sessions of the target.
    initiator.manage(7, NO_TAG, 0);
    assert_eq!(initiator.reply().header.byte(2), 0);
    assert_eq!(initiator.reply().header.opcode(), opcode::ASYNC);
    initiator.expect_end();
}

#[test]
fn tasks_aborted_by_another_nexus_get_no_response_without_tas() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[]);
    let done = || targets.disk.done.load(Ordering::SeqCst);
    let before = done();
    targets.disk.held.store(true, Ordering::Relaxed);
    let lost = initiator.read_header(0, 1);
    initiator.send(lost, &[]);
    assert_eq!(initiator.nop(b"x").data, b"x");
    targets.disk.aborts.fetch_add(1, Ordering::Relaxed);
    let later = initiator.read_header(0, 2);
    initiator.send(later, &[]);
    targets.disk.held.store(false, Ordering::Relaxed);
    initiator.take_read(2 * BLOCK);
    // The storage also completes the first command, even if the task of the command is woken late.
    wait_until("both end", || done() == before + 2);
    assert_eq!(initiator.nop(b"y").data, b"y", "nothing came for the first");
    // With TAS, the initiator gets TASK ABORTED.
    targets.disk.tells_aborted.store(true, Ordering::Relaxed);
    targets.disk.held.store(true, Ordering::Relaxed);
    let told = initiator.read_header(0, 1);
    initiator.send(told, &[]);
    let gathering = initiator.write_header(0, 2 * BLOCK, true);
    initiator.send(gathering, &[]);
    let r2t = initiator.reply().header;
    targets.disk.aborts.fetch_add(1, Ordering::Relaxed);
    targets.disk.held.store(false, Ordering::Relaxed);
    let reply = initiator.reply();
    assert_eq!((reply.header.itt(), reply.status().0), (told.itt(), 0x40));
    initiator.send_sequence(gathering.itt(), r2t.word(20), &[1; 2 * BLOCK], (0, 2 * BLOCK));
    let reply = initiator.reply();
    assert_eq!((reply.header.itt(), reply.status().0), (gathering.itt(), 0x40));
    assert_eq!(initiator.read(0, 1), vec![0; BLOCK], "nothing was written");
}

#[test]
fn logout_response_follows_the_last_command() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[]);
    // Send a logout of an unknown connection, and a logout for recovery.
    let own = std::mem::replace(&mut initiator.cid, 9);
    assert_eq!(initiator.log_out(1).header.byte(2), 1);
    initiator.cid = own;
    assert_eq!(initiator.log_out(2).header.byte(2), 2);
    targets.disk.held.store(true, Ordering::Relaxed);
    let header = initiator.write_header(0, BLOCK, true);
    initiator.send(header, &[3; BLOCK]);
    initiator.nop(b"");
    let disk = std::sync::Arc::clone(&targets.disk);
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        disk.held.store(false, Ordering::Relaxed);
    });
    assert_eq!(initiator.log_out(1).status().0, 0, "the write first");
    let reply = initiator.reply();
    assert_eq!((reply.header.opcode(), reply.header.byte(2)), (opcode::LOGOUT_RESPONSE, 0));
    initiator.expect_end();
    release.join().expect("no panic");
    assert_eq!(targets.disk.bytes(0, BLOCK), vec![3; BLOCK]);
}

#[test]
fn discovery_splits_long_target_lists() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    let addresses: Vec<_> = ["127.0.0.1:3260", "[::1]:3260", "[::ffff:10.0.0.1]:860"]
        .iter()
        .map(|text| text.parse().expect("an address"))
        .collect();
    targets.set_portals(&addresses);
    let mut initiator = Initiator::connect(address);
    initiator.isid[0] = 0x40;
    let name = ("InitiatorName", crate::common::initiator::NAME);
    let keys = [name, ("SessionType", "Discovery"), ("MaxRecvDataSegmentLength", "512")];
    initiator.login_step(1, Some(3), &keys).expect("a discovery session");
    assert_ne!(initiator.tsih, 0);
    let expected = format!(
        "TargetName={TARGET}\0TargetAddress=127.0.0.1:3260,1\0TargetAddress=[::1]:3260,1\0\
         TargetAddress=10.0.0.1:860,1\0"
    );
    let reply = initiator.text(b"SendTargets=All\0", 0x80, NO_TAG);
    assert_eq!(reply.data, expected.as_bytes());
    assert_eq!((reply.header.flags(), reply.header.word(20)), (0x80, NO_TAG));
    let one = format!("SendTargets={TARGET}\0");
    assert_eq!(initiator.text(one.as_bytes(), 0x80, NO_TAG).data, expected.as_bytes());
    assert!(initiator.text(b"SendTargets=iqn.none\0", 0x80, NO_TAG).data.is_empty());
    // Send a request in two PDUs.
    let reply = initiator.text(b"SendTar", 0x40, NO_TAG);
    assert!(reply.data.is_empty() && reply.header.flags() == 0);
    let reply = initiator.text(b"gets=All\0", 0x80, reply.header.word(20));
    assert_eq!(reply.data, expected.as_bytes());
    // The list of targets takes several PDUs.
    let one = targets.targets.lock()[0].clone();
    let named = |n| Discovered { name: format!("{TARGET}{n:02}"), ..one.clone() };
    *targets.targets.lock() = (0..20).map(named).collect();
    let mut reply = initiator.text(b"SendTargets=All\0", 0x80, NO_TAG);
    let mut all = reply.data.clone();
    while reply.header.flags() & 0x40 != 0 {
        assert_eq!(reply.data.len(), 512);
        reply = initiator.text(b"", 0x80, reply.header.word(20));
        all.extend(&reply.data);
    }
    let expected: String = (0..20)
        .map(|n| expected.replace(&format!("{TARGET}\0"), &format!("{TARGET}{n:02}\0")))
        .collect();
    assert_eq!(all, expected.as_bytes());
    // Regression test: one Text Request could request 96 target lists of 1 MiB, and the target
    // built all of them at once.
    let twice = initiator.text(b"SendTargets=iqn.a\0SendTargets=iqn.b\0", 0x80, NO_TAG);
    assert_eq!(text::pairs(&twice.data), Ok(vec![("SendTargets", "Reject")]));
    // Send an unknown key, a key of the login and a SCSI command: a discovery session accepts none
    // of these.
    let reply = initiator.text(b"X-foo=1\0HeaderDigest=None\0", 0x80, NO_TAG);
    let pairs = text::pairs(&reply.data).expect("text");
    assert_eq!(pairs, [("X-foo", "NotUnderstood"), ("HeaderDigest", "Reject")]);
    let header = initiator.read_header(0, 1);
    initiator.send(header, &[]);
    assert_eq!(initiator.reply().header.opcode(), opcode::REJECT);
    assert_eq!(initiator.log_out(0).header.byte(2), 0);
}

#[test]
fn invalid_requests_are_rejected_with_their_header() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[]);
    for (first, reason) in
        [(0x50, 3), (0x43, 4), (0x47, 5), (0x5d, 5), (0x46, 9), (opcode::REJECT, 5)]
    {
        let mut header = Header::new(first | 0x40, 0x80 | if first == 0x46 { 5 } else { 0 });
        header.set_word(16, 77);
        header.set_word(24, initiator.cmd_sn);
        initiator.send(header, &[]);
        let reply = initiator.reply();
        let found = (reply.header.opcode(), reply.header.byte(2), &reply.data[..]);
        assert_eq!(found, (opcode::REJECT, reason, &header.0[..]), "{first:#x}");
    }
    // Send a command with an Initiator Task Tag that is in use.
    targets.disk.held.store(true, Ordering::Relaxed);
    let header = initiator.read_header(0, 1);
    initiator.send(header, &[]);
    let mut again = initiator.read_header(0, 1);
    again.set_word(16, header.itt());
    initiator.send(again, &[]);
    assert_eq!(initiator.reply().header.byte(2), 7);
    targets.disk.held.store(false, Ordering::Relaxed);
    initiator.take_read(BLOCK);
    // A session with a target can list only that target.
    let reply = initiator.text(b"SendTargets=All\0", 0x80, NO_TAG);
    assert_eq!(reply.data, b"SendTargets=Reject\0");
    let reply = initiator.text(b"SendTargets=\0", 0x80, NO_TAG);
    assert!(reply.data.starts_with(b"TargetName="));
    // A data segment longer than the declared maximum ends the connection.
    let mut header = Header::new(opcode::NOP_OUT | 0x40, 0x80);
    header.set_data_bytes(1 << 20);
    initiator.send_raw(&header.0);
    initiator.expect_end();
}

#[test]
fn shutdown_is_announced_and_completes_commands_in_flight() {
    let Setup { targets, server, address } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[]);
    targets.disk.held.store(true, Ordering::Relaxed);
    let header = initiator.write_header(0, BLOCK, true);
    initiator.send(header, &[6; BLOCK]);
    initiator.nop(b"");
    let stop = std::thread::spawn(move || server.stop());
    let reply = initiator.reply();
    assert_eq!((reply.header.opcode(), reply.header.byte(36)), (opcode::ASYNC, 3));
    targets.disk.held.store(false, Ordering::Relaxed);
    assert_eq!(initiator.reply().status().0, 0);
    initiator.expect_end();
    stop.join().expect("no panic");
    assert_eq!(targets.disk.bytes(0, BLOCK), vec![6; BLOCK]);
    assert_eq!(targets.disk.nexuses.load(Ordering::SeqCst), 0);
}

#[test]
fn sessions_can_be_listed_and_ended() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[("DataDigest", "CRC32C")]);
    initiator.read(0, 4);
    let list = targets.sessions.list();
    let [session] = &list[..] else { panic!("one session: {list:?}") };
    assert_eq!(session.target.as_deref(), Some(TARGET));
    assert_eq!(session.initiator, crate::common::initiator::NAME);
    assert_eq!((session.commands, session.read_bytes), (1, 4 * BLOCK as u64));
    assert!(session.digests.data && !session.digests.header && !session.chap);
    assert_eq!(targets.sessions.end_initiator(TARGET, "iqn.other"), 0);
    assert_eq!(targets.sessions.end_initiator(TARGET, crate::common::initiator::NAME), 1);
    assert_eq!(initiator.reply().header.opcode(), opcode::ASYNC);
    initiator.expect_end();
    wait_until("no session", || targets.sessions.list().is_empty());
}

#[test]
fn panic_in_a_nexus_ends_only_its_session() {
    let setup = setup(Disk::new(SIZE).slow());
    let mut other = Initiator::connect(setup.address);
    other.isid[5] = 9;
    other.log_in(&[]).expect("a session");
    let mut initiator = Initiator::session(setup.address, &[]);
    setup.wait_for_nexuses(2);
    setup.disk().panics.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        let header = initiator.read_header(0, 1);
        let mut out = weir_block::OutBuf::default();
        weir_iscsi_wire::pdu::put(&mut out, header, &[], initiator.digests);
        drop(std::io::Write::write_all(&mut initiator.socket, out.filled()));
    }
    while initiator.try_reply().is_some() {}
    setup.disk().panics.store(false, Ordering::Relaxed);
    setup.wait_for_nexuses(1);
    assert_eq!(other.read(0, 1).len(), BLOCK);
}

#[test]
fn garbage_ends_only_its_iscsi_connection() {
    let setup = setup(Disk::new(SIZE));
    let mut good = Initiator::session(setup.address, &[]);
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bad = Initiator::connect(setup.address);
        if seed % 2 == 0 {
            bad.isid[5] = 77;
            bad.log_in(&[]).expect("a session");
        }
        let mut bytes: Vec<u8> = (0..4096).map(|_| random.u8(..)).collect();
        if seed % 4 == 0 {
            // Make the data segments short, so that the target parses many headers.
            let headers = bytes.chunks_mut(48);
            headers.filter(|header| header.len() > 8).for_each(|header| header[4..8].fill(0));
        }
        drop(std::io::Write::write_all(&mut bad.socket, &bytes));
        drop(bad.socket.shutdown(std::net::Shutdown::Write));
        let mut rest = Vec::new();
        drop(std::io::Read::read_to_end(&mut bad.socket, &mut rest));
        assert!(rest.len() < 1 << 20, "seed {seed}");
    }
    assert_eq!(good.read(0, 8).len(), 8 * BLOCK);
}

#[test]
fn unread_responses_hold_little_memory() {
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[("MaxRecvDataSegmentLength", "262144")]);
    initiator.socket.set_write_timeout(Some(Duration::from_millis(300))).expect("a limit");
    let before = targets.disk.done.load(Ordering::Relaxed);
    for _ in 0..100 {
        let mut header = initiator.read_header(0, 8192);
        header.set_word(24, initiator.cmd_sn - 1);
        if std::io::Write::write_all(&mut initiator.socket, &header.0).is_err() {
            break;
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    let run = targets.disk.done.load(Ordering::Relaxed) - before;
    // The server has run only the reads of 4 MiB whose data is in the socket buffers or fits into
    // `REPLY_BYTES_MAX`.
    assert!((1..=16).contains(&run), "{run} reads were run for an initiator that takes none");
    for _ in 0..100 {
        initiator.take_read(8192 * BLOCK);
    }
}

#[test]
fn idle_initiator_without_nop_response_is_dropped() {
    let setup = setup(Disk::new(SIZE));
    *setup.targets.quiet_limit.lock() = Duration::from_millis(200);
    let mut initiator = Initiator::session(setup.address, &[]);
    for _ in 0..3 {
        let ping = initiator.reply();
        assert_eq!((ping.header.opcode(), ping.header.itt()), (opcode::NOP_IN, NO_TAG));
        assert_ne!(ping.header.word(20), NO_TAG, "an answer is wanted");
        let mut header = Header::new(opcode::NOP_OUT | opcode::IMMEDIATE, 0x80);
        header.set_word(16, NO_TAG);
        header.set_word(20, ping.header.word(20));
        header.set_word(24, initiator.cmd_sn);
        initiator.send(header, &[]);
    }
    assert_eq!(initiator.read(0, 1).len(), BLOCK);
    // A few single bytes do not count as a response to the NOP-In.
    let ping = initiator.reply();
    assert_eq!(ping.header.opcode(), opcode::NOP_IN);
    initiator.send_raw(&[0]);
    initiator.expect_end();
    setup.wait_for_nexuses(0);
}

#[test]
fn new_text_request_discards_an_unfinished_one() {
    let Setup { address, server: _server, .. } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[]);
    initiator.text(b"X-begun=", 0x40, NO_TAG);
    let reply = initiator.text(b"X-new=1\0", 0x80, NO_TAG);
    assert_eq!(reply.data, b"X-new=NotUnderstood\0");
    let reply = initiator.text(b"1\0", 0x80, 12345);
    assert_eq!((reply.header.opcode(), reply.header.byte(2)), (opcode::REJECT, 9));
}

/// An ORDERED command waits for earlier commands, and later commands wait for it (SAM-5 8.6).
#[test]
fn task_attributes_are_enforced() {
    const ORDERED: u8 = 2;
    const HEAD: u8 = 3;
    let Setup { targets, address, server: _server } = setup(Disk::new(SIZE));
    let keys = [("ImmediateData", "No")];
    let mut initiator = Initiator::session(address, &keys);
    let read = |initiator: &mut Initiator, attribute: u8| {
        let mut header = initiator.read_header(0, 1);
        header.set(1, [0xc0 | attribute]);
        initiator.send(header, &[]);
        header.itt()
    };
    let answered = |initiator: &mut Initiator| initiator.reply().header.itt();
    // A write waits for its data. A later SIMPLE command overtakes the write; a later ORDERED
    // command waits for it.
    let write = initiator.write_header(0, BLOCK, true);
    initiator.send(write, &[]);
    let r2t = initiator.reply().header;
    let simple = read(&mut initiator, 1);
    assert_eq!(answered(&mut initiator), simple);
    let ordered = read(&mut initiator, ORDERED);
    let behind = [read(&mut initiator, 1), read(&mut initiator, ORDERED), read(&mut initiator, 0)];
    let head = read(&mut initiator, HEAD);
    assert_eq!(answered(&mut initiator), head, "waits for nobody");
    assert_eq!(initiator.nop(b"!").data, b"!", "the others wait");
    initiator.send_sequence(write.itt(), r2t.word(20), &[5; BLOCK], (0, BLOCK));
    for expected in [write.itt(), ordered].into_iter().chain(behind) {
        assert_eq!(answered(&mut initiator), expected);
    }
    // The commands keep this order if the storage delays the earlier command.
    targets.disk.held.store(true, Ordering::Relaxed);
    let slow = read(&mut initiator, 1);
    let ordered = read(&mut initiator, ORDERED);
    assert_eq!(initiator.nop(b"?").data, b"?");
    targets.disk.held.store(false, Ordering::Relaxed);
    let behind = read(&mut initiator, 1);
    let order = [0; 3].map(|_| answered(&mut initiator));
    assert_eq!(order, [slow, ordered, behind]);
    // After an abort of the oldest command, the commands that waited for it run.
    let write = initiator.write_header(0, BLOCK, true);
    initiator.send(write, &[]);
    assert_eq!(initiator.reply().header.opcode(), opcode::R2T);
    read(&mut initiator, ORDERED);
    let behind = read(&mut initiator, 1);
    initiator.manage(1, write.itt(), write.cmd_sn());
    let mut replies: Vec<_> = (0..3).map(|_| answered(&mut initiator)).collect();
    assert!(replies.contains(&behind), "{replies:?}");
    replies.clear();
    // The target does not support ACA.
    let mut header = initiator.read_header(0, 1);
    header.set(1, [0xc4]);
    initiator.send(header, &[]);
    assert_eq!(initiator.reply().status(), (2, [5, 0x49, 0]));
    assert_eq!(initiator.read(0, 1).len(), BLOCK);
}

#[test]
fn initiators_are_asked_to_log_out_before_shutdown() {
    let Setup { targets, address, server } = setup(Disk::new(SIZE));
    let mut initiator = Initiator::session(address, &[]);
    assert_eq!(targets.sessions.ask_to_log_out(Duration::from_secs(7)), 1);
    let reply = initiator.reply();
    assert_eq!((reply.header.opcode(), reply.header.byte(36)), (opcode::ASYNC, 1));
    assert_eq!(reply.header.bytes(42), 7_u16.to_be_bytes(), "Parameter3: seconds");
    assert_eq!(initiator.read(0, 1).len(), BLOCK, "it has time for what it has to do");
    let mut late = Initiator::connect(address);
    late.isid[5] = 9;
    assert_eq!(late.log_in(&[]).err(), Some([3, 1]), "service unavailable");
    assert_eq!(initiator.log_out(0).header.byte(2), 0);
    initiator.expect_end();
    wait_until("no session", || targets.sessions.list().is_empty());
    server.stop();
}
