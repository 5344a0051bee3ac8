//! Versions and ranges of records by which damage is looked up.
//!
//! Not here: the search for damage (`damage::find`).
//!
//! Invariant: neighbouring changes are one range.

use std::ops::Range;

use weir_format::{DamagedRange, DatasetKind, DatasetRecord};
use weir_pool::{Change, TreeOf};

/// The version that a volume or snapshot shows.
pub(crate) fn tree_of(record: &DatasetRecord) -> TreeOf {
    let (volume, version) = match &record.kind {
        DatasetKind::Snapshot(moment) => (moment.of, moment.txg),
        _ => (record.id, DamagedRange::NOW),
    };
    TreeOf { volume, version }
}

/// The ranges of changed records; neighbours are one range.
pub(crate) fn changed_records(changes: &[Change]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for change in changes {
        let end = change.start + change.count;
        match ranges.last_mut() {
            Some(last) if last.end >= change.start => last.end = last.end.max(end),
            _ => ranges.push(change.start..end),
        }
    }
    ranges
}
