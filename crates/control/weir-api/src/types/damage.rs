//! Permanent errors: data of a pool without an intact copy on any disk.
//!
//! If another disk has an intact copy, a bad copy only appears in the error counts of its disk.
//!
//! Invariant: a response has the current names of objects; the pool's list has only their numbers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All known data of a pool without an intact copy. The list persists across restarts. The pool
/// removes an entry when its data is overwritten, freed, or read successfully by a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Damage {
    /// Ranges of volumes and snapshots, by name and offset.
    pub ranges: Vec<DamagedRange>,
    /// Total bytes of all ranges.
    pub bytes: u64,
    /// Number of volumes with damage, in the volume or in its snapshots.
    pub volumes: u64,
    /// Damaged metadata of the pool.
    pub parts: Vec<DamagedPart>,
    /// Lower bound of the number of damaged ranges and parts that are not in these lists.
    pub more: u64,
}

impl Damage {
    /// True if the pool has no known permanent errors.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.parts.is_empty() && self.more == 0
    }
}

/// Unreadable part of a dataset with many objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DamagedObjects {
    /// Object with the unreadable records. Absent if the objects themselves are unreadable.
    pub object: Option<u64>,
    /// First record of the object, or first unreadable object.
    pub first: u64,
    /// Number of records or objects.
    pub count: u64,
}

impl DamagedObjects {
    fn end(&self) -> u64 {
        self.first.saturating_add(self.count)
    }

    fn describe(&self) -> String {
        let last = self.end().saturating_sub(1);
        match (self.object, self.count) {
            (Some(object), 1) => format!("object {object} record {}", self.first),
            (Some(object), _) => format!("object {object} records {}-{last}", self.first),
            (None, 1) => format!("object {}", self.first),
            (None, _) => format!("objects {}-{last}", self.first),
        }
    }
}

/// An unreadable range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DamagedRange {
    /// Full name of the volume.
    pub volume: String,
    /// Start of the range in the volume; 0 for a dataset with many objects.
    pub offset_bytes: u64,
    /// Length of the range; 0 for a dataset with many objects.
    pub len_bytes: u64,
    /// Unreadable part of a dataset with many objects; absent for a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<DamagedObjects>,
    /// True if the current volume contains this range; if not, only its snapshots do.
    pub in_volume: bool,
    /// Names, without the volume's name, of snapshots that contain this range, oldest first. If
    /// many do, only the first few are listed.
    pub snapshots: Vec<String>,
    /// Number of snapshots that contain this range.
    pub snapshot_count: u64,
    /// Time at which the damage was found.
    pub found_unix_ms: u64,
}

impl DamagedRange {
    /// Returns the full name of a dataset that contains the range: the volume, or one of its
    /// snapshots. For a dataset with many objects, also returns the object and its records.
    pub fn place(&self) -> String {
        let name = match (self.in_volume, self.snapshots.first()) {
            (false, Some(first)) => format!("{}@{first}", self.volume),
            _ => self.volume.clone(),
        };
        match &self.objects {
            None => name,
            Some(objects) => format!("{name} {}", objects.describe()),
        }
    }

    /// True if this range contains all of the range `other`.
    pub fn covers(&self, other: &Self) -> bool {
        let ((own, its), (own_end, its_end)) = ((self.start(), other.start()), self.ends(other));
        self.is_beside(other) && own <= its && its_end <= own_end
    }

    /// True if two ranges overlap.
    pub fn meets(&self, other: &Self) -> bool {
        let ((own, its), (own_end, its_end)) = ((self.start(), other.start()), self.ends(other));
        self.is_beside(other) && own < its_end && its < own_end
    }

    /// True if two ranges are in the same volume or object, so that their numbers are comparable.
    fn is_beside(&self, other: &Self) -> bool {
        let object = |range: &Self| range.objects.map(|objects| objects.object);
        self.volume == other.volume && object(self) == object(other)
    }

    fn start(&self) -> u64 {
        self.objects.map_or(self.offset_bytes, |objects| objects.first)
    }

    fn ends(&self, other: &Self) -> (u64, u64) {
        let end = |range: &Self| match &range.objects {
            None => range.offset_bytes.saturating_add(range.len_bytes),
            Some(objects) => objects.end(),
        };
        (end(self), end(other))
    }

    /// Describes the range in words, as a part of a sentence.
    pub fn describe(&self) -> String {
        let (len, at) = (self.len_bytes, self.offset_bytes);
        let what = match &self.objects {
            None => format!("{len} bytes at {at} of {}", self.place()),
            Some(_) => self.place(),
        };
        let (named, more) = self.shared_by();
        match (named, named.len() as u64 + more) {
            (_, 0) => what,
            ([one], 1) => format!("{what}, and of its snapshot {one}"),
            (_, count) => format!("{what}, and of {count} snapshots"),
        }
    }

    /// Returns the listed snapshots that also contain the range, except the object in
    /// [`Self::place`], and the number of such snapshots that are not listed.
    pub fn shared_by(&self) -> (&[String], u64) {
        let named = if self.in_volume {
            &self.snapshots[..]
        } else {
            self.snapshots.get(1..).unwrap_or(&[])
        };
        (named, self.snapshot_count.saturating_sub(self.snapshots.len() as u64))
    }
}

/// Unreadable metadata of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DamagedPart {
    /// Type of the metadata.
    pub part: String,
    /// Number of the dataset, segment or log batch.
    pub number: u64,
    /// Time at which the damage was found.
    pub found_unix_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_objects(object: Option<u64>, first: u64, count: u64) -> DamagedRange {
        DamagedRange {
            volume: "tank/fs".to_owned(),
            offset_bytes: 0,
            len_bytes: 0,
            objects: Some(DamagedObjects { object, first, count }),
            in_volume: true,
            snapshots: Vec::new(),
            snapshot_count: 0,
            found_unix_ms: 0,
        }
    }

    #[test]
    fn ranges_of_objects_are_described_and_compared_by_their_records() {
        let records = of_objects(Some(12), 3, 2);
        assert_eq!(records.place(), "tank/fs object 12 records 3-4");
        assert_eq!(of_objects(Some(12), 3, 1).describe(), "tank/fs object 12 record 3");
        assert_eq!(of_objects(None, 12, 4).place(), "tank/fs objects 12-15");
        let snapshot = DamagedRange {
            in_volume: false,
            snapshots: vec!["a".to_owned()],
            snapshot_count: 1,
            ..records.clone()
        };
        assert_eq!(snapshot.place(), "tank/fs@a object 12 records 3-4");
        assert!(records.covers(&of_objects(Some(12), 4, 1)));
        assert!(records.meets(&of_objects(Some(12), 4, 9)));
        assert!(!records.covers(&of_objects(Some(12), 4, 9)));
        for other in [of_objects(Some(13), 3, 2), of_objects(None, 3, 2)] {
            assert!(!records.meets(&other) && !records.covers(&other));
        }
    }
}
