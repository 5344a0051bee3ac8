//! Tests of the end of ROD tokens: by every kind of change to their ranges, and by timeout.
//!
//! Tests with several threads are in token_races.rs.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::common::tokens::{
    block, populate, population, send, token, token_information, write_using, writing, zeros,
};
use crate::common::{identity, ready, run, simple, wide};
use weir_block::OutBuf;
use weir_scsi::{Attribute, Command, Lun};

const CANCELLED: (u8, u8, u8) = (5, 0x23, 8);
const REVOKED: (u8, u8, u8) = (5, 0x23, 6);

/// Returns an EXTENDED COPY of one block from `from` to `to` in the only unit.
fn copies(from: u64, to: u64) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![1, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
    list.extend([0xE4, 0, 0, 0, 1, 3, 0, 16]);
    list.extend(identity(1).naa);
    list.extend([0; 8]);
    list.extend([2, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 1]);
    list.extend(from.to_be_bytes());
    list.extend(to.to_be_bytes());
    let mut cdb = vec![0x83];
    cdb.resize(13, 0);
    cdb.extend([list.len() as u8, 0, 0]);
    (cdb, list)
}

fn unmap(lba: u64) -> (Vec<u8>, Vec<u8>) {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(lba.to_be_bytes());
    list.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    (vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], list)
}

/// Returns every command that changes the block at `lba`, each with its name. The block must
/// contain ones, so that each command changes it.
fn changes(lba: u64, far: &[u8]) -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let mut compare = wide(0x89, 0, lba, 0);
    compare[13] = 1;
    let ten = |code: u8| vec![code, 0, 0, 0, 0, lba as u8, 0, 0, 1, 0];
    let twelve = |code: u8| vec![code, 0, 0, 0, 0, lba as u8, 0, 0, 0, 1, 0, 0];
    let (copy, copied) = copies(3000, lba);
    let (unmap, unmapped) = unmap(lba);
    let using = |token: &[u8]| {
        let list = writing(0, 0, token, &[(lba, 1)]);
        (block(0x11, 3, list.len() as u32), list)
    };
    let (of_zeros, of_data) = (using(&zeros()), using(far));
    let data = vec![7; 512];
    vec![
        ("WRITE (6)", vec![0x0A, 0, 0, lba as u8, 1, 0], data.clone()),
        ("WRITE (10)", ten(0x2A), data.clone()),
        ("WRITE (12)", twelve(0xAA), data.clone()),
        ("WRITE (16)", wide(0x8A, 0, lba, 1), data.clone()),
        ("WRITE (16) with FUA", wide(0x8A, 8, lba, 1), data.clone()),
        ("WRITE AND VERIFY (10)", ten(0x2E), data.clone()),
        ("WRITE AND VERIFY (16)", wide(0x8E, 0, lba, 1), data.clone()),
        ("WRITE SAME (10)", ten(0x41), data.clone()),
        ("WRITE SAME (16)", wide(0x93, 0, lba, 1), data.clone()),
        ("WRITE SAME (16) with UNMAP", wide(0x93, 9, lba, 1), Vec::new()),
        ("UNMAP", unmap, unmapped),
        ("COMPARE AND WRITE", compare, [vec![1; 512], data.clone()].concat()),
        ("ORWRITE", wide(0x8B, 0, lba, 1), data),
        ("EXTENDED COPY", copy, copied),
        ("WRITE USING TOKEN of zeros", of_zeros.0, of_zeros.1),
        ("WRITE USING TOKEN", of_data.0, of_data.1),
    ]
}

