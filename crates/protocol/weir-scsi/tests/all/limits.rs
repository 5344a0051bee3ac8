//! Tests of the limits of one command's transfer and of concurrent copies.
//!
//! Tests of the limits of lists, tokens and copy results are in copies.rs, tokens.rs and
//! token_ends.rs.
//!
//! Invariant: each test fails if its limit is removed.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use crate::common::tokens::{block, population, send, token, write_using, writing, zeros};
use crate::common::{begin, ready, run, simple, simple_of, unmap, unmap_list, wide};
use weir_block::OutBuf;
use weir_scsi::limits::{
    COPIES_RUNNING_MAX, TOKEN_DATA_BYTES_MAX, UNMAP_BLOCKS_MAX, WRITE_SAME_BYTES_MAX,
};
use weir_scsi::{Completion, Status};

const INVALID_CDB: (u8, u8, u8) = (5, 0x24, 0);
const INVALID_PARAMETER: (u8, u8, u8) = (5, 0x26, 0);

#[test]
fn concurrent_copies_of_one_nexus_are_bounded() {
    let (medium, _unit, target, nexus) = simple();
    let other = ready(&target, 2);
    let held = token(&*nexus, 0, &[(0, 8)]);
    medium.waits.store(true, Ordering::SeqCst);
    let copies = u32::from(COPIES_RUNNING_MAX);
    let commands: Vec<_> = (0..copies)
        .map(|id| {
            let list = writing(0, 0, &held, &[(100 + u64::from(id) * 8, 8)]);
            (block(0x11, 100 + id, list.len() as u32), list)
        })
        .collect();
    let mut answers: Vec<_> = commands.iter().map(|_| OutBuf::default()).collect();
    let mut running: Vec<Pin<Box<dyn Future<Output = Completion>>>> = commands
        .iter()
        .zip(&mut answers)
        .map(|((cdb, list), out)| Box::pin(begin(&*nexus, cdb, list, out)) as Pin<Box<_>>)
        .collect();
    let mut context = Context::from_waker(Waker::noop());
    for copy in &mut running {
        assert!(copy.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(write_using(&*nexus, 0, 0, &held, &[(2000, 8)]).status(), Status::Busy);
    write_using(&*other, 0, 0, &zeros(), &[(3000, 8)]).good();
    while !running.is_empty() {
        running.retain_mut(|copy| match copy.as_mut().poll(&mut context) {
            Poll::Ready(completion) => {
                assert_eq!(completion.status, Status::Good);
                false
            }
            Poll::Pending => true,
        });
    }
    write_using(&*nexus, 0, 0, &held, &[(2000, 8)]).good();
}

#[test]
fn token_and_write_using_token_are_limited_in_bytes() {
    let blocks = (TOKEN_DATA_BYTES_MAX / 512) as u32;
    for (whole, more) in [
        (vec![(0, blocks)], vec![(0, blocks + 1)]),
        (vec![(0, 8), (8, blocks - 8)], vec![(0, 8), (8, blocks - 8), (u64::from(blocks), 1)]),
    ] {
        let (_medium, _unit, _target, nexus) = simple_of(TOKEN_DATA_BYTES_MAX + (1 << 20));
        token(&*nexus, 0, &whole);
        write_using(&*nexus, 0, 0, &zeros(), &whole).good();
        let refused = [
            send(&*nexus, 0, 0x10, 9, &population(0, 0, 0, &more)),
            send(&*nexus, 0, 0x11, 9, &writing(0, 0, &zeros(), &more)),
        ];
        refused.iter().for_each(|answer| assert_eq!(answer.sense(), INVALID_PARAMETER));
    }
}

#[test]
fn blocks_of_one_unmap_are_limited() {
    let most = UNMAP_BLOCKS_MAX;
    let (_medium, unit, _target, nexus) = simple_of((u64::from(most) + 8) * 512);
    unmap(&*nexus, &unmap_list(&[(0, most)])).good();
    unmap(&*nexus, &unmap_list(&[(0, 8), (8, most - 8)])).good();
    let unmapped = unit.counters().unmapped_bytes;
    assert_eq!(unmapped, 2 * u64::from(most) * 512);
    for ranges in [vec![(0, most + 1)], vec![(0, 8), (8, most - 8), (0, 1)]] {
        assert_eq!(unmap(&*nexus, &unmap_list(&ranges)).sense(), INVALID_PARAMETER);
    }
    assert_eq!(unit.counters().unmapped_bytes, unmapped);
}

#[test]
fn bytes_of_one_write_same_are_limited() {
    let blocks = (WRITE_SAME_BYTES_MAX / 512) as u32;
    let (_medium, unit, _target, nexus) = simple_of(WRITE_SAME_BYTES_MAX + 4096);
    // With NDOB, WRITE SAME writes zeros. Send it with the UNMAP bit and without it.
    for flags in [0x09, 0x01] {
        run(&*nexus, &wide(0x93, flags, 0, blocks), &[]).good();
        let more = run(&*nexus, &wide(0x93, flags, 0, blocks + 1), &[]);
        assert_eq!(more.sense(), INVALID_CDB);
    }
    let counters = unit.counters();
    assert_eq!(counters.zeroed_bytes, WRITE_SAME_BYTES_MAX);
    assert_eq!(counters.unmapped_bytes, WRITE_SAME_BYTES_MAX);
}
