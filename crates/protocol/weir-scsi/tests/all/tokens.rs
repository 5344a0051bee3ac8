//! Tests of POPULATE TOKEN, WRITE USING TOKEN, and the commands that report their results.
//!
//! Tests of the end of tokens are in token_ends.rs, tests of concurrency in token_races.rs.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use crate::common::tokens::{
    Blocks, block, information, populate, population, send, token, token_information, write_using,
    writing, zeros,
};
use crate::common::{MemoryMedium, SIZE, begin, ready, run, run_on, simple, target, unit_of, wide};
use weir_base::ErrorKind;
use weir_block::OutBuf;
use weir_scsi::{Directory, InitiatorPort, Lun, Nexus, Target, Unit};

const BLOCKS: u64 = SIZE / 512;

/// Fills the first 4 MiB with data that differs at each offset.
fn fill(nexus: &dyn Nexus) -> Vec<u8> {
    let data: Vec<u8> = (0..4 << 20).map(|at: u32| (at / 512 * 7 + at) as u8).collect();
    run(nexus, &wide(0x8A, 0, 0, 8192), &data).good();
    data
}

/// Adds a second unit as LUN 1 to the target of [`simple`].
fn beside(
    target: &Arc<Target>,
    nexus: &dyn Nexus,
    block_bytes: u32,
) -> (Arc<MemoryMedium>, Arc<Unit>) {
    let medium = Arc::new(MemoryMedium::new(SIZE));
    let unit = unit_of(&medium, 2, block_bytes);
    assert!(target.add_lun(1, Arc::clone(&unit)));
    run(nexus, &[0; 6], &[]);
    run_on(nexus, Lun::new(1), &[0; 6], &[]);
    (medium, unit)
}

fn pick(ranges: &[Blocks], bytes: &[u8]) -> Vec<u8> {
    let at = |&(lba, blocks): &Blocks| &bytes[lba as usize * 512..][..blocks as usize * 512];
    ranges.iter().flat_map(at).copied().collect()
}

#[test]
fn write_using_token_copies_with_and_without_cloning() {
    for (clones, waits, cached) in [(false, false, true), (true, true, false), (false, true, false)]
    {
        let (medium, _unit, target, nexus) = simple();
        let (other, unit) = beside(&target, &*nexus, 512);
        other.clones.store(clones, Ordering::SeqCst);
        let data = fill(&*nexus);
        medium.waits.store(waits, Ordering::SeqCst);
        if !cached {
            // MODE SELECT clears WCE.
            let mut part = vec![0, 0, 0, 0, 0x08, 18, 0];
            part.resize(4 + 20, 0);
            run_on(&*nexus, Lun::new(1), &[0x15, 0x10, 0, 0, 24, 0], &part).good();
        }
        let from = [(5, 3000), (8000, 7), (0, 0), (4000, 1)];
        populate(&*nexus, 0, 7, &from).good();
        let made = token_information(&*nexus, 0, 7);
        assert_eq!((made.action, made.status, made.ended), (0x10, 1, 0));
        assert_eq!((made.units, made.count, made.sense), (0xF1, 3008, None));
        let token = made.token.unwrap();
        assert_eq!(token[..8], [0, 0x80, 0, 1, 0, 0, 0x01, 0xF8]);
        assert_eq!(token[48..64], (3008_u128 * 512).to_be_bytes());
        let to = [(100, 8), (9000, 2990), (3, 10)];
        send(&*nexus, 1, 0x11, 7, &writing(0, 0, &token, &to)).good();
        let wrote = token_information(&*nexus, 1, 7);
        assert_eq!((wrote.action, wrote.status, wrote.count), (0x11, 1, 3008));
        assert_eq!((wrote.ended, wrote.units, wrote.token), (0, 0xF1, None));
        let written = other.bytes();
        assert!(pick(&to, &written) == pick(&from, &data), "sharing: {clones}");
        if !cached {
            assert!(*other.durable.lock() == written, "answered before it was durable");
        }
        let mut rest = written;
        for (lba, blocks) in to {
            rest[lba as usize * 512..][..blocks as usize * 512].fill(0);
        }
        assert!(rest.iter().all(|&byte| byte == 0), "written beside");
        assert_eq!(unit.counters().cloned_bytes, 3008 * 512);
        // Use the token again: from an offset, for only a part of its data, to its own unit.
        write_using(&*nexus, 0, 2999, &token, &[(BLOCKS - 4, 4)]).good();
        let expected = [(3004, 1), (8000, 3)];
        assert!(pick(&[(BLOCKS - 4, 4)], &medium.bytes()) == pick(&expected, &data));
    }
}

