//! Describes the list of permanent errors for users, with the present names of datasets.
//!
//! `find` maintains the list.
//!
//! Invariant: a description names only damage that a head or an existing snapshot contains.

use weir_base::limits::DAMAGED_SNAPSHOTS_NAMED_MAX;
use weir_base::{ObjectId, Txg};
use weir_format::{DamagedPart, DamagedRange, OBJECT_SLOTS_PER_BLOCK};
use weir_pool::DamageList;

use crate::state::engine::Engine;
use crate::state::volume::State;

/// Part of a dataset that is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DamagedWhere {
    /// Bytes of a volume: `offset_bytes` and `len_bytes` of [`DamagedData`] give the range.
    Bytes,
    /// Slots of these objects in a dataset with many objects: the objects cannot be opened.
    Slots {
        /// The first object.
        first: u64,
        /// Number of objects.
        count: u64,
    },
    /// Records of an object of a dataset with many objects.
    Records {
        /// Number of the object.
        object: u64,
        /// The first record.
        first: u64,
        /// Number of records.
        count: u64,
    },
}

/// Damaged records of a dataset or of its snapshots, described for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedData {
    /// Name of the dataset inside the pool.
    pub volume: String,
    /// Damaged part of the dataset.
    pub part: DamagedWhere,
    /// Offset of the damaged range; 0 for a dataset with many objects.
    pub offset_bytes: u64,
    /// Length of the damaged range; 0 for a dataset with many objects.
    pub len_bytes: u64,
    /// True if the head references the damaged blocks. False if only snapshots reference them.
    pub in_volume: bool,
    /// Names of the snapshots that reference damaged blocks of the range, oldest first; at most
    /// `DAMAGED_SNAPSHOTS_NAMED_MAX`.
    pub snapshots: Vec<String>,
    /// Number of snapshots that reference damaged blocks of the range.
    pub snapshot_count: usize,
    /// Time of discovery, ms since 1970.
    pub found_unix_ms: u64,
}

/// All damage of a pool: data and metadata without a good copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolDamage {
    /// Damaged data of datasets, ordered by name, part and offset.
    pub data: Vec<DamagedData>,
    /// Damaged parts of the pool's metadata.
    pub parts: Vec<DamagedPart>,
    /// Lower bound of the number of damaged items that did not fit into the list.
    pub more: u64,
}

impl Engine {
    /// Returns all damage of the pool, with the present names of datasets.
    pub fn damage(&self) -> PoolDamage {
        if !self.pool().has_damage() {
            return PoolDamage::default();
        }
        let DamageList { ranges, parts, more } = self.pool().damage();
        let mut data: Vec<DamagedData> = Vec::new();
        for volume in self.volumes() {
            let state = volume.state.lock();
            let of_volume = ranges.iter().filter(|range| range.volume == volume.id);
            data.extend(of_volume.filter_map(|range| named(&state, range)));
        }
        let key = |data: &DamagedData| (data.volume.clone(), data.part, data.offset_bytes);
        data.sort_by_cached_key(key);
        data.dedup_by(|next, before| {
            let what = |data: &DamagedData| {
                (data.volume.clone(), data.in_volume, data.snapshot_count, data.snapshots.clone())
            };
            let joins = joined(before, next).filter(|_| what(before) == what(next));
            if let Some((part, len_bytes)) = joins {
                (before.part, before.len_bytes) = (part, len_bytes);
                before.found_unix_ms = before.found_unix_ms.min(next.found_unix_ms);
            }
            joins.is_some()
        });
        PoolDamage { data, parts, more }
    }
}

/// Describes a range for users. `None` if neither the head nor an existing snapshot contains it.
fn named(state: &State, range: &DamagedRange) -> Option<DamagedData> {
    let holds = |txg: Txg| range.born <= txg && txg <= range.until;
    let snapshots = || {
        let active = state.snapshots.iter().filter(|snapshot| snapshot.is_active());
        active.filter(|snapshot| holds(snapshot.moment().txg))
    };
    let in_volume = range.until == DamagedRange::HEAD;
    let now = in_volume.then_some(state.record.size_bytes);
    let size_bytes = snapshots().map(|s| s.record.size_bytes).chain(now).max()?;
    let part = part_of(state, range);
    let (offset_bytes, len_bytes) = match part {
        DamagedWhere::Bytes => {
            let record = state.record.record_size.bytes() as u64;
            let offset = range.first.saturating_mul(record);
            (offset, range.end().saturating_mul(record).min(size_bytes).saturating_sub(offset))
        }
        DamagedWhere::Slots { .. } | DamagedWhere::Records { .. } => (0, 0),
    };
    let names = snapshots().map(|snapshot| snapshot.record.name.clone());
    (len_bytes > 0 || part != DamagedWhere::Bytes).then(|| DamagedData {
        volume: state.record.name.clone(),
        part,
        offset_bytes,
        len_bytes,
        in_volume,
        snapshots: names.take(DAMAGED_SNAPSHOTS_NAMED_MAX).collect(),
        snapshot_count: snapshots().count(),
        found_unix_ms: range.found_unix_ms,
    })
}

/// The part of the dataset that a range covers.
fn part_of(state: &State, range: &DamagedRange) -> DamagedWhere {
    let DamagedRange { object, first, count, .. } = *range;
    if object != ObjectId::TABLE {
        return DamagedWhere::Records { object: object.0, first, count };
    }
    if state.record.objects.is_none() {
        return DamagedWhere::Bytes;
    }
    // Slot 0 is unused.
    let slots = OBJECT_SLOTS_PER_BLOCK as u64;
    let (first, end) = ((first * slots).max(1), (first + count) * slots);
    DamagedWhere::Slots { first, count: end - first }
}

/// Joins two ranges of one dataset if `next` begins where `before` ends: returns the part of both
/// and their length in bytes.
fn joined(before: &DamagedData, next: &DamagedData) -> Option<(DamagedWhere, u64)> {
    use DamagedWhere::{Bytes, Records, Slots};
    let end = before.offset_bytes + before.len_bytes;
    match (before.part, next.part) {
        (Bytes, Bytes) if end == next.offset_bytes => {
            Some((Bytes, before.len_bytes + next.len_bytes))
        }
        (Slots { first, count }, Slots { first: start, count: more }) if first + count == start => {
            Some((Slots { first, count: count + more }, 0))
        }
        (
            Records { object, first, count },
            Records { object: other, first: start, count: more },
        ) if object == other && first + count == start => {
            Some((Records { object, first, count: count + more }, 0))
        }
        _ => None,
    }
}
