//! The snapshots that requests below `.weir/snapshot` have opened, by their last use.
//!
//! `open_filesystems` opens and closes them.
//!
//! Invariants:
//! - at most [`SNAPSHOTS_MAX_OF_FILESYSTEM`] snapshots of a filesystem are open, and at most
//!   [`SNAPSHOTS_MAX`] of all filesystems. Requests of clients cannot exceed these limits;
//! - a snapshot that a request uses is closed only before its destruction.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_base::DatasetId;

/// Pool and dataset of a filesystem or snapshot.
pub(crate) type Key = (u64, DatasetId);

/// Maximum number of open snapshots of one filesystem. An open snapshot takes some KiB of memory,
/// and inodes from the memory of the pool.
pub(crate) const SNAPSHOTS_MAX_OF_FILESYSTEM: usize = 64;

/// Maximum number of open snapshots of a server.
pub(crate) const SNAPSHOTS_MAX: usize = 256;

/// Time without a request after which a snapshot is closed.
pub(crate) const IDLE_MAX: Duration = Duration::from_mins(5);

/// All snapshots within a limit are in use.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AllInUse;

struct Recent<V> {
    /// The filesystem of the snapshot.
    of: Key,
    value: V,
    used: Instant,
}

/// Open snapshots. `V` keeps a snapshot open.
pub(crate) struct RecentSnapshots<V>(BTreeMap<Key, Recent<V>>);

impl<V> Default for RecentSnapshots<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<V> RecentSnapshots<V> {
    /// Returns the snapshot of a filesystem, and notes its use.
    pub(crate) fn get(&mut self, key: &Key, of: Key, now: Instant) -> Option<&V> {
        let recent = self.0.get_mut(key).filter(|recent| recent.of == of)?;
        recent.used = now;
        Some(&recent.value)
    }

    /// Removes the least recently used snapshots so that another one of the filesystem fits within
    /// both limits. `is_idle`: no request uses the snapshot. Returns the removed ones.
    ///
    /// # Errors
    /// [`AllInUse`].
    pub(crate) fn make_room(
        &mut self,
        of: Key,
        is_idle: impl Fn(&V) -> bool,
    ) -> Result<Vec<V>, AllInUse> {
        let mut removed = Vec::new();
        let own = |recent: &Recent<V>| recent.of == of;
        while self.0.values().filter(|recent| own(recent)).count() >= SNAPSHOTS_MAX_OF_FILESYSTEM {
            removed.push(self.remove_oldest(|recent| own(recent) && is_idle(&recent.value))?);
        }
        while self.0.len() >= SNAPSHOTS_MAX {
            removed.push(self.remove_oldest(|recent| is_idle(&recent.value))?);
        }
        Ok(removed)
    }

    fn remove_oldest(&mut self, of: impl Fn(&Recent<V>) -> bool) -> Result<V, AllInUse> {
        let fitting = self.0.iter().filter(|(_, recent)| of(recent));
        let oldest = fitting.min_by_key(|(_, recent)| recent.used).map(|(key, _)| *key);
        let removed = oldest.and_then(|key| self.0.remove(&key));
        removed.map(|recent| recent.value).ok_or(AllInUse)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.0.keys().copied()
    }

    pub(crate) fn insert(&mut self, key: Key, of: Key, value: V, now: Instant) {
        drop(self.0.insert(key, Recent { of, value, used: now }));
    }

    /// Removes the snapshots of a filesystem.
    pub(crate) fn remove_of(&mut self, of: Key) -> Vec<V> {
        self.remove_if(|_, recent| recent.of == of)
    }

    /// Removes the snapshots that the filter selects.
    pub(crate) fn remove(&mut self, filter: impl Fn(&Key) -> bool) -> Vec<V> {
        self.remove_if(|key, _| filter(key))
    }

    /// Removes the snapshots without a request for [`IDLE_MAX`].
    pub(crate) fn remove_idle(&mut self, now: Instant) -> Vec<V> {
        self.remove_if(|_, recent| now.saturating_duration_since(recent.used) >= IDLE_MAX)
    }

    fn remove_if(&mut self, filter: impl Fn(&Key, &Recent<V>) -> bool) -> Vec<V> {
        let removed = self.0.extract_if(.., |key, recent| filter(key, recent));
        removed.map(|(_, recent)| recent.value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(dataset: u64) -> Key {
        (1, DatasetId(dataset))
    }

    /// Opens the snapshot `dataset` of the filesystem `of`. Its value is its number.
    fn open(
        all: &mut RecentSnapshots<u64>,
        (dataset, of): (u64, u64),
        now: Instant,
        is_idle: impl Fn(&u64) -> bool,
    ) -> Result<Vec<u64>, AllInUse> {
        let removed = all.make_room(key(of), is_idle)?;
        all.insert(key(dataset), key(of), dataset, now);
        Ok(removed)
    }

    #[test]
    fn least_recently_used_snapshot_makes_room_for_another_one() {
        let (mut all, start) = (RecentSnapshots::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        let most = SNAPSHOTS_MAX_OF_FILESYSTEM as u64;
        for dataset in 1..=most {
            assert_eq!(open(&mut all, (dataset, 1000), at(dataset), |_| true), Ok(vec![]));
        }
        assert_eq!(all.get(&key(1), key(1000), at(1000)), Some(&1));
        assert_eq!(all.get(&key(1), key(2000), at(1000)), None, "of another filesystem");
        assert_eq!(open(&mut all, (500, 1000), at(1001), |_| true), Ok(vec![2]));
        assert_eq!(open(&mut all, (501, 1000), at(1002), |of| *of != 3), Ok(vec![4]));
        assert_eq!(open(&mut all, (502, 1000), at(1003), |_| false), Err(AllInUse));
        assert_eq!(open(&mut all, (503, 2000), at(1003), |_| false), Ok(vec![]), "another one");
    }

    #[test]
    fn snapshots_of_all_filesystems_have_a_limit() {
        let (mut all, now) = (RecentSnapshots::default(), Instant::now());
        for dataset in 0..SNAPSHOTS_MAX as u64 {
            let of = 10_000 + dataset % 20;
            let at = now + Duration::from_secs(dataset);
            assert_eq!(open(&mut all, (dataset, of), at, |_| true), Ok(vec![]));
        }
        assert_eq!(open(&mut all, (9_000, 20_000), now, |_| true), Ok(vec![0]));
        assert_eq!(open(&mut all, (9_001, 20_001), now, |_| false), Err(AllInUse));
    }

    #[test]
    fn unused_snapshots_are_removed() {
        let (mut all, now) = (RecentSnapshots::default(), Instant::now());
        open(&mut all, (1, 10), now, |_| true).unwrap();
        open(&mut all, (2, 10), now + IDLE_MAX / 2, |_| true).unwrap();
        open(&mut all, (3, 11), now + IDLE_MAX / 2, |_| true).unwrap();
        assert_eq!(all.remove_idle(now + IDLE_MAX / 2), Vec::<u64>::new());
        assert_eq!(all.remove_idle(now + IDLE_MAX), vec![1]);
        assert_eq!(all.remove_of(key(10)), vec![2]);
        assert_eq!(all.remove(|of| *of == key(3)), vec![3]);
    }
}
