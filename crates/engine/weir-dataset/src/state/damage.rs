//! Tree versions and record ranges for damage lookups.
//!
//! `damage::find` searches for damage.
//!
//! Invariant: adjacent changes form one range.

use std::ops::Range;

use weir_base::ObjectId;
use weir_format::{DamagedRange, DatasetKind, DatasetRecord};
use weir_pool::{Change, TreeOf};

/// Tree version of a volume or snapshot.
pub(crate) fn tree_of(record: &DatasetRecord) -> TreeOf {
    let (volume, version) = match &record.kind {
        DatasetKind::Snapshot(moment) => (moment.of, moment.txg),
        _ => (record.id, DamagedRange::HEAD),
    };
    TreeOf { volume, object: ObjectId::VOLUME, version }
}

/// Ranges of the changed records; adjacent ranges are merged.
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