#[test]
fn counts_and_offsets_are_in_destination_blocks() {
    let (_medium, _unit, target, nexus) = simple();
    let (other, _) = beside(&target, &*nexus, 4096);
    let data = fill(&*nexus);
    let held = token(&*nexus, 0, &[(15, 6), (40, 61)]);
    // The offset is one block of 4096 bytes, as in an example of SBC-4.
    write_using(&*nexus, 1, 1, &held, &[(2, 1)]).good();
    assert!(pick(&[(16, 8)], &other.bytes()) == pick(&[(42, 8)], &data));
    // 67 blocks of 512 bytes fill 8 blocks of 4096 bytes and a part of a ninth block. Zeros fill
    // the rest of the ninth block.
    run_on(&*nexus, Lun::new(1), &wide(0x93, 0, 0, 32), &[0xEE; 4096]).good();
    let answer = write_using(&*nexus, 1, 0, &held, &[(1, 3), (7, 8)]);
    assert_eq!(answer.sense(), (0xA, 0x0D, 4));
    assert_eq!(answer.completion.sense.unwrap().information, Some(9));
    let told = token_information(&*nexus, 1, 2);
    assert_eq!((told.status, told.ended, told.count), (3, 2, 9));
    assert_eq!(told.sense, Some((0xA, 0x0D, 4)));
    let mut expected = pick(&[(15, 6), (40, 61)], &data);
    expected.resize(9 * 4096, 0);
    let written = other.bytes();
    assert!([&written[4096..4 * 4096], &written[7 * 4096..13 * 4096]].concat() == expected);
    assert!(written[13 * 4096..15 * 4096].iter().all(|&byte| byte == 0xEE));
    // The offset is at or beyond the end of the token's data.
    assert_eq!(write_using(&*nexus, 1, 9, &held, &[(0, 1)]).sense(), (5, 0x26, 0));
    assert_eq!(write_using(&*nexus, 1, u64::MAX, &held, &[(0, 1)]).sense(), (5, 0x26, 0));
}

#[test]
fn zero_token_writes_zeros() {
    for waits in [false, true] {
        let (medium, unit, _target, nexus) = simple();
        let mut expected = fill(&*nexus);
        medium.waits.store(waits, Ordering::SeqCst);
        write_using(&*nexus, 0, 77, &zeros(), &[(8, 16), (4000, 3000)]).good();
        expected[8 * 512..24 * 512].fill(0);
        expected[4000 * 512..7000 * 512].fill(0);
        assert!(medium.bytes()[..expected.len()] == expected);
        assert_eq!(token_information(&*nexus, 0, 2).count, 3016);
        assert_eq!(unit.counters().zeroed_bytes, 3016 * 512);
    }
}

