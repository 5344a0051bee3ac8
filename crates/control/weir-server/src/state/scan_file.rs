//! The last scan of each pool, stored in `scans.json`: after a restart the server shows the scan,
//! and resumes an interrupted scrub at its stored position.
//!
//! The engine performs the scans.
//!
//! Invariants:
//! - the scrub has read everything before its stored position, so a resumed scrub skips nothing;
//! - if the file is unreadable, the server logs a warning and starts without stored scans.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_api::types::{ScanKind, ScanState};
use weir_pool::{ScanPlace, ScanStatus};

use crate::answer::pool_status;
use crate::state::pool_file::{Entry, PoolFile};

/// Stored form of a [`ScanStatus`], with the position of the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) kind: ScanKind,
    pub(crate) state: ScanState,
    started_unix_ms: u64,
    ended_unix_ms: Option<u64>,
    ran_ms: u64,
    pub(crate) total_bytes: u64,
    pub(crate) examined_bytes: u64,
    repaired_bytes: u64,
    unrepaired: u64,
    damaged: u64,
    place_segment: u32,
    place_vdev: u16,
}

impl Entry for Stored {
    fn unix_ms(&self) -> u64 {
        self.started_unix_ms
    }
}

impl Stored {
    pub(crate) fn of(status: &ScanStatus, place: ScanPlace) -> Self {
        let shown = pool_status::scan(status);
        Self {
            kind: shown.kind,
            state: shown.state,
            started_unix_ms: status.started_unix_ms,
            ended_unix_ms: status.ended_unix_ms,
            ran_ms: shown.ran_ms,
            total_bytes: status.total_bytes,
            examined_bytes: status.examined_bytes,
            repaired_bytes: status.repaired_bytes,
            unrepaired: status.unrepaired,
            damaged: status.damaged,
            place_segment: place.segment,
            place_vdev: place.vdev,
        }
    }

    pub(crate) fn status(&self) -> ScanStatus {
        ScanStatus {
            kind: match self.kind {
                ScanKind::Scrub => weir_pool::ScanKind::Scrub,
                ScanKind::Resilver => weir_pool::ScanKind::Resilver,
            },
            state: match self.state {
                ScanState::Running => weir_pool::ScanState::Running,
                ScanState::Paused => weir_pool::ScanState::Paused,
                ScanState::Finished => weir_pool::ScanState::Finished,
                ScanState::Stopped => weir_pool::ScanState::Stopped,
            },
            started_unix_ms: self.started_unix_ms,
            ended_unix_ms: self.ended_unix_ms,
            ran: Duration::from_millis(self.ran_ms),
            total_bytes: self.total_bytes,
            examined_bytes: self.examined_bytes,
            repaired_bytes: self.repaired_bytes,
            unrepaired: self.unrepaired,
            damaged: self.damaged,
        }
    }

    pub(crate) const fn place(&self) -> ScanPlace {
        ScanPlace { segment: self.place_segment, vdev: self.place_vdev }
    }

    /// True if this is a different scan than `before`, or the same scan in a different state.
    fn is_news(&self, before: Option<&Self>) -> bool {
        let same = |before: &Self| {
            let key = |scan: &Self| (scan.kind, scan.state, scan.started_unix_ms);
            key(before) == key(self)
        };
        !before.is_some_and(same)
    }
}

/// The file with the last scan of each pool.
#[derive(Debug)]
pub(crate) struct ScanFile(pub(crate) PoolFile<Stored>);

impl ScanFile {
    /// Reads the file of a state directory; a missing file counts as empty.
    pub(crate) fn load(dir: &Path) -> Self {
        let path = dir.join("scans.json");
        Self(PoolFile::load(path.clone()).unwrap_or_else(|why| {
            tracing::warn!(path = %path.display(), %why, "cannot read earlier scans");
            PoolFile::new(path, BTreeMap::new())
        }))
    }

    /// Writes the scan of a pool to the file if the scan is new or in a new state. A scan that has
    /// only progressed is written at most every 10 s.
    pub(crate) fn record(&mut self, pool: u64, scan: Stored) {
        let before = self.0.pools.get(&pool);
        if before == Some(&scan) || (self.0.rests(pool) && !scan.is_news(before)) {
            return;
        }
        if let Err(error) = self.0.record(pool, scan) {
            tracing::warn!(path = %self.0.path.display(), %error, "cannot record the scan");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::state::pool_file::POOLS_MAX;

    fn scan(started_unix_ms: u64) -> Stored {
        Stored {
            kind: ScanKind::Scrub,
            state: ScanState::Running,
            started_unix_ms,
            ended_unix_ms: None,
            ran_ms: 5,
            total_bytes: 100,
            examined_bytes: 10,
            repaired_bytes: 1,
            unrepaired: 2,
            damaged: 3,
            place_segment: 7,
            place_vdev: 1,
        }
    }

    #[test]
    fn scans_are_read_back_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = ScanFile::load(dir.path());
        file.record(9, scan(1));
        let read = ScanFile::load(dir.path()).0.pools[&9];
        assert_eq!((read, read.place()), (scan(1), ScanPlace { segment: 7, vdev: 1 }));
        assert_eq!(Stored::of(&read.status(), read.place()), read);
        // Progress of a scan is not written at once. A new state of a scan is written at once.
        file.record(9, Stored { examined_bytes: 20, ..scan(1) });
        assert_eq!(ScanFile::load(dir.path()).0.pools[&9], scan(1));
        let paused = Stored { state: ScanState::Paused, examined_bytes: 30, ..scan(1) };
        file.record(9, paused);
        assert_eq!(ScanFile::load(dir.path()).0.pools[&9], paused);
        file.0.hurry(9);
        file.record(9, Stored { place_segment: 8, ..paused });
        assert_eq!(ScanFile::load(dir.path()).0.pools[&9].place_segment, 8);
        fs::write(dir.path().join("scans.json"), "{").unwrap();
        assert!(ScanFile::load(dir.path()).0.pools.is_empty(), "a bad file is left");
    }

    #[test]
    fn oldest_scan_is_evicted() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = ScanFile::load(dir.path());
        file.0.pools = (0..POOLS_MAX as u64).map(|pool| (pool, scan(pool + 1))).collect();
        file.record(5000, scan(1));
        assert_eq!(file.0.pools.len(), POOLS_MAX);
        assert!(!file.0.pools.contains_key(&0) && file.0.pools.contains_key(&5000));
    }
}
