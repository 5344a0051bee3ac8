//! Commands on a logical unit in memory.
//!
//! Tests of reservations and copies are in reservations.rs, copies.rs and tokens.rs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{
    MemoryMedium, SIZE, ready, run, run_on, simple, target, unit_of, unmap, unmap_list, wide,
};
use weir_base::ErrorKind;
use weir_scsi::{Attribute, Command, Lun, Management, Nexus, Status, TaskManagementResponse};

const BLOCKS: u64 = SIZE / 512;
const OUT_OF_RANGE: (u8, u8, u8) = (5, 0x21, 0);
const INVALID_CDB: (u8, u8, u8) = (5, 0x24, 0);
const INVALID_PARAMETER: (u8, u8, u8) = (5, 0x26, 0);
const LIST_LENGTH: (u8, u8, u8) = (5, 0x1A, 0);

/// Returns the CDBs of one command in CDB sizes 6, 10, 12 and 16; `codes` has an operation code for
/// each size.
fn sized(codes: [u8; 4], flags: u8, lba: u32, blocks: u8) -> Vec<Vec<u8>> {
    let at = lba.to_be_bytes();
    vec![
        vec![codes[0], at[1], at[2], at[3], blocks, 0],
        [&[codes[1], flags][..], &at, &[0, 0, blocks, 0]].concat(),
        [&[codes[2], flags][..], &at, &[0, 0, 0, blocks, 0, 0]].concat(),
        wide(codes[3], flags, lba.into(), blocks.into()),
    ]
}

const READS: [u8; 4] = [0x08, 0x28, 0xA8, 0x88];
const WRITES: [u8; 4] = [0x0A, 0x2A, 0xAA, 0x8A];

#[test]
fn read_returns_written_data_with_and_without_waiting() {
    let (medium, unit, _target, nexus) = simple();
    for waits in [false, true] {
        medium.waits.store(waits, Ordering::SeqCst);
        for (turn, write) in sized(WRITES, 0, 77, 3).iter().enumerate() {
            let data = vec![turn as u8 + 1; 3 * 512];
            let answer = run(&*nexus, write, &data);
            assert_eq!(answer.completion.wanted_bytes, 3 * 512);
            answer.good();
            for read in sized(READS, 0, 77, 3) {
                assert!(run(&*nexus, &read, &[]).good() == data, "{read:?}");
            }
        }
    }
    let counters = unit.counters();
    assert_eq!((counters.writes, counters.written_bytes), (8, 8 * 1536));
    assert_eq!((counters.reads, counters.read_bytes), (32, 32 * 1536));
    assert_eq!(medium.flushes.load(Ordering::SeqCst), 0);
}

#[test]
fn only_reads_of_whole_blocks_are_shared() {
    let (medium, unit, target, nexus) = simple();
    let data: Vec<u8> = (0..32_u32 << 10).map(|at| (at / 512) as u8).collect();
    run(&*nexus, &wide(WRITES[3], 0, 8, 64), &data).good();
    let share = |nexus: &dyn Nexus, cdb: &[u8], len_bytes: u64| {
        let command =
            Command { lun: Lun::new(0), cdb, data_out: &[], attribute: Attribute::Simple };
        let mut blocks = Vec::new();
        let shared = nexus.try_share(&command, len_bytes, &mut blocks);
        assert_eq!(shared.is_some(), !blocks.is_empty());
        shared.map(|completion| {
            assert_eq!((completion.status, completion.sense), (Status::Good, None));
            blocks.iter().flat_map(|block| block.iter().copied()).collect::<Vec<u8>>()
        })
    };
    let read = wide(READS[3], 0, 8, 64);
    assert_eq!(share(&*nexus, &read, 32 << 10), Some(data));
    assert_eq!(unit.counters().read_bytes, 32 << 10);
    let others = [
        (read.clone(), 16 << 10),
        (wide(READS[3], 0, 7, 64), 32 << 10),
        (wide(READS[3], 0, 8, 63), 63 << 9),
        (wide(READS[3], 0x08, 8, 64), 32 << 10),
        (wide(READS[3], 0x20, 8, 64), 32 << 10),
        (wide(READS[3], 0, BLOCKS - 8, 64), 32 << 10),
        (wide(READS[3], 0, 8, 0), 0),
        (wide(WRITES[3], 0, 8, 64), 32 << 10),
    ];
    for (cdb, len_bytes) in others {
        assert_eq!(share(&*nexus, &cdb, len_bytes), None, "{cdb:?}");
    }
    medium.waits.store(true, Ordering::SeqCst);
    assert_eq!(share(&*nexus, &read, 32 << 10), None);
    medium.waits.store(false, Ordering::SeqCst);
    // A reservation conflict, and later a unit attention, make `try_share` return `None`.
    let other = ready(&target, 2);
    run(&*other, &[0x16, 0, 0, 0, 0, 0], &[]).good();
    assert_eq!(share(&*nexus, &read, 32 << 10), None);
    assert_eq!(run(&*nexus, &read, &[]).status(), Status::ReservationConflict);
    other.manage(Lun::new(0), Management::LunReset);
    assert_eq!(share(&*nexus, &read, 32 << 10), None);
    assert_eq!(run(&*nexus, &read, &[]).status(), Status::CheckCondition);
    assert!(share(&*nexus, &read, 32 << 10).is_some());
}