#[test]
fn invalid_lists_and_tokens_change_nothing() {
    let (medium, _unit, _target, nexus) = simple();
    fill(&*nexus);
    let held = token(&*nexus, 0, &[(0, 64)]);
    let before = medium.bytes();
    let many: Vec<Blocks> = (0..65).map(|at| (at, 1)).collect();
    let patched = |at: usize, bytes: &[u8]| {
        let mut token = held.clone();
        token[at..at + bytes.len()].copy_from_slice(bytes);
        writing(0, 0, &token, &[(100, 1)])
    };
    let one = [(0, 1)];
    let mut odd_length = writing(0, 0, &held, &[(100, 2)]);
    odd_length[535] = 32;
    let cases = [
        (0x10, population(0, 601, 0, &one), (5, 0x26, 0)),
        (0x10, population(2, 0, 0x0080_0002, &one), (5, 0x26, 0)),
        (0x10, population(2, 0, 0xFFFF_0001, &one), (5, 0x26, 0)),
        (0x10, population(0, 0, 0, &[]), (5, 0x26, 0)),
        (0x10, population(0, 0, 0, &many), (5, 0x26, 8)),
        (0x10, population(0, 0, 0, &[(0, 9), (8, 1)]), (5, 0x26, 0)),
        (0x10, population(0, 0, 0, &[(BLOCKS, 1)]), (5, 0x21, 0)),
        (0x10, population(0, 0, 0, &[(u64::MAX, 2)]), (5, 0x21, 0)),
        (0x10, population(0, 0, 0, &one)[..15].to_vec(), (5, 0x1A, 0)),
        (0x11, writing(0, 0, &held, &[]), (5, 0x26, 0)),
        (0x11, writing(0, 0, &held, &many), (5, 0x26, 8)),
        (0x11, writing(0, 0, &held, &[(100, 9), (108, 1)]), (5, 0x26, 0)),
        (0x11, writing(0, 0, &held, &[(BLOCKS - 1, 2)]), (5, 0x21, 0)),
        (0x11, writing(0, 0, &held, &[(100, 2)])[..551].to_vec(), (5, 0x1A, 0)),
        (0x11, writing(0, 64, &held, &[(100, 1)]), (5, 0x26, 0)),
        (0x11, odd_length, (5, 0x26, 0)),
        // WRITE USING TOKEN refuses to write to the ranges that its token represents.
        (0x11, writing(0, 0, &held, &[(100, 1), (63, 1)]), (5, 0x26, 0)),
        // The tokens have a wrong length, ROD type, logical unit, identifier, or random bytes.
        (0x11, patched(6, &[0x01, 0xF7]), (5, 0x23, 0x0A)),
        (0x11, patched(0, &[0, 1, 0, 0]), (5, 0x23, 0x01)),
        (0x11, patched(16 + 23, &[9]), (5, 0x23, 0x02)),
        (0x11, patched(8, &[!held[8]]), (5, 0x23, 0x04)),
        (0x11, patched(511, &[!held[511]]), (5, 0x23, 0x04)),
    ];
    for (case, (action, list, expected)) in cases.into_iter().enumerate() {
        let answer = send(&*nexus, 0, action, 9, &list);
        assert_eq!(answer.sense(), expected, "case {case}");
        assert_eq!(answer.completion.wanted_bytes, list.len() as u64);
    }
    assert!(medium.bytes() == before);
    assert_eq!(information(&*nexus, 0, 7, 10).sense(), (5, 0x24, 0));
    // The parameter list is shorter than its length field, or empty.
    let list = writing(0, 0, &held, &[(100, 1)]);
    let short = run(&*nexus, &block(0x11, 9, list.len() as u32 + 16), &list);
    assert_eq!(short.sense(), (5, 0x0E, 3));
    send(&*nexus, 0, 0x10, 9, &[]).good();
    send(&*nexus, 0, 0x11, 9, &[]).good();
    // After all the refused commands, the token is still valid.
    write_using(&*nexus, 0, 0, &held, &[(100, 64)]).good();
    assert!(medium.bytes()[100 * 512..164 * 512] == before[..64 * 512]);
}

#[test]
fn tokens_cannot_be_guessed() {
    let (_medium, _unit, _target, nexus) = simple();
    let [one, other] = [0; 2].map(|_| token(&*nexus, 0, &[(0, 8)]));
    assert_ne!(one[8..16], other[8..16]);
    let same = one[256..].iter().zip(&other[256..]).filter(|(a, b)| a == b).count();
    assert!(same < 16, "{same} of 256 random bytes are the same");
}

/// Directory with one logical unit, which only one initiator may use.
struct Other(Arc<Unit>, InitiatorPort);

impl Directory for Other {
    fn find(&self, initiator: &InitiatorPort, naa: [u8; 16]) -> Option<Arc<Unit>> {
        (self.0.naa() == naa && self.1 == *initiator).then(|| Arc::clone(&self.0))
    }
}

