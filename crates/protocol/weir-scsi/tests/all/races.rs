//! Tests of COMPARE AND WRITE and other writers on several threads.
//!
//! Single-threaded tests are in commands.rs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use crate::common::{MemoryMedium, block_on, initiator, ready, run, simple, wide};
use weir_block::OutBuf;
use weir_scsi::{Attribute, Command, Lun, Nexus, Status, Target};

const TURNS: u64 = 100_000;

/// Runs COMPARE AND WRITE of block 0, to replace the counter value `from` by `to`. Returns whether
/// the block contained `from`.
fn swap(nexus: &dyn Nexus, from: u64, to: u64) -> bool {
    let mut cdb = wide(0x89, 0, 0, 0);
    cdb[13] = 1;
    let mut data = [0; 1024];
    data[..8].copy_from_slice(&from.to_be_bytes());
    data[512..520].copy_from_slice(&to.to_be_bytes());
    let answer = run(nexus, &cdb, &data);
    match answer.status() {
        Status::Good => true,
        _ => {
            assert_eq!(answer.sense(), (0xE, 0x1D, 0));
            false
        }
    }
}

/// Lets two threads compete for each step of a counter. Asserts that each step has one winner.
fn race(target: &Arc<Target>, medium: &MemoryMedium, turns: u64) {
    let barrier = Barrier::new(2);
    let wins = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in [3, 4] {
            let (barrier, wins) = (&barrier, &wins);
            scope.spawn(move || {
                let nexus = ready(target, number);
                for turn in 0..turns {
                    // Synchronise the threads every 1,000 steps, so that the threads compete for
                    // each step.
                    if turn % 1000 == 0 {
                        barrier.wait();
                    }
                    if swap(&*nexus, turn, turn + 1) {
                        wins.fetch_add(1, Ordering::SeqCst);
                    } else {
                        // The other thread won this step, so wait until its write is visible.
                        while value(&*nexus) <= turn {
                            std::thread::yield_now();
                        }
                    }
                }
            });
        }
    });
    // Exactly one of the two threads won each step.
    assert_eq!(wins.load(Ordering::SeqCst), turns);
    assert_eq!(medium.bytes()[..8], turns.to_be_bytes());
}

fn value(nexus: &dyn Nexus) -> u64 {
    let bytes = run(nexus, &wide(0x88, 0, 0, 1), &[]).good();
    u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"))
}

#[test]
fn racing_compare_and_writes_have_one_winner() {
    let (medium, _unit, target, _nexus) = simple();
    race(&target, &medium, TURNS);
}

#[test]
fn racing_compare_and_writes_that_wait_have_one_winner() {
    let (medium, _unit, target, _nexus) = simple();
    medium.waits.store(true, Ordering::SeqCst);
    race(&target, &medium, TURNS / 5);
}

/// COMPARE AND WRITE must not undo a concurrent write to another block of its range. One thread
/// writes block 1. The other thread sends COMPARE AND WRITE of blocks 0 and 1, which writes back
/// the data that it compared.
#[test]
fn compare_and_write_never_undoes_a_concurrent_write() {
    for waits in [false, true] {
        let (medium, _unit, target, nexus) = simple();
        medium.waits.store(waits, Ordering::SeqCst);
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (target, done) = (&target, &done);
            scope.spawn(move || {
                let nexus = ready(target, 3);
                let mut cdb = wide(0x89, 0, 0, 0);
                cdb[13] = 2;
                while done.load(Ordering::SeqCst) == 0 {
                    let seen = run(&*nexus, &wide(0x88, 0, 0, 2), &[]).good();
                    run(&*nexus, &cdb, &[&seen[..], &seen[..]].concat());
                }
            });
            let undone = (1..=20_000_u64).find(|turn| {
                let mut data = [0; 512];
                data[..8].copy_from_slice(&turn.to_be_bytes());
                run(&*nexus, &wide(0x8A, 0, 1, 1), &data).good();
                run(&*nexus, &wide(0x88, 0, 1, 1), &[]).good() != data
            });
            done.store(1, Ordering::SeqCst);
            assert_eq!(undone, None, "waits: {waits}");
        });
    }
}

/// After the response to PREEMPT AND ABORT, no write of the preempted nexus changes the medium, not
/// even a write that was already running.
#[test]
fn preempted_nexus_writes_nothing_after_the_response() {
    for waits in [false, true] {
        let (medium, _unit, target, nexus) = simple();
        medium.waits.store(waits, Ordering::SeqCst);
        for _ in 0..200 {
            let out = |action: u8, kind: u8, key: u64, new: u64| {
                let mut list = [key.to_be_bytes(), new.to_be_bytes(), [0; 8]].concat();
                list.resize(24, 0);
                (vec![0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
            };
            let (cdb, list) = out(6, 0, 0, 1);
            run(&*nexus, &cdb, &list).good();
            let begun = Barrier::new(2);
            std::thread::scope(|scope| {
                let (target, begun, out) = (&target, &begun, &out);
                let victim = scope.spawn(move || {
                    let nexus = target.nexus(initiator(7), 2);
                    run(&nexus, &[0; 6], &[]);
                    let (cdb, list) = out(6, 0, 0, 2);
                    run(&nexus, &cdb, &list).good();
                    let (cdb, list) = out(1, 5, 2, 0);
                    run(&nexus, &cdb, &list).good();
                    begun.wait();
                    let mut written = 0_u64;
                    while write(&nexus, written) {
                        written += 1;
                    }
                });
                begun.wait();
                std::thread::yield_now();
                let (cdb, list) = out(5, 5, 1, 2);
                run(&*nexus, &cdb, &list).good();
                let seen = medium.bytes();
                victim.join().unwrap();
                assert!(medium.bytes() == seen, "written after the answer, waits: {waits}");
            });
            let (cdb, list) = out(3, 0, 1, 0);
            run(&*nexus, &cdb, &list).good();
        }
    }
}

fn write(nexus: &dyn Nexus, value: u64) -> bool {
    let mut data = [0; 512];
    data[..8].copy_from_slice(&value.to_be_bytes());
    let cdb = wide(0x8A, 0, 0, 1);
    let (lun, attribute) = (Lun::new(0), Attribute::Simple);
    let command = Command { lun, cdb: &cdb, data_out: &data, attribute };
    let mut out = OutBuf::default();
    let completion = match nexus.try_execute(&command, &mut out) {
        Some(completion) => completion,
        None => block_on(nexus.execute(command, &mut out)),
    };
    completion.status == Status::Good
}