#[test]
fn transfers_beyond_the_capacity_are_refused() {
    let (medium, _unit, _target, nexus) = simple();
    let last = BLOCKS as u32 - 1;
    let before = medium.bytes();
    for (codes, data) in [(READS, vec![]), (WRITES, vec![7; 1024])] {
        for cdb in sized(codes, 0, last, 2).into_iter().chain(sized(codes, 0, last + 2, 1)) {
            assert_eq!(run(&*nexus, &cdb, &data).sense(), OUT_OF_RANGE, "{cdb:?}");
        }
        let far = wide(codes[3], 0, u64::MAX, 1);
        assert_eq!(run(&*nexus, &far, &data).sense(), OUT_OF_RANGE);
        let none = wide(codes[3], 0, BLOCKS + 1, 0);
        assert_eq!(run(&*nexus, &none, &data).sense(), OUT_OF_RANGE);
        run(&*nexus, &wide(codes[3], 0, 0, 0), &[]).good();
        let long = wide(codes[3], 0, 0, (32 << 20) / 512 + 1);
        assert_eq!(run(&*nexus, &long, &data).sense(), OUT_OF_RANGE);
        for protect in sized(codes, 0x20, 0, 1).into_iter().skip(1) {
            assert_eq!(run(&*nexus, &protect, &data).sense(), INVALID_CDB);
        }
    }
    assert!(medium.bytes() == before);
    // A length of 0 in the 6-byte CDB means 256 blocks.
    assert_eq!(run(&*nexus, &[8, 0, 0, 0, 0, 0], &[]).good().len(), 256 * 512);
}

#[test]
fn transfers_beyond_the_length_limit_are_refused() {
    let medium = Arc::new(MemoryMedium::new(64 << 20));
    let target = target();
    assert!(target.add_lun(0, unit_of(&medium, 1, 512)));
    let nexus = ready(&target, 1);
    assert_eq!(run(&*nexus, &wide(0x88, 0, 0, 65537), &[]).sense(), INVALID_CDB);
    assert_eq!(run(&*nexus, &wide(0x88, 0, 0, 65536), &[]).good().len(), 32 << 20);
}

#[test]
fn write_handles_missing_and_excess_data_out() {
    let (medium, _unit, _target, nexus) = simple();
    let answer = run(&*nexus, &wide(0x8B, 0, 0, 2), &[1; 512]);
    assert_eq!(answer.sense(), (5, 0x0E, 3));
    assert!(medium.bytes().iter().all(|&byte| byte == 0));
    // WRITE writes the complete blocks that arrived; the transport reports the residual count.
    for (code, fill) in [(0x8A, 1), (0x8E, 2)] {
        let answer = run(&*nexus, &wide(code, 0, 0, 3), &[fill; 1500]);
        assert_eq!(answer.completion.wanted_bytes, 1536);
        answer.good();
        assert!(medium.bytes()[..1024] == [fill; 1024], "{code:x}");
        assert!(medium.bytes()[1024..].iter().all(|&byte| byte == 0), "{code:x}");
    }
    let (medium, _unit, _target, nexus) = simple();
    // WRITE ignores the Data-Out beyond the transfer length.
    run(&*nexus, &wide(0x8A, 0, 0, 1), &[1; 1024]).good();
    assert_eq!(medium.bytes()[511..514], [1, 0, 0]);
}