#[test]
fn token_requires_access_to_its_unit() {
    let (_medium, unit, source, nexus) = simple();
    let data = fill(&*nexus);
    let held = token(&*nexus, 0, &[(8, 8)]);
    let elsewhere = Arc::new(MemoryMedium::new(SIZE));
    let directory = Arc::new(Other(unit, crate::common::initiator(1)));
    let plain = target();
    let target = Target::new("iqn.2026-01.example:far", plain.ports().to_vec(), Some(directory));
    assert!(target.add_lun(0, unit_of(&elsewhere, 2, 512)));
    let stranger = ready(&target, 2);
    assert_eq!(write_using(&*stranger, 0, 0, &held, &[(0, 8)]).sense(), (5, 0x23, 2));
    let friend = ready(&target, 1);
    write_using(&*friend, 0, 0, &held, &[(0, 8)]).good();
    assert!(elsewhere.bytes()[..4096] == data[4096..8192]);
    // The token remains valid after the loss of the nexus that created it.
    drop(nexus);
    write_using(&*friend, 0, 0, &held, &[(8, 8)]).good();
    let holder = ready(&source, 3);
    run(&*holder, &[0x16, 0, 0, 0, 0, 0], &[]).good();
    let before = elsewhere.bytes();
    assert_eq!(write_using(&*friend, 0, 0, &held, &[(16, 8)]).sense(), (0xA, 0x0D, 2));
    assert!(elsewhere.bytes() == before);
    run(&*holder, &[0x17, 0, 0, 0, 0, 0], &[]).good();
    write_using(&*friend, 0, 0, &held, &[(16, 8)]).good();
}

#[test]
fn errors_of_immediate_copies_are_reported_later() {
    let (medium, _unit, target, nexus) = simple();
    let (other, _) = beside(&target, &*nexus, 512);
    fill(&*nexus);
    send(&*nexus, 0, 0x10, 1, &population(3, 60, 0x0080_FFFF, &[(0, 8192)])).good();
    let held = token_information(&*nexus, 0, 1).token.unwrap();
    assert_eq!(held[..4], [0, 0x80, 0, 1]);
    medium.waits.store(true, Ordering::SeqCst);
    *medium.failure.lock() = Some(ErrorKind::Data);
    let list = writing(1, 0, &held, &[(0, 8192)]);
    send(&*nexus, 1, 0x11, 5, &list).good();
    let failed = token_information(&*nexus, 1, 5);
    assert_eq!((failed.status, failed.ended, failed.count), (2, 2, 0));
    assert_eq!(failed.sense, Some((0xA, 0x0D, 1)));
    *medium.failure.lock() = None;
    *other.failure.lock() = Some(ErrorKind::NoSpace);
    send(&*nexus, 1, 0x11, 5, &list).good();
    assert_eq!(token_information(&*nexus, 1, 5).sense, Some((0xA, 0x27, 7)));
    *other.failure.lock() = None;
    send(&*nexus, 1, 0x11, 5, &list).good();
    assert_eq!(
        (token_information(&*nexus, 1, 5).status, token_information(&*nexus, 1, 5).count),
        (1, 8192)
    );
    assert!(other.bytes() == medium.bytes());
    // The target refuses an invalid parameter list immediately.
    assert_eq!(send(&*nexus, 1, 0x11, 5, &list[..549]).sense(), (5, 0x1A, 0));
}

