//! Tests of EXTENDED COPY and RECEIVE COPY RESULTS.
//!
//! Tests of copies with ROD tokens are in tokens.rs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{
    Answer, MemoryMedium, SIZE, identity, ready, run, run_on, simple, target, unit_of,
};
use weir_scsi::{Directory, InitiatorPort, Lun, Nexus, Sense, Target, Unit};

const BLOCKS: u64 = SIZE / 512;

/// Returns the identification descriptor of the unit with this number.
fn unit_descriptor(number: u8, block: u32) -> Vec<u8> {
    let mut bytes = vec![0xE4, 0, 0, 0, 1, 3, 0, 16];
    bytes.extend(identity(number).naa);
    bytes.resize(28, 0);
    bytes.extend(block.to_be_bytes());
    bytes
}

/// Returns a segment descriptor that copies blocks to blocks. With `flags` 2, the count is in
/// destination blocks, otherwise in source blocks.
fn segment(ends: (u16, u16), flags: u8, blocks: u16, from: u64, to: u64) -> Vec<u8> {
    let mut bytes = vec![2, flags, 0, 24];
    bytes.extend(ends.0.to_be_bytes());
    bytes.extend(ends.1.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(blocks.to_be_bytes());
    bytes.extend(from.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    bytes
}

fn list(id: u8, usage: u8, units: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
    let (units, segments) = (units.concat(), segments.concat());
    let mut bytes = vec![id, usage << 3];
    bytes.extend((units.len() as u16).to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend((segments.len() as u32).to_be_bytes());
    bytes.extend([0; 4]);
    [bytes, units, segments].concat()
}

fn copy(nexus: &dyn Nexus, list: &[u8]) -> Answer {
    let mut cdb = vec![0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb.extend((list.len() as u32).to_be_bytes());
    cdb.extend([0, 0]);
    run(nexus, &cdb, list)
}

fn results(nexus: &dyn Nexus, action: u8, id: u8) -> Answer {
    run(nexus, &[0x84, action, id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], &[])
}

fn fill(nexus: &dyn Nexus) -> Vec<u8> {
    let data: Vec<u8> = (0..2 << 20).map(|at: u32| (at / 512 * 7 + at) as u8).collect();
    run(nexus, &crate::common::wide(0x8A, 0, 0, 4096), &data).good();
    data
}

#[test]
fn copy_writes_the_same_data_with_and_without_cloning() {
    for clones in [false, true] {
        let (medium, unit, _target, nexus) = simple();
        medium.clones.store(clones, Ordering::SeqCst);
        let data = fill(&*nexus);
        let to = BLOCKS - 3000;
        let request = list(1, 0, &[unit_descriptor(1, 512)], &[segment((0, 0), 0, 3000, 5, to)]);
        copy(&*nexus, &request).good();
        let expected = &data[5 * 512..3005 * 512];
        assert!(medium.bytes()[to as usize * 512..] == *expected);
        assert_eq!(unit.counters().cloned_bytes, 3000 * 512);
        let status = results(&*nexus, 0, 1).good();
        assert_eq!(status, [0, 0, 0, 8, 1, 0, 1, 1, 0, 0, 5, 0xDC]);
        assert_eq!(results(&*nexus, 4, 1).good(), [0; 4]);
        assert_eq!(results(&*nexus, 0, 2).sense(), (5, 0x24, 0));
    }
}

#[test]
fn source_and_destination_may_overlap() {
    for (from, to) in [(0, 700), (700, 0), (9, 9)] {
        let (medium, _unit, _target, nexus) = simple();
        medium.clones.store(true, Ordering::SeqCst);
        let mut expected = fill(&*nexus);
        expected.copy_within(from * 512..(from + 3000) * 512, to * 512);
        let segment = segment((0, 0), 0, 3000, from as u64, to as u64);
        copy(&*nexus, &list(1, 2, &[unit_descriptor(1, 512)], &[segment])).good();
        assert!(medium.bytes()[..expected.len()] == expected, "{from} to {to}");
    }
}

#[test]
fn merged_segments_copy_and_count_like_single_ones() {
    for clones in [false, true] {
        // Copies within one unit: the second segment reads data that the first segment wrote.
        let (medium, _unit, target, nexus) = simple();
        medium.clones.store(clones, Ordering::SeqCst);
        let mut expected = fill(&*nexus);
        expected.copy_within(..8 * 512, 8 * 512);
        expected.copy_within(8 * 512..16 * 512, 16 * 512);
        let chain = [segment((0, 0), 0, 8, 0, 8), segment((0, 0), 0, 8, 8, 16)];
        copy(&*nexus, &list(1, 0, &[unit_descriptor(1, 512)], &chain)).good();
        assert!(medium.bytes()[..expected.len()] == expected);
        // Copies between two units: three contiguous segments, a segment that is not contiguous
        // with them, and a segment that fails.
        let other = Arc::new(MemoryMedium::new(SIZE));
        other.clones.store(clones, Ordering::SeqCst);
        assert!(target.add_lun(1, unit_of(&other, 2, 512)));
        let nexus = ready(&target, 3);
        let units = [1, 2].map(|number| unit_descriptor(number, 512));
        let mut segments = vec![
            segment((0, 1), 0, 8, 0, 64),
            segment((0, 1), 0, 16, 8, 72),
            segment((0, 1), 0, 8, 24, 88),
            segment((0, 1), 0, 8, 0, 8),
        ];
        copy(&*nexus, &list(2, 0, &units, &segments)).good();
        assert!(other.bytes()[64 * 512..96 * 512] == expected[..32 * 512]);
        assert!(other.bytes()[8 * 512..16 * 512] == expected[..8 * 512]);
        assert_eq!(results(&*nexus, 0, 2).good()[4..12], [1, 0, 4, 1, 0, 0, 0, 20]);
        segments.insert(3, segment((0, 1), 0, 8, BLOCKS, 96));
        assert_eq!(copy(&*nexus, &list(3, 0, &units, &segments)).sense().0, 0xA);
        assert_eq!(results(&*nexus, 0, 3).good()[5..7], [0, 3]);
    }
}

// Regression: the sense data of a failed segment did not contain the segment number.
#[test]
fn sense_data_names_the_failed_segment_and_its_field() {
    let (_medium, _unit, target, nexus) = simple();
    let small = Arc::new(MemoryMedium::new(1 << 20));
    assert!(target.add_lun(1, unit_of(&small, 2, 512)));
    let units = [1, 2, 9].map(|number| unit_descriptor(number, 512));
    let good = |at: u64| segment((0, 0), 0, 8, at, 4096 + at);
    run(&*nexus, &[0; 6], &[]);
    // Bytes 8 to 11 of the sense data: COMMAND-SPECIFIC INFORMATION with the segment number. Bytes
    // 15 to 17: segment pointer with SD, and the offset of the field in the segment descriptor.
    let cases = [
        (segment((0, 1), 0, 8, 0, 2047), (0, 0), [0xA0, 0, 20]),
        (segment((1, 0), 0, 8, 2041, 0), (0, 0), [0xA0, 0, 12]),
        (segment((0, 0), 0, 8, u64::MAX, 0), (0, 0), [0xA0, 0, 12]),
        (segment((5, 0), 0, 8, 0, 0), (0x0D, 2), [0xA0, 0, 4]),
        (segment((0, 2), 0, 8, 0, 0), (0x0D, 2), [0xA0, 0, 6]),
    ];
    for (bad, (asc, ascq), pointer) in cases {
        let segments = [good(0), good(100), bad, good(200)];
        let answer = copy(&*nexus, &list(5, 0, &units, &segments));
        assert_eq!(answer.sense(), (0xA, asc, ascq));
        let sense = answer.completion.sense.expect("sense data");
        let bytes = sense.to_bytes();
        assert_eq!((&bytes[8..12], &bytes[15..]), (&[0, 0, 0, 2][..], &pointer[..]));
        assert_eq!(results(&*nexus, 4, 5).good()[60..], bytes);
        let descriptors = Sense { descriptor: true, ..sense }.to_bytes();
        let specific = [1, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
        assert_eq!(descriptors[8..20], specific);
        assert_eq!(descriptors[20..], [2, 6, 0, 0, pointer[0], pointer[1], pointer[2], 0]);
    }
    // The sense data of a segment that follows merged segments has the number of this segment.
    let segments =
        [segment((0, 1), 0, 8, 0, 0), segment((0, 1), 0, 8, 8, 8), segment((0, 1), 0, 8, 16, 9999)];
    let sense = copy(&*nexus, &list(6, 0, &units, &segments)).completion.sense;
    assert_eq!(sense.expect("sense data").to_bytes()[8..12], [0, 0, 0, 2]);
    // An error in the parameter list is an ILLEGAL REQUEST; its sense data has no segment number.
    let mut strange = good(0);
    strange[0] = 3;
    let sense = copy(&*nexus, &list(7, 0, &units, &[good(0), strange])).completion.sense;
    assert_eq!(sense.expect("sense data").to_bytes()[8..12], [0; 4]);
}

/// Directory with one logical unit, which only one initiator may use.
struct Other(Arc<Unit>, InitiatorPort);

impl Directory for Other {
    fn find(&self, initiator: &InitiatorPort, naa: [u8; 16]) -> Option<Arc<Unit>> {
        (self.0.naa() == naa && self.1 == *initiator).then(|| Arc::clone(&self.0))
    }
}

#[test]
fn copy_finds_units_of_this_and_other_targets() {
    let (_medium, unit, _target, nexus) = simple();
    let data = fill(&*nexus);
    let beside = Arc::new(MemoryMedium::new(SIZE));
    let elsewhere = Arc::new(MemoryMedium::new(SIZE));
    let directory = Arc::new(Other(unit_of(&elsewhere, 3, 512), crate::common::initiator(1)));
    let plain = target();
    let target = Target::new(plain.name(), plain.ports().to_vec(), Some(directory));
    assert!(target.add_lun(0, unit) && target.add_lun(1, unit_of(&beside, 2, 4096)));
    let nexus = ready(&target, 1);
    let units = [1, 2, 3].map(|number| unit_descriptor(number, 0));
    // The first count is in source blocks, the second in destination blocks.
    let segments =
        [segment((0, 1), 0, 16, 8, 1), segment((0, 1), 2, 2, 8, 7), segment((1, 2), 0, 1, 1, 0)];
    copy(&*nexus, &list(7, 0, &units, &segments)).good();
    let expected = &data[8 * 512..24 * 512];
    assert!(beside.bytes()[4096..3 * 4096] == *expected);
    assert!(beside.bytes()[7 * 4096..9 * 4096] == *expected);
    assert!(elsewhere.bytes()[..4096] == expected[..4096]);
    // Seven source blocks are not a whole number of destination blocks. Only the first initiator
    // can use the third unit.
    let odd = list(7, 0, &units, &[segment((0, 1), 0, 7, 0, 0)]);
    assert_eq!(copy(&*nexus, &odd).sense(), (0xA, 0x26, 0x0A));
    let other = ready(&target, 2);
    let hidden = list(7, 0, &units, &[segment((0, 2), 0, 1, 0, 0)]);
    assert_eq!(copy(&*other, &hidden).sense(), (0xA, 0x0D, 2));
    let failed = results(&*other, 4, 7).good();
    assert_eq!((failed[56], failed[60 + 2], failed[60 + 12]), (2, 0xA, 0x0D));
    assert_eq!(results(&*other, 4, 7).sense(), (5, 0x24, 0));
}

#[test]
fn copy_obeys_reservations_of_the_destination() {
    let (medium, _unit, target, nexus) = simple();
    let beside = Arc::new(MemoryMedium::new(SIZE));
    assert!(target.add_lun(1, unit_of(&beside, 2, 512)));
    run(&*nexus, &[0; 6], &[]);
    run_on(&*nexus, Lun::new(1), &[0; 6], &[]);
    let other = ready(&target, 2);
    run_on(&*other, Lun::new(1), &[0x16, 0, 0, 0, 0, 0], &[]).good();
    fill(&*nexus);
    let units = [unit_descriptor(1, 512), unit_descriptor(2, 512)];
    let request = list(1, 0, &units, &[segment((0, 1), 0, 8, 0, 0)]);
    assert_eq!(copy(&*nexus, &request).sense(), (0xA, 0x0D, 2));
    assert!(beside.bytes().iter().all(|&byte| byte == 0));
    run_on(&*other, Lun::new(1), &[0x17, 0, 0, 0, 0, 0], &[]).good();
    copy(&*nexus, &request).good();
    assert!(beside.bytes()[..4096] == medium.bytes()[..4096]);
}

#[test]
fn invalid_lists_copy_nothing() {
    let (medium, _unit, _target, nexus) = simple();
    fill(&*nexus);
    let before = medium.bytes();
    let unit = || vec![unit_descriptor(1, 512)];
    let good = || segment((0, 0), 0, 8, 0, 4096);
    let mut foreign = unit();
    foreign[0][0] = 0xE0;
    let mut strange = good();
    strange[0] = 3;
    let cases = [
        (list(1, 0, &foreign, &[good()]), (5, 0x26, 7)),
        (list(1, 0, &unit(), &[strange]), (5, 0x26, 9)),
        (list(1, 0, &vec![unit_descriptor(1, 512); 9], &[good()]), (5, 0x26, 6)),
        (list(1, 0, &unit(), &vec![good(); 33]), (5, 0x26, 8)),
        (list(1, 0, &unit(), &vec![good(); 150]), (5, 0x1A, 0)),
        (list(1, 0, &unit(), &[segment((0, 1), 0, 8, 0, 4096)]), (0xA, 0x0D, 2)),
        (list(1, 0, &unit(), &[segment((0, 0), 0, 8, 0, BLOCKS - 1)]), (0xA, 0, 0)),
        (list(1, 0, &unit(), &[segment((0, 0), 0, 8, u64::MAX, 0)]), (0xA, 0, 0)),
        (list(1, 1, &unit(), &[good()]), (5, 0x26, 0)),
        (list(1, 3, &unit(), &[good()]), (5, 0x26, 0)),
        (list(1, 0, &[unit_descriptor(9, 512)], &[good()]), (0xA, 0x0D, 2)),
        (list(1, 0, &[unit_descriptor(1, 4096)], &[good()]), (0xA, 0x0D, 3)),
    ];
    for (list, expected) in cases {
        assert_eq!(copy(&*nexus, &list).sense(), expected);
    }
    let whole = list(1, 0, &unit(), &[good()]);
    for len in [1, 15, 16 + 31, whole.len() - 1] {
        assert_eq!(copy(&*nexus, &whole[..len]).sense(), (5, 0x1A, 0), "{len}");
    }
    assert!(medium.bytes() == before);
    copy(&*nexus, &[]).good();
    let limits = results(&*nexus, 3, 0).good();
    assert_eq!(usize::from(limits[3]), limits.len() - 4);
    assert_eq!(limits[43..], [3, 0x02, 0x0A, 0xE4]);
}