#[test]
fn writes_with_fua_or_without_cache_are_durable() {
    let (medium, _unit, _target, nexus) = simple();
    let durable = || medium.durable.lock().first().copied();
    run(&*nexus, &wide(0x8A, 0x08, 0, 1), &[1; 512]).good();
    assert_eq!(durable(), Some(1));
    run(&*nexus, &wide(0x8A, 0, 0, 1), &[2; 512]).good();
    assert_eq!(durable(), Some(1));
    run(&*nexus, &wide(0x88, 0x08, 0, 1), &[]).good();
    assert_eq!(durable(), Some(2));
    run(&*nexus, &wide(0x8A, 0, 0, 1), &[3; 512]).good();
    run(&*nexus, &[0x35, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[]).good();
    assert_eq!(durable(), Some(3));
    // MODE SELECT clears WCE.
    let mut part = vec![0, 0, 0, 0, 0x08, 18, 0];
    part.resize(4 + 20, 0);
    run(&*nexus, &[0x15, 0x10, 0, 0, 24, 0], &part).good();
    run(&*nexus, &wide(0x8A, 0, 0, 1), &[4; 512]).good();
    assert_eq!(durable(), Some(4));
    run(&*nexus, &wide(0x93, 0, 0, 1), &[5; 512]).good();
    assert_eq!(durable(), Some(5));
    let unmap = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &[0; 8], &[0, 0, 0, 1, 0, 0, 0, 0]].concat();
    run(&*nexus, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &unmap).good();
    assert_eq!(durable(), Some(0));
}

#[test]
fn storage_errors_map_to_sense_data() {
    let (medium, _unit, _target, nexus) = simple();
    let cases = [
        (ErrorKind::Data, (3, 0x11, 0)),
        (ErrorKind::NoSpace, (7, 0x27, 7)),
        (ErrorKind::Unavailable, (2, 4, 0)),
        (ErrorKind::Poisoned, (4, 0x44, 0)),
    ];
    for (kind, expected) in cases {
        *medium.failure.lock() = Some(kind);
        assert_eq!(run(&*nexus, &wide(0x88, 0, 0, 1), &[]).sense(), expected);
        assert_eq!(run(&*nexus, &wide(0x8A, 8, 0, 1), &[1; 512]).sense(), expected);
    }
    *medium.failure.lock() = None;
    medium.read_only.store(true, Ordering::SeqCst);
    for code in [0x8A, 0x8B, 0x8E, 0x93] {
        assert_eq!(run(&*nexus, &wide(code, 0, 0, 1), &[1; 512]).sense(), (7, 0x27, 0));
    }
    assert_eq!(run(&*nexus, &[0x1A, 8, 0x3F, 0, 255, 0], &[]).good()[2], 0x90);
}

#[test]
fn medium_error_contains_lba_of_first_unreadable_block() {
    let (medium, _unit, _target, nexus) = simple();
    // A record of 16 KiB has 32 blocks. The second record is unreadable.
    *medium.lost.lock() = 20 << 10..21 << 10;
    let lba = |cdb: &[u8], data: &[u8]| {
        let answer = run(&*nexus, cdb, data);
        assert_eq!(answer.sense(), (3, 0x11, 0), "{cdb:02x?}");
        answer.completion.sense.unwrap().information
    };
    for waits in [false, true] {
        medium.waits.store(waits, Ordering::SeqCst);
        assert_eq!(lba(&wide(0x88, 0, 0, 96), &[]), Some(32), "READ");
        assert_eq!(lba(&wide(0x88, 0, 40, 2), &[]), Some(40), "READ inside of the record");
        assert_eq!(lba(&wide(0x8F, 0, 0, 96), &[]), Some(32), "VERIFY");
        assert_eq!(lba(&wide(0x8B, 0, 38, 4), &[1; 2048]), Some(38), "ORWRITE");
        let mut compare = wide(0x89, 0, 41, 0);
        compare[13] = 1;
        assert_eq!(lba(&compare, &[0; 1024]), Some(41), "COMPARE AND WRITE");
        run(&*nexus, &wide(0x88, 0, 0, 32), &[]).good();
    }
}

