//! Snapshots as the directory of snapshots of a filesystem needs them: a list without a read, and
//! views by number.
//!
//! `take` has the calls that name a snapshot, and the figures of snapshots.
//!
//! Invariant: no call reads a disk or waits.

use std::sync::Arc;

use weir_base::DatasetId;
use weir_base::property::{SNAPDIR, SnapshotVisibility};

use crate::state::engine::Engine;
use crate::state::properties::effective;
use crate::state::snapshot::Snapshot;
use crate::state::volume::Volume;

/// A snapshot in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSnapshot {
    /// Number of the snapshot in the pool. It survives a rename, and is never used again.
    pub dataset: DatasetId,
    /// Own name of the snapshot.
    pub name: String,
    /// Time of creation, in milliseconds since 1970.
    pub created_unix_ms: u64,
}

impl ListedSnapshot {
    fn of(snapshot: &Snapshot) -> Self {
        Self {
            dataset: snapshot.record.id,
            name: snapshot.record.name.clone(),
            created_unix_ms: snapshot.record.created_unix_ms,
        }
    }
}

impl Volume {
    /// True for the view of a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.state.lock().is_view
    }

    /// Returns the snapshots of the dataset with a number above `after`, by ascending number.
    pub fn snapshots_after(&self, after: DatasetId) -> Vec<ListedSnapshot> {
        let state = self.state.lock();
        let active = state.snapshots.iter().filter(|snapshot| snapshot.is_active());
        let later = active.filter(|snapshot| snapshot.record.id > after);
        let mut listed: Vec<_> = later.map(ListedSnapshot::of).collect();
        listed.sort_unstable_by_key(|snapshot| snapshot.dataset);
        listed
    }

    /// Returns the number of the snapshots of the dataset, and the time of creation of the newest
    /// in milliseconds since 1970.
    pub fn snapshot_totals(&self) -> (usize, Option<u64>) {
        let state = self.state.lock();
        let active = state.snapshots.iter().filter(|snapshot| snapshot.is_active());
        active.fold((0, None), |(count, newest), snapshot| {
            (count + 1, newest.max(Some(snapshot.record.created_unix_ms)))
        })
    }

    /// Returns the snapshot of the dataset with this own name.
    pub fn snapshot_named(&self, name: &str) -> Option<ListedSnapshot> {
        self.state.lock().snapshot(name).map(ListedSnapshot::of)
    }

    /// Whether the root of the filesystem lists the directory of snapshots.
    pub fn snapshot_visibility(&self) -> SnapshotVisibility {
        let state = self.state.lock();
        let pool = &self.core.own.read().record.properties;
        effective(SNAPDIR, &[&state.record.properties, pool])
    }
}

impl Engine {
    /// Opens the snapshot of a dataset by number, as [`Self::open_snapshot`] does by name. `None`
    /// if the dataset has no such snapshot.
    pub fn open_snapshot_by_number(&self, of: &Volume, dataset: DatasetId) -> Option<Arc<Volume>> {
        let mut state = of.state.lock();
        let name = state.record.name.clone();
        let mut active = state.snapshots.iter_mut().filter(|snapshot| snapshot.is_active());
        let snapshot = active.find(|snapshot| snapshot.record.id == dataset)?;
        if let Some(open) = snapshot.view.upgrade() {
            return Some(open);
        }
        let view = self.view_of(&name, snapshot);
        snapshot.view = Arc::downgrade(&view);
        Some(view)
    }
}
