//! Tests of WRITE USING TOKEN concurrently with writers to the token's ranges and with other
//! copies.
//!
//! Single-threaded tests are in tokens.rs and token_ends.rs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::tokens::{populate, token, token_information, write_using};
use crate::common::{MemoryMedium, SIZE, ready, run, simple, unit_of, wide};
use weir_scsi::{Status, Target};

/// Number of blocks in the source. A copy that cannot clone reads the source in two parts.
const LEN: u32 = 4096;

/// The counter values of the writer, which fills the whole source with one value at a time: the
/// last value that it began to write, and the last that it wrote completely.
#[derive(Default)]
struct Values {
    begun: AtomicU64,
    answered: AtomicU64,
    done: AtomicBool,
}

/// Stops the writer thread on drop, also if the test fails.
struct Stop<'a>(&'a Values);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.done.store(true, Ordering::SeqCst);
    }
}

/// Fills the source with one counter value after the other, with three commands in turn. Sleeps
/// after each value so that a copy can run.
fn write_values(target: &Arc<Target>, values: &Values) {
    let nexus = ready(target, 3);
    let mut value = 0_u64;
    while !values.done.load(Ordering::SeqCst) {
        value += 1;
        values.begun.store(value, Ordering::SeqCst);
        let block = value.to_be_bytes().repeat(64);
        match value % 3 {
            0 => run(&*nexus, &wide(0x93, 0, 0, LEN), &block).good(),
            1 => run(&*nexus, &wide(0x8E, 0, 0, LEN), &block.repeat(LEN as usize)).good(),
            _ => run(&*nexus, &wide(0x8A, 0, 0, LEN), &block.repeat(LEN as usize)).good(),
        };
        values.answered.store(value, Ordering::SeqCst);
        std::thread::sleep(Duration::from_micros(value * 7919 % 6000));
    }
}

/// Returns the counter value that all blocks of the destination contain.
fn value_of(medium: &MemoryMedium) -> u64 {
    let bytes = medium.bytes();
    let written = &bytes[..LEN as usize * 512];
    let value = u64::from_be_bytes(written[..8].try_into().expect("eight bytes"));
    let same = written.as_chunks::<8>().0.iter().all(|own| *own == value.to_be_bytes());
    assert!(same, "half of a write was seen");
    value
}

fn race(waits: bool, clones: bool, turns: u32) {
    let (medium, _unit, target, _nexus) = simple();
    let copy = Arc::new(MemoryMedium::new(SIZE));
    assert!(target.add_lun(1, unit_of(&copy, 2, 512)));
    copy.clones.store(clones, Ordering::SeqCst);
    let nexus = ready(&target, 1);
    medium.waits.store(waits, Ordering::SeqCst);
    let values = Values::default();
    let (mut good, mut stale) = (0, 0);
    std::thread::scope(|scope| {
        let (values, target) = (&values, &target);
        let _stop = Stop(values);
        scope.spawn(move || write_values(target, values));
        for turn in 0..turns {
            let least = values.answered.load(Ordering::SeqCst);
            populate(&*nexus, 0, 1, &[(0, LEN)]).good();
            let most = values.begun.load(Ordering::SeqCst);
            let token = token_information(&*nexus, 0, 1).token.expect("a token");
            std::thread::sleep(Duration::from_micros(u64::from(turn) * 104_729 % 3000));
            let written = values.answered.load(Ordering::SeqCst);
            let before = copy.bytes();
            let answer = write_using(&*nexus, 1, 0, &token, &[(0, LEN)]);
            if answer.status() == Status::Good {
                let value = value_of(&copy);
                assert!((least..=most).contains(&value), "{value}, not {least} to {most}");
                assert!(written <= most, "{written} was answered, and {value} copied");
                good += 1;
            } else {
                assert_eq!(answer.sense(), (5, 0x23, 8));
                assert!(copy.bytes() == before, "copied from a token that had ended");
                stale += 1;
            }
        }
    });
    assert!(good > turns / 20 && stale > turns / 20, "{good} good, {stale} stale");
}

#[test]
fn copy_without_cloning_never_sees_a_partial_write() {
    race(false, false, 300);
}

#[test]
fn copy_never_sees_a_partial_write_of_a_waiting_writer() {
    race(true, false, 300);
}

#[test]
fn copy_with_cloning_never_sees_a_partial_write() {
    race(false, true, 300);
}

/// Copies in opposite directions lock each other's ranges, and all of them complete.
#[test]
fn copies_in_opposite_directions_do_not_deadlock() {
    let (one, _unit, target, _nexus) = simple();
    let other = Arc::new(MemoryMedium::new(SIZE));
    assert!(target.add_lun(1, unit_of(&other, 2, 512)));
    let nexus = ready(&target, 1);
    run(&*nexus, &wide(0x93, 0, 0, LEN), &[1; 512]).good();
    one.waits.store(true, Ordering::SeqCst);
    other.waits.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        for (number, from) in [(3, 0), (4, 1), (5, 0), (6, 1)] {
            let target = &target;
            scope.spawn(move || {
                let nexus = ready(target, number);
                for _ in 0..100 {
                    // The source ranges of each copy partly overlap the destination range of the
                    // other copy.
                    let held = token(&*nexus, from, &[(0, 64), (128, 64)]);
                    let answer = write_using(&*nexus, 1 - from, 0, &held, &[(32, 128)]);
                    if answer.status() != Status::Good {
                        assert_eq!(answer.sense(), (5, 0x23, 8));
                    }
                }
            });
        }
    });
}