#[test]
fn verify_compares_data() {
    let (_medium, _unit, _target, nexus) = simple();
    let data: Vec<u8> = (0..1024_u32).map(|at| (at % 251) as u8).collect();
    run(&*nexus, &wide(0x8E, 0x02, 4, 2), &data).good();
    run(&*nexus, &wide(0x8F, 0x02, 4, 2), &data).good();
    run(&*nexus, &wide(0x8F, 0, 0, BLOCKS as u32), &[]).good();
    let mut other = data.clone();
    other[700] ^= 1;
    let answer = run(&*nexus, &wide(0x8F, 0x02, 4, 2), &other);
    assert_eq!(answer.sense(), (0xE, 0x1D, 0));
    assert_eq!(answer.completion.sense.unwrap().information, Some(700));
    assert_eq!(run(&*nexus, &wide(0x8F, 0x04, 4, 2), &data).sense(), INVALID_CDB);
    // With BYTCHK 3, VERIFY compares every stored block with the one block of Data-Out.
    run(&*nexus, &wide(0x93, 0, 8, 8), &data[..512]).good();
    run(&*nexus, &wide(0x8F, 0x06, 8, 8), &data[..512]).good();
    let answer = run(&*nexus, &wide(0x8F, 0x06, 8, 8), &other[512..]);
    assert_eq!(answer.sense(), (0xE, 0x1D, 0));
    assert_eq!(answer.completion.wanted_bytes, 512);
}

#[test]
fn compare_and_write_writes_only_on_match() {
    let (medium, _unit, _target, nexus) = simple();
    let mut cdb = wide(0x89, 0, 3, 0);
    cdb[13] = 2;
    for waits in [false, true] {
        medium.waits.store(waits, Ordering::SeqCst);
        run(&*nexus, &wide(0x8A, 0, 3, 2), &[1; 1024]).good();
        let mut data = [[1; 1024], [2; 1024]].concat();
        data[600] = 9;
        let answer = run(&*nexus, &cdb, &data);
        assert_eq!(answer.sense(), (0xE, 0x1D, 0));
        assert_eq!(answer.completion.wanted_bytes, 2048);
        assert_eq!(answer.completion.sense.unwrap().information, Some(600));
        assert!(medium.bytes()[1536..2560] == [1; 1024]);
        data[600] = 1;
        run(&*nexus, &cdb, &data).good();
        assert!(medium.bytes()[1536..2560] == [2; 1024]);
        assert_eq!(run(&*nexus, &cdb, &data[..1536]).sense(), INVALID_CDB);
    }
}

#[test]
fn write_same_and_unmap() {
    let (medium, unit, _target, nexus) = simple();
    let pattern: Vec<u8> = (0..512_u32).map(|at| at as u8).collect();
    run(&*nexus, &wide(0x93, 0, 0, 64), &pattern).good();
    assert!(medium.bytes()[..64 * 512] == pattern.repeat(64));
    // With NDOB, WRITE SAME has no Data-Out and fills the blocks with zeros.
    run(&*nexus, &wide(0x93, 0x01, 8, 8), &[]).good();
    assert!(medium.bytes()[8 * 512..16 * 512].iter().all(|&byte| byte == 0));
    // WRITE SAME with the UNMAP bit set deallocates the blocks.
    run(&*nexus, &wide(0x93, 0x08, 16, 8), &[0; 512]).good();
    let zeros = [0; 512];
    for (flags, blocks, data, expected) in [
        (0x10, 8, &zeros[..], INVALID_CDB),
        (0, 0, &zeros[..], INVALID_CDB),
        (0, BLOCKS as u32 + 1, &zeros[..], OUT_OF_RANGE),
        (0, 8, &zeros[..256], (5, 0x0E, 3)),
        (0, 8, &[0; 1024][..], (5, 0x0E, 3)),
    ] {
        let cdb = wide(0x93, flags, 0, blocks);
        assert_eq!(run(&*nexus, &cdb, data).sense(), expected);
    }
    unmap(&*nexus, &unmap_list(&[(24, 8), (40, 1), (BLOCKS, 0)])).good();
    assert!(medium.bytes()[24 * 512..32 * 512].iter().all(|&byte| byte == 0));
    assert!(medium.bytes()[40 * 512..41 * 512].iter().all(|&byte| byte == 0));
    let before = medium.bytes();
    assert_eq!(unmap(&*nexus, &unmap_list(&[(0, 8), (BLOCKS, 1)])).sense(), OUT_OF_RANGE);
    assert_eq!(unmap(&*nexus, &unmap_list(&[(0, 8), (1, u32::MAX)])).sense(), OUT_OF_RANGE);
    assert_eq!(unmap(&*nexus, &unmap_list(&[(0, 1); 257])).sense(), INVALID_PARAMETER);
    assert_eq!(unmap(&*nexus, &[0; 4]).sense(), LIST_LENGTH);
    assert!(medium.bytes() == before);
    unmap(&*nexus, &[]).good();
    let counters = unit.counters();
    assert_eq!((counters.unmapped_bytes, counters.zeroed_bytes), (17 * 512, 72 * 512));

    // GET LBA STATUS reports holes.
    let status = run(&*nexus, &wide(0x9E, 0x12, 18, 24 + 16), &[]).good();
    let run_at = |at: usize| {
        let field: [u8; 16] = status[8 + 16 * at..24 + 16 * at].try_into().unwrap();
        (
            u64::from_be_bytes(field[..8].try_into().unwrap()),
            u32::from_be_bytes(field[8..12].try_into().unwrap()),
            field[12],
        )
    };
    assert_eq!(status.len(), 40);
    assert_eq!((run_at(0), run_at(1)), ((18, 14, 1), (32, 32, 0)));
    let beyond = wide(0x9E, 0x12, BLOCKS, 64);
    assert_eq!(run(&*nexus, &beyond, &[]).sense(), OUT_OF_RANGE);
}

