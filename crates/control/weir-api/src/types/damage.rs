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

/// An unreadable range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DamagedRange {
    /// Full name of the volume.
    pub volume: String,
    /// Start of the range in the volume.
    pub offset_bytes: u64,
    /// Length of the range.
    pub len_bytes: u64,
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
    /// Returns the full name of an object that contains the range: the volume, or one of its
    /// snapshots.
    pub fn place(&self) -> String {
        match (self.in_volume, self.snapshots.first()) {
            (false, Some(first)) => format!("{}@{first}", self.volume),
            _ => self.volume.clone(),
        }
    }

    /// True if this range contains all bytes of the range `other`.
    pub fn covers(&self, other: &Self) -> bool {
        self.volume == other.volume
            && self.offset_bytes <= other.offset_bytes
            && other.end() <= self.end()
    }

    /// True if two ranges overlap.
    pub fn meets(&self, other: &Self) -> bool {
        self.volume == other.volume
            && self.offset_bytes < other.end()
            && other.offset_bytes < self.end()
    }

    fn end(&self) -> u64 {
        self.offset_bytes.saturating_add(self.len_bytes)
    }

    /// Describes the range in words, as a part of a sentence.
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