#[test]
fn aborted_copy_writes_nothing_after_the_response() {
    let (medium, _unit, _target, nexus) = simple();
    fill(&*nexus);
    let held = token(&*nexus, 0, &[(0, 8192)]);
    medium.waits.store(true, Ordering::SeqCst);
    let list = writing(0, 0, &held, &[(8192, 8192)]);
    let (cdb, mut aborts) = (block(0x11, 6, list.len() as u32), vec![0x83, 0x1C, 0, 0, 0, 6]);
    aborts.resize(16, 0);
    let (mut first, mut second) = (OutBuf::default(), OutBuf::default());
    let mut copying = pin!(begin(&*nexus, &cdb, &list, &mut first));
    let mut aborting = pin!(begin(&*nexus, &aborts, &[], &mut second));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..4 {
        assert!(copying.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(information(&*nexus, 0, 5, 6).good()[5], 0x11);
    // While a copy runs, no other copy can use its list identifier.
    assert_eq!(populate(&*nexus, 0, 6, &[(0, 1)]).sense(), (5, 0x00, 0x16));
    assert!(aborting.as_mut().poll(&mut context).is_pending());
    let completion = loop {
        if let Poll::Ready(completion) = copying.as_mut().poll(&mut context) {
            break completion;
        }
        assert!(aborting.as_mut().poll(&mut context).is_pending(), "answered too early");
    };
    let sense = completion.sense.unwrap();
    assert_eq!((sense.key, sense.asc, sense.ascq), (0xA, 0x2F, 2));
    let after = medium.bytes();
    assert!(after[7 << 20..].iter().all(|&byte| byte == 0), "was not aborted");
    assert!(aborting.as_mut().poll(&mut context).is_ready());
    assert_eq!(token_information(&*nexus, 0, 6).status, 0x60);
    run(&*nexus, &aborts, &[]).good();
    let unknown = [0x83, 0x1C, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(run(&*nexus, &unknown, &[]).sense(), (5, 0x24, 0));
}

/// A running write either completes before the token is created or cancels the token. After the
/// creation, reads return the data that the token represents.
#[test]
fn populate_token_waits_for_running_writes() {
    let (medium, _unit, _target, nexus) = simple();
    medium.waits.store(true, Ordering::SeqCst);
    let (writes, list) = (wide(0x8A, 0, 0, 1), population(0, 0, 0, &[(0, 8)]));
    let cdb = block(0x10, 1, list.len() as u32);
    let (mut first, mut second) = (OutBuf::default(), OutBuf::default());
    let mut writing = pin!(begin(&*nexus, &writes, &[9; 512], &mut first));
    let mut making = pin!(begin(&*nexus, &cdb, &list, &mut second));
    let mut context = Context::from_waker(Waker::noop());
    assert!(writing.as_mut().poll(&mut context).is_pending());
    assert!(making.as_mut().poll(&mut context).is_pending(), "made beside a writer");
    assert!(writing.as_mut().poll(&mut context).is_ready());
    assert!(making.as_mut().poll(&mut context).is_ready());
    let held = token_information(&*nexus, 0, 1).token.unwrap();
    write_using(&*nexus, 0, 0, &held, &[(100, 8)]).good();
    assert_eq!(medium.bytes()[100 * 512..101 * 512], [9; 512]);
}

#[test]
fn third_party_copy_page_reports_token_limits() {
    let (_medium, _unit, _target, nexus) = simple();
    let told = run(&*nexus, &[0x12, 1, 0x8F, 2, 0, 0], &[]).good();
    let be16 = |at: usize| u16::from_be_bytes([told[at], told[at + 1]]);
    let (mut at, mut kinds) = (4, Vec::new());
    while at < told.len() {
        kinds.push((be16(at), at));
        at += 4 + usize::from(be16(at + 2));
    }
    assert_eq!((at, usize::from(be16(2))), (told.len(), told.len() - 4));
    let codes: Vec<u16> = kinds.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [0, 1, 4, 8, 0x106, 0x108, 0x8001]);
    // The descriptor contains the maximum number of ranges, the timeouts, and the maximum number of
    // blocks of a token.
    assert_eq!(told[14..16], [0, 64]);
    assert_eq!(told[16..24], [0, 0, 2, 0x58, 0, 0, 0, 60]);
    assert_eq!(told[24..32], (2_u64 << 20).to_be_bytes());
    let commands = kinds[1].1 + 4;
    assert_eq!(told[commands], 13);
    let expected = [0x83, 4, 0, 0x10, 0x11, 0x1C, 0x84, 5, 0, 3, 4, 5, 7];
    assert_eq!(told[commands + 1..commands + 14], expected);
    let types = kinds[5].1;
    assert_eq!(be16(types + 6), 128);
    assert_eq!(told[types + 8..types + 13], [0, 0x80, 0, 1, 3]);
    assert_eq!(told[types + 72..types + 77], [0xFF, 0xFF, 0, 1, 2]);
    for (code, action) in [(0x83, 0x10), (0x83, 0x11), (0x83, 0x1C), (0x84, 5), (0x84, 7)] {
        let asked = [0xA3, 0x0C, 2, code, 0, action, 0, 0, 0, 255, 0, 0];
        assert_eq!(run(&*nexus, &asked, &[]).good()[..6], [0, 3, 0, 16, code, action]);
    }
}