#[test]
fn inquiry_and_vpd_pages() {
    let (_medium, _unit, target, nexus) = simple();
    let part = |code: u8| run(&*nexus, &[0x12, 1, code, 4, 0, 0], &[]).good();
    let standard = run(&*nexus, &[0x12, 0, 0, 1, 0, 0], &[]).good();
    assert_eq!((standard.len(), standard[4]), (96, 91));
    assert_eq!(&standard[8..36], b"WEIR    VOLUME          0.1 ");
    assert_eq!(run(&*nexus, &[0x12, 0, 0, 0, 5, 0], &[]).good(), standard[..5]);
    let listed = part(0);
    assert!(listed[4..].is_sorted() && listed[3] as usize == listed.len() - 4);
    for &code in &listed[4..] {
        let part = part(code);
        assert_eq!(part[1], code);
        assert_eq!(usize::from(u16::from_be_bytes([part[2], part[3]])), part.len() - 4);
    }
    assert_eq!(part(0x80)[4..], *b"serial-1");
    let names = part(0x83);
    assert!(names.windows(16).any(|part| part == crate::common::identity(1).naa));
    let port = b"iqn.2026-01.example:target,t,0x0001\0";
    assert!(names.windows(port.len()).any(|part| part == port));
    let mut at = 4;
    while at < names.len() {
        at += 4 + usize::from(names[at + 3]);
    }
    assert_eq!(at, names.len());
    let limits = part(0xB0);
    assert_eq!((limits.len(), limits[5]), (64, 255));
    // UNMAP frees whole records, so both granularities of the Block Limits page are the record
    // size.
    assert_eq!((&limits[6..8], &limits[28..32]), (&[0, 32][..], &[0, 0, 0, 32][..]));
    let refused =
        [&[0x12, 1, 0xC0, 0, 255, 0], &[0x12, 0, 0x80, 0, 255, 0], &[0x12, 2, 0, 0, 255, 0]];
    for cdb in refused {
        assert_eq!(run(&*nexus, cdb, &[]).sense(), INVALID_CDB);
    }
    // Send INQUIRY to a logical unit that does not exist.
    let absent = run_on(&*nexus, Lun::new(9), &[0x12, 0, 0, 0, 96, 0], &[]).good();
    assert_eq!(absent[0], 0x7F);
    assert_eq!(&absent[8..36], b"WEIR                        ", "no zeros in its text");
    assert_eq!(run_on(&*nexus, Lun::new(9), &[0; 6], &[]).sense(), (5, 0x25, 0));
    let sense = run_on(&*nexus, Lun([0xC1, 1, 0, 0, 0, 0, 0, 0]), &[3, 0, 0, 0, 18, 0], &[]);
    assert_eq!(sense.good()[12], 0x25);
    let _ = target;
}

#[test]
fn read_capacity_reports_size_and_block_length() {
    for (block, exponent) in [(512_u32, 3), (4096, 0)] {
        let medium = Arc::new(MemoryMedium::new(SIZE));
        let unit = unit_of(&medium, 1, block);
        let target = target();
        assert!(target.add_lun(0, Arc::clone(&unit)));
        let nexus = ready(&target, 1);
        let short = run(&*nexus, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]).good();
        let last = (SIZE / u64::from(block) - 1) as u32;
        assert_eq!(short, [last.to_be_bytes(), block.to_be_bytes()].concat());
        let long = run(&*nexus, &wide(0x9E, 0x10, 0, 32), &[]).good();
        assert_eq!((long.len(), long[13], long[14]), (32, exponent, 0xC0));
        medium.grow(2 * SIZE);
        unit.resized();
        assert_eq!(run(&*nexus, &[0; 6], &[]).sense(), (6, 0x2A, 9));
        run(&*nexus, &[0; 6], &[]).good();
        let long = run(&*nexus, &wide(0x9E, 0x10, 0, 8), &[]).good();
        assert_eq!(long, (2 * SIZE / u64::from(block) - 1).to_be_bytes());
    }
}