#[test]
fn every_write_command_cancels_overlapping_tokens() {
    for waits in [false, true] {
        let (medium, _unit, _target, nexus) = simple();
        run(&*nexus, &wide(0x93, 0, 0, 8192), &[1; 512]).good();
        run(&*nexus, &wide(0x8A, 0, 3000, 1), &[3; 512]).good();
        medium.waits.store(waits, Ordering::SeqCst);
        let far = token(&*nexus, 0, &[(3000, 1)]);
        for case in 0..changes(0, &far).len() {
            // Change the first block, the last block and the second range of the token, and the
            // blocks next to its ranges.
            for (lba, ends) in [(16, true), (23, true), (33, true), (15, false), (24, false)] {
                run(&*nexus, &wide(0x93, 0, 0, 64), &[1; 512]).good();
                let held = token(&*nexus, 0, &[(16, 8), (32, 2)]);
                write_using(&*nexus, 0, 0, &held, &[(5000, 10)]).good();
                let before = medium.bytes();
                let (name, cdb, data) = changes(lba, &far).swap_remove(case);
                run(&*nexus, &cdb, &data).good();
                let changed = medium.bytes();
                assert!(changed != before, "{name} changed nothing");
                let answer = write_using(&*nexus, 0, 0, &held, &[(6000, 10)]);
                if ends {
                    assert_eq!(answer.sense(), CANCELLED, "{name} of {lba}, waits: {waits}");
                    let told = token_information(&*nexus, 0, 2);
                    assert_eq!((told.status, told.sense, told.count), (2, Some(CANCELLED), 0));
                    assert!(medium.bytes() == changed, "copied after {name}");
                } else {
                    answer.good();
                    assert!(medium.bytes()[6000 * 512..6010 * 512].iter().all(|&b| b == 1));
                }
                run(&*nexus, &wide(0x93, 0, 6000, 10), &[2; 512]).good();
            }
        }
        // The token of a range that did not change is still valid.
        write_using(&*nexus, 0, 0, &far, &[(100, 1)]).good();
        assert_eq!(medium.bytes()[100 * 512], 3);
    }
}

#[test]
fn reads_and_empty_writes_cancel_no_token() {
    let (_medium, _unit, _target, nexus) = simple();
    let held = token(&*nexus, 0, &[(0, 64)]);
    run(&*nexus, &wide(0x88, 0, 0, 64), &[]).good();
    run(&*nexus, &wide(0x8F, 0, 0, 64), &[]).good();
    run(&*nexus, &wide(0x90, 0, 0, 64), &[]).good();
    run(&*nexus, &wide(0x91, 0, 0, 0), &[]).good();
    run(&*nexus, &wide(0x8A, 0, 0, 0), &[]).good();
    token(&*nexus, 0, &[(0, 64)]);
    write_using(&*nexus, 0, 0, &held, &[(64, 64)]).good();
}

#[test]
fn changes_outside_of_scsi_revoke_all_tokens() {
    let (medium, unit, target, nexus) = simple();
    run(&*nexus, &wide(0x93, 0, 0, 64), &[1; 512]).good();
    // Change the size of the volume.
    let held = token(&*nexus, 0, &[(0, 8)]);
    unit.resized();
    write_using(&*nexus, 0, 0, &held, &[(8, 8)]).good();
    medium.grow(crate::common::SIZE * 2);
    unit.resized();
    assert_eq!(run(&*nexus, &[0; 6], &[]).sense(), (6, 0x2A, 9));
    assert_eq!(write_using(&*nexus, 0, 0, &held, &[(8, 8)]).sense(), REVOKED);
    // Remove the unit from one target, as the server does before a rollback.
    let held = token(&*nexus, 0, &[(0, 8)]);
    assert!(target.add_lun(1, Arc::clone(&unit)));
    target.remove_lun(1);
    run(&*nexus, &[0; 6], &[]);
    assert_eq!(write_using(&*nexus, 0, 0, &held, &[(8, 8)]).sense(), REVOKED);
    // Tell the unit that clients of other protocols may write to its volume.
    let held = token(&*nexus, 0, &[(0, 8)]);
    unit.changes_elsewhere();
    let before = medium.bytes();
    assert_eq!(write_using(&*nexus, 0, 0, &held, &[(8, 8)]).sense(), REVOKED);
    assert!(medium.bytes() == before);
    assert_eq!(populate(&*nexus, 0, 1, &[(0, 8)]).sense(), (5, 0x23, 0));
    assert_eq!(token_information(&*nexus, 0, 1).token, None);
    // The unit still accepts WRITE USING TOKEN as its destination.
    write_using(&*nexus, 0, 0, &zeros(), &[(8, 8)]).good();
}

