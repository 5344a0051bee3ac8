//! Tests of the list of permanent errors alone, without a pool.

use weir_base::{DatasetId, ObjectId, Txg};

use super::*;

const VOLUME: DatasetId = DatasetId(1);

fn range(first: u64, end: u64, born: u64, until: u64) -> DamagedRange {
    let (born, until) = (Txg(born), if until == 0 { DamagedRange::HEAD } else { Txg(until) });
    let (volume, object, count) = (VOLUME, ObjectId::VOLUME, end - first);
    DamagedRange { volume, object, first, count, born, until, found_unix_ms: 1 }
}

fn list(ranges: &[DamagedRange]) -> Inner {
    let mut inner = Inner::default();
    ranges.iter().for_each(|range| inner.insert(*range));
    inner
}

#[test]
fn neighbours_of_the_same_versions_are_one_range() {
    let inner = list(&[range(8, 16, 5, 0), range(0, 8, 5, 0), range(16, 24, 6, 0)]);
    assert_eq!(inner.list.ranges, [range(0, 16, 5, 0), range(16, 24, 6, 0)]);
}

#[test]
fn ranges_of_different_objects_are_never_joined() {
    let of = |object: u64, range: DamagedRange| {
        let object = ObjectId(object);
        DamagedRange { object, ..range }
    };
    let ranges = [of(0, range(0, 4, 5, 0)), of(1, range(4, 8, 5, 0)), of(2, range(2, 6, 6, 0))];
    let mut inner = list(&ranges);
    assert_eq!(inner.list.ranges, ranges);
    inner.cut(&(0..8), |range| range.object == ObjectId(1), |_| None);
    assert_eq!(inner.list.ranges, [ranges[0], ranges[2]]);
}

#[test]
fn adding_a_known_range_changes_nothing() {
    let mut inner = list(&[range(0, 16, 5, 0), range(20, 24, 5, 9)]);
    let before = inner.changes;
    for known in [range(3, 4, 7, 0), range(0, 16, 5, 0), range(20, 21, 6, 8)] {
        inner.insert(known);
    }
    assert_eq!(inner.changes, before);
}

#[test]
fn versions_of_one_record_are_joined_and_others_stay_apart() {
    let inner = list(&[range(0, 8, 5, 9), range(4, 12, 7, 0)]);
    assert_eq!(inner.list.ranges, [range(0, 4, 5, 9), range(4, 8, 5, 0), range(8, 12, 7, 0)]);
    // The record was overwritten between the two txgs: the ranges name two blocks, and each block
    // may be damaged.
    let inner = list(&[range(0, 8, 5, 9), range(0, 8, 10, 0)]);
    assert_eq!(inner.list.ranges.len(), 2);
}

#[test]
fn overwritten_records_stay_damaged_in_snapshots_alone() {
    let mut inner = list(&[range(0, 16, 5, 0), range(20, 24, 9, 0)]);
    let of = |range: &DamagedRange| range.until == DamagedRange::HEAD;
    let newest = Txg(7);
    inner.cut(&(4..22), of, |range| {
        (newest >= range.born).then_some(DamagedRange { until: newest, ..*range })
    });
    assert_eq!(inner.list.ranges, [range(0, 4, 5, 0), range(4, 16, 5, 7), range(22, 24, 9, 0)]);
}

#[test]
fn full_list_counts_further_damage() {
    let mut inner = Inner::default();
    for n in 0..DAMAGED_RANGES_MAX as u64 + 10 {
        inner.insert(range(n * 2, n * 2 + 1, 5, 0));
    }
    assert_eq!((inner.list.ranges.len(), inner.list.more), (DAMAGED_RANGES_MAX, 1));
    // A range between two entries merges with both of them, so it fits even into a full list.
    inner.insert(range(1, 2, 5, 0));
    assert_eq!((inner.list.ranges.len(), inner.list.more), (DAMAGED_RANGES_MAX - 1, 1));
}