#[test]
fn mode_pages_are_reported_and_changed() {
    let (_medium, _unit, target, nexus) = simple();
    let other = ready(&target, 2);
    let all = run(&*nexus, &[0x1A, 0, 0x3F, 0, 255, 0], &[]).good();
    assert_eq!((usize::from(all[0]), all[2], all[3]), (all.len() - 1, 0x10, 8));
    assert_eq!(all[4..12], [0, 0, 0x40, 0, 0, 0, 2, 0]);
    let long = run(&*nexus, &[0x5A, 0x10, 0x3F, 0xFF, 0, 0, 0, 0, 255, 0], &[]).good();
    assert_eq!((long[4], long[7], long.len()), (1, 16, all.len() + 12));
    assert_eq!(run(&*nexus, &[0x1A, 0, 0xFF, 0, 255, 0], &[]).sense(), (5, 0x39, 0));
    assert_eq!(run(&*nexus, &[0x1A, 0, 0x05, 0, 255, 0], &[]).sense(), INVALID_CDB);
    // Test software write protect and descriptor format sense data, both in the control mode page.
    let control = run(&*nexus, &[0x1A, 8, 0x0A, 0, 255, 0], &[]).good();
    let changeable = run(&*nexus, &[0x1A, 8, 0x4A, 0, 255, 0], &[]).good();
    assert_eq!(changeable[4..], [0x0A, 0x0A, 4, 0, 8, 0x40, 0, 0, 0, 0, 0, 0]);
    let mut list = control.clone();
    list[..4].fill(0);
    list[6] |= 4;
    list[8] |= 8;
    let select = |list: &[u8]| run(&*nexus, &[0x15, 0x10, 0, 0, list.len() as u8, 0], list);
    select(&list).good();
    assert_eq!(run(&*other, &[0; 6], &[]).sense(), (6, 0x2A, 1));
    let refused = run(&*other, &wide(0x8A, 0, 0, 1), &[1; 512]);
    assert_eq!(refused.sense(), (7, 0x27, 2));
    assert_eq!(refused.completion.sense.unwrap().to_bytes()[0], 0x72);
    assert_eq!(run(&*other, &[0x1A, 8, 0x0A, 0, 255, 0], &[]).good()[8], 8);
    // Three separate MODE SELECT commands fail: one changes a bit that is not changeable, one has a
    // wrong page length, one has a truncated parameter list.
    let mut wrong = list.clone();
    wrong[7] ^= 1;
    assert_eq!(select(&wrong).sense(), INVALID_PARAMETER);
    wrong = list.clone();
    wrong[5] = 9;
    assert_eq!(select(&wrong).sense(), INVALID_PARAMETER);
    assert_eq!(select(&list[..10]).sense(), LIST_LENGTH);
    assert_eq!(run(&*nexus, &[0x15, 0, 0, 0, 16, 0], &list).sense(), INVALID_CDB);
    // A logical unit reset restores the saved mode parameters.
    assert_eq!(nexus.manage(Lun::new(0), Management::LunReset), TaskManagementResponse::Complete);
    for nexus in [&nexus, &other] {
        assert_eq!(run(&**nexus, &[0; 6], &[]).sense(), (6, 0x29, 3));
    }
    assert_eq!(run(&*nexus, &[0x1A, 8, 0x0A, 0, 255, 0], &[]).good(), control);
}

