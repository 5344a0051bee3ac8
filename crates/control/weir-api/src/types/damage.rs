//! What of a pool has no good copy on any disk.
//!
//! Not here: copies that are bad where another is good (error counts of disks).
//!
//! Invariant: names are those of the moment of the answer; the list itself knows numbers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Everything that a pool has no good copy of. It is kept over restarts. An entry goes when its
/// data is overwritten or freed, or when a scrub reads it from disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Damage {
    /// Ranges of volumes and snapshots, by name and place.
    pub ranges: Vec<DamagedRange>,
    /// Bytes of all ranges.
    pub bytes: u64,
    /// Volumes that have any, themselves or by their snapshots.
    pub volumes: u64,
    /// Parts of the pool's own structures.
    pub parts: Vec<DamagedPart>,
    /// Damage that was found and has no room on the list, at least so much.
    pub more: u64,
}

impl Damage {
    /// Whether everything has a good copy, as far as that is known.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.parts.is_empty() && self.more == 0
    }
}

/// A range that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DamagedRange {
    /// Full name of the volume.
    pub volume: String,
    /// Start of the range.
    pub offset_bytes: u64,
    /// Length of the range.
    pub len_bytes: u64,
    /// Whether the volume as it is has this range; if not, its snapshots alone.
    pub in_volume: bool,
    /// Snapshots of the volume that have this range, without the volume's name, oldest first; of
    /// many the first few.
    pub snapshots: Vec<String>,
    /// How many snapshots have it.
    pub snapshot_count: u64,
    /// When it was found.
    pub found_unix_ms: u64,
}

impl DamagedRange {
    /// Where it is, as it is read: the volume, or one of its snapshots.
    pub fn place(&self) -> String {
        match (self.in_volume, self.snapshots.first()) {
            (false, Some(first)) => format!("{}@{first}", self.volume),
            _ => self.volume.clone(),
        }
    }

    /// Whether another range is a part of this one.
    pub fn covers(&self, other: &Self) -> bool {
        self.volume == other.volume
            && self.offset_bytes <= other.offset_bytes
            && other.end() <= self.end()
    }

    /// Whether two ranges have anything in common.
    pub fn meets(&self, other: &Self) -> bool {
        self.volume == other.volume
            && self.offset_bytes < other.end()
            && other.offset_bytes < self.end()
    }

    fn end(&self) -> u64 {
        self.offset_bytes.saturating_add(self.len_bytes)
    }

    /// The range in one sentence's part.
    pub fn describe(&self) -> String {
        let (len, at) = (self.len_bytes, self.offset_bytes);
        let what = format!("{len} bytes at {at} of {}", self.place());
        let (named, more) = self.shared_by();
        match (named, named.len() as u64 + more) {
            (_, 0) => what,
            ([one], 1) => format!("{what}, and of its snapshot {one}"),
            (_, count) => format!("{what}, and of {count} snapshots"),
        }
    }

    /// Snapshots that share it beside [`Self::place`], those named and those that are not.
    pub fn shared_by(&self) -> (&[String], u64) {
        let named = if self.in_volume {
            &self.snapshots[..]
        } else {
            self.snapshots.get(1..).unwrap_or(&[])
        };
        (named, self.snapshot_count.saturating_sub(self.snapshots.len() as u64))
    }
}

/// A part of the pool's own structures that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DamagedPart {
    /// Which structure.
    pub part: String,
    /// Number of the dataset, segment or log batch.
    pub number: u64,
    /// When it was found.
    pub found_unix_ms: u64,
}