/// If a client of another protocol changes the source of a copy that cannot clone, the copy fails.
#[test]
fn change_outside_of_scsi_fails_a_running_copy() {
    let (medium, unit, _target, nexus) = simple();
    let held = token(&*nexus, 0, &[(0, 8192)]);
    medium.waits.store(true, Ordering::SeqCst);
    let list = writing(0, 0, &held, &[(8192, 8192)]);
    let cdb = block(0x11, 6, list.len() as u32);
    let command =
        Command { lun: Lun::new(0), cdb: &cdb, data_out: &list, attribute: Attribute::Simple };
    let mut out = OutBuf::default();
    let mut copying = pin!(nexus.execute(command, &mut out));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..4 {
        assert!(copying.as_mut().poll(&mut context).is_pending());
    }
    unit.revoke_tokens();
    let completion = loop {
        if let Poll::Ready(completion) = copying.as_mut().poll(&mut context) {
            break completion;
        }
    };
    let sense = completion.sense.unwrap();
    assert_eq!((sense.key, sense.asc, sense.ascq), REVOKED);
}

#[test]
fn tokens_expire_and_can_be_deleted() {
    let (_medium, _unit, _target, nexus) = simple();
    send(&*nexus, 0, 0x10, 1, &population(0, 1, 0, &[(0, 8)])).good();
    let short = token_information(&*nexus, 0, 1).token.unwrap();
    let long = token(&*nexus, 0, &[(0, 8)]);
    // Each use of the token restarts its inactivity timeout.
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(400));
        write_using(&*nexus, 0, 0, &short, &[(8, 8)]).good();
    }
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(write_using(&*nexus, 0, 0, &short, &[(8, 8)]).sense(), (5, 0x23, 7));
    // With DEL_TKN, the token is deleted after its use.
    send(&*nexus, 0, 0x11, 2, &writing(2, 0, &long, &[(8, 8)])).good();
    assert_eq!(write_using(&*nexus, 0, 0, &long, &[(8, 8)]).sense(), (5, 0x23, 9));
}

#[test]
fn tokens_and_copy_results_are_bounded() {
    let (_medium, _unit, target, nexus) = simple();
    let first = token(&*nexus, 0, &[(0, 8)]);
    let second = token(&*nexus, 0, &[(0, 8)]);
    let other = ready(&target, 2);
    for id in 0..254 {
        populate(&*other, 0, id, &[(16, 8)]).good();
    }
    // A new token replaces the least recently used token.
    write_using(&*nexus, 0, 0, &first, &[(8, 8)]).good();
    populate(&*other, 0, 254, &[(16, 8)]).good();
    assert_eq!(write_using(&*nexus, 0, 0, &second, &[(8, 8)]).sense(), (5, 0x23, 4));
    write_using(&*nexus, 0, 0, &first, &[(8, 8)]).good();
    // The number of copy results is also bounded, and the newest results are kept.
    assert!(token_information(&*other, 0, 254).token.is_some());
    let gone = crate::common::tokens::information(&*other, 0, 7, 100);
    assert_eq!(gone.sense(), (5, 0x24, 0));
}

/// ROD tokens survive a logical unit reset and the loss of the nexus that created them.
#[test]
fn resets_cancel_no_token() {
    let (_medium, _unit, target, nexus) = simple();
    let held = token(&*nexus, 0, &[(0, 8)]);
    nexus.manage(Lun::new(0), weir_scsi::Management::LunReset);
    drop(nexus);
    let other = ready(&target, 2);
    write_using(&*other, 0, 0, &held, &[(8, 8)]).good();
}