#[test]
fn mapping_changes_raise_luns_changed() {
    let (medium, unit, target, nexus) = simple();
    let luns = |select: u8| {
        let bytes = run(&*nexus, &[0xA0, 0, select, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[]).good();
        assert_eq!(bytes[3] as usize, bytes.len() - 8);
        bytes[8..].chunks(8).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    assert_eq!((luns(0), luns(1).len()), (vec![vec![0; 8]], 0));
    assert!(target.add_lun(300, unit_of(&medium, 2, 512)));
    assert!(!target.add_lun(300, unit_of(&medium, 3, 512)));
    assert!(!target.add_lun(20000, unit_of(&medium, 3, 512)));
    assert_eq!(run(&*nexus, &[0; 6], &[]).sense(), (6, 0x3F, 0x0E));
    run(&*nexus, &[0; 6], &[]).good();
    assert_eq!(run_on(&*nexus, Lun::new(300), &[0; 6], &[]).sense(), (6, 0x29, 0));
    assert!(Arc::ptr_eq(&target.remove_lun(0).unwrap(), &unit));
    assert_eq!(run(&*nexus, &[0; 6], &[]).sense(), (5, 0x25, 0));
    // Announce LUN 0 without adding it. Regression: after a restart of the server, a kernel sent a
    // write before the pool was imported, and the target did not answer NOT READY.
    target.await_lun(0);
    assert_eq!(run(&*nexus, &[0; 6], &[]).sense(), (2, 4, 1));
    target.remove_lun(0);
    assert_eq!(run(&*nexus, &[0; 6], &[]).sense(), (5, 0x25, 0));
    // REPORT LUNS clears the unit attention.
    assert_eq!(luns(2), [[0x41, 0x2C, 0, 0, 0, 0, 0, 0]]);
    run_on(&*nexus, Lun::new(300), &[0; 6], &[]).good();
    assert_eq!(nexus.manage(Lun::new(0), Management::LunReset), TaskManagementResponse::NoLun);
}

// Regression: the target sets LUICLR, which promises that one report of changed LUNs clears the
// condition for all units. Yet after the report by one unit, every other unit reported the same
// change.
#[test]
fn one_unit_reports_luns_changed_for_the_whole_nexus() {
    let (medium, _unit, target, nexus) = simple();
    assert!(target.add_lun(1, unit_of(&medium, 2, 512)));
    let nexus_2 = ready(&target, 2);
    for number in [0, 1] {
        run_on(&*nexus, Lun::new(number), &[0; 6], &[]);
    }
    run(&*nexus, &[0; 6], &[]);
    let ready_on = |nexus: &dyn Nexus, number| run_on(nexus, Lun::new(number), &[0; 6], &[]);
    let sense = [3, 0, 0, 0, 252, 0];
    // Any command reports a change of the LUNs.
    assert!(target.add_lun(2, unit_of(&medium, 3, 512)));
    assert_eq!(ready_on(&*nexus, 1).sense(), (6, 0x3F, 0x0E));
    ready_on(&*nexus, 0).good();
    ready_on(&*nexus, 1).good();
    // REQUEST SENSE reports a change of the LUNs.
    target.remove_lun(2);
    let told = run_on(&*nexus, Lun::new(1), &sense, &[]).good();
    assert_eq!((told[2], told[12], told[13]), (6, 0x3F, 0x0E));
    ready_on(&*nexus, 0).good();
    // The condition of the other nexus is still pending, and reports two changes as one.
    assert_eq!(ready_on(&*nexus_2, 0).sense(), (6, 0x3F, 0x0E));
    ready_on(&*nexus_2, 1).good();
    // A read of blocks in memory also reports a change of the LUNs.
    target.add_lun(2, unit_of(&medium, 3, 512));
    let cdb = wide(0x88, 0, 0, 8);
    let read = Command { lun: Lun::new(0), cdb: &cdb, data_out: &[], attribute: Attribute::Simple };
    assert_eq!(nexus.try_share(&read, 4096, &mut Vec::new()), None);
    assert_eq!(ready_on(&*nexus, 0).sense(), (6, 0x3F, 0x0E));
    // The new unit reports POWER ON. Another unit has already reported the change of the LUNs.
    assert_eq!(ready_on(&*nexus, 2).sense(), (6, 0x29, 0));
    ready_on(&*nexus, 2).good();
}

#[test]
fn inquiry_and_report_luns_leave_unit_attentions_pending() {
    let (_medium, _unit, target, _nexus) = simple();
    let nexus = target.nexus(crate::common::initiator(5), 2);
    run(&nexus, &[0x12, 0, 0, 0, 96, 0], &[]).good();
    run(&nexus, &[0xA0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[]).good();
    let sense = run(&nexus, &[3, 0, 0, 0, 252, 0], &[]).good();
    assert_eq!((sense[2], sense[12]), (6, 0x29));
    assert_eq!(run(&nexus, &[3, 1, 0, 0, 252, 0], &[]).good()[..3], [0x72, 0, 0]);
    run(&nexus, &[0; 6], &[]).good();
}

#[test]
fn every_reported_operation_code_runs() {
    let (_medium, _unit, _target, nexus) = simple();
    let report = |options: u8, code: u8, action: u8| {
        run(&*nexus, &[0xA3, 0x0C, options, code, 0, action, 0, 0, 255, 255, 0, 0], &[])
    };
    let all = report(0, 0, 0).good();
    let timed = report(0x80, 0, 0).good();
    assert_eq!((all.len() - 4) / 8, (timed.len() - 4) / 20);
    for entry in all[4..].chunks(8) {
        let (code, action, has_action) = (entry[0], entry[3], entry[5] & 1 != 0);
        let (right, wrong) = if has_action { (2, 1) } else { (1, 2) };
        assert_eq!(report(wrong, code, action).sense(), INVALID_CDB);
        for option in [right, 3] {
            let one = report(option, code, action).good();
            assert_eq!((one[1], one[4], one.len()), (3, code, 4 + usize::from(entry[7])));
            assert_eq!(report(option | 0x80, code, action).good().len(), one.len() + 12);
        }
        let cdb = [code, action, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let answer = run(&*nexus, &cdb, &[]);
        if let Some(sense) = &answer.completion.sense {
            assert_ne!((sense.asc, sense.ascq), (0x20, 0), "{code:x}");
        }
        run(&*nexus, &[0x17, 0, 0, 0, 0, 0], &[]).good();
    }
    assert_eq!(report(1, 0xFE, 0).good(), [0, 1, 0, 0]);
    assert_eq!(report(3, 0x5E, 30).good(), [0, 1, 0, 0]);
    assert_eq!(run(&*nexus, &[0xFE; 16], &[]).sense(), (5, 0x20, 0));
    let functions = run(&*nexus, &[0xA3, 0x0D, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0], &[]).good();
    assert_eq!(functions, [0xDA, 0, 0, 0]);
    for (format, header) in [(0x0A, 4), (0x2A, 8)] {
        let cdb = [0xA3, format, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0];
        let groups = run(&*nexus, &cdb, &[]).good();
        assert_eq!(groups[header..], [0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2]);
    }
    for part in [0, 0x0C, 0x2F] {
        let log = run(&*nexus, &[0x4D, 0, part | 0x40, 0, 0, 0, 0, 1, 0, 0], &[]).good();
        assert_eq!((log[0], usize::from(log[3])), (part, log.len() - 4));
    }
}

/// In this test, the units of the page are 1 MiB (SBC-3 6.4.4).
#[test]
fn provisioning_log_page_reports_used_and_available() {
    let (medium, _unit, _target, nexus) = simple();
    medium.room.store(7 << 20, Ordering::SeqCst);
    let log = || run(&*nexus, &[0x4D, 0, 0x4C, 0, 0, 0, 0, 1, 0, 0], &[]).good();
    let available = [0, 1, 3, 8, 0, 0, 0, 7, 2, 0, 0, 0];
    let used = |mebibytes: u8| [0, 2, 3, 8, 0, 0, 0, mebibytes, 1, 0, 0, 0];
    assert_eq!(log(), [&[0x0C, 0, 0, 24], &available[..], &used(0)].concat());
    run(&*nexus, &wide(0x8A, 0, 0, 2049), &vec![1; 2049 * 512]).good();
    assert_eq!(log(), [&[0x0C, 0, 0, 24], &available[..], &used(2)].concat());
    // The response starts with the requested parameter code, which is 2 here.
    let rest = run(&*nexus, &[0x4D, 0, 0x4C, 0, 0, 0, 2, 1, 0, 0], &[]).good();
    assert_eq!(rest, [&[0x0C, 0, 0, 12], &used(2)[..]].concat());
}

#[test]
fn soft_threshold_is_reported_once() {
    let medium = Arc::new(MemoryMedium::new(32 << 20));
    let options = weir_scsi::Options { soft_threshold_bytes: 1 << 30, ..Default::default() };
    let state = weir_scsi::reservation::ReservationState::default();
    let volume = Arc::<MemoryMedium>::clone(&medium);
    let unit = weir_scsi::Unit::new(volume, crate::common::identity(1), options, state, None);
    let target = target();
    assert!(target.add_lun(0, unit));
    let nexus = ready(&target, 1);
    let data = vec![1; 8 << 20];
    let write = || run(&*nexus, &wide(0x8A, 0, 0, 16384), &data).status();
    for _ in 0..4 {
        assert_eq!(write(), Status::Good);
    }
    medium.room.store(1 << 20, Ordering::SeqCst);
    assert_eq!((write(), write()), (Status::Good, Status::Good));
    assert_eq!(run(&*nexus, &[0; 6], &[]).sense(), (6, 0x38, 7));
    for _ in 0..4 {
        run(&*nexus, &wide(0x8A, 0, 0, 16384), &data).good();
    }
}
