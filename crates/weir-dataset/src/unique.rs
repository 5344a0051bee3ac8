//! The space that a snapshot has for itself, counted by a walk of its tree beside the next one's.
//!
//! Not here: keeping the sum up to date while the volume changes (snapshot), its check (accounts).
//!
//! Invariant: a sum that left something out, because a node could not be read, is not kept.

use weir_base::{DatasetId, Txg};
use weir_format::TreeRoot;
use weir_pool::{Pool, PoolError, Units, Unshared};

use crate::engine::Engine;
use crate::error::DatasetError;
use crate::snapshot::Snapshot;
use crate::volume::Volume;

impl Engine {
    /// Counts what a snapshot has for itself and keeps the sum while nothing changes it.
    pub(crate) async fn count_unique(
        &self,
        volume: &Volume,
        id: DatasetId,
    ) -> Result<u64, DatasetError> {
        const TRIES_MAX: usize = 4;
        let mut counted = 0;
        for _ in 0..TRIES_MAX {
            let (what, next) = {
                let state = volume.state.lock();
                let Some(at) = state.snapshots.iter().position(|s| s.record.id == id) else {
                    return Ok(0);
                };
                let line = state.line();
                let after = if at == 0 { line.inherits } else { line.versions[at - 1].txg };
                // One that is being destroyed takes nothing of it with it.
                let shown = state.snapshots[at + 1..].iter().position(Snapshot::is_active);
                let next = shown.map_or(line.versions.len() - 1, |shown| at + 1 + shown);
                ((line.versions[at].root, after), line.versions[next].root)
            };
            let (root, after) = what;
            let found = Volume::units_unique(&self.core.pool, root, next, after).await;
            let found = match found {
                // The trees were replaced under the walk.
                Err(PoolError::NoSegment { .. }) => continue,
                found => found?,
            };
            counted = found.units;
            if !found.is_whole {
                // What cannot be read may be found again: this sum must not outlive that.
                return Ok(counted);
            }
            let mut state = volume.state.lock();
            let line = state.line();
            let at = state.snapshots.iter().position(|s| s.record.id == id);
            let Some(at) = at else { return Ok(counted) };
            // Only the next version's own losses are counted on from here.
            if line.versions[at + 1].root == next {
                state.snapshots[at].moment_mut().unique_units = Some(counted);
                return Ok(counted);
            }
            if line.versions[at + 1..].iter().any(|version| version.root == next) {
                return Ok(counted);
            }
        }
        Ok(counted)
    }
}

impl Volume {
    /// What a snapshot has for itself: born after `after`, and not in `next`.
    pub(crate) async fn units_unique(
        pool: &Pool,
        root: TreeRoot,
        next: TreeRoot,
        after: Txg,
    ) -> Result<Units, PoolError> {
        let what = Unshared { root, other: Some(next), after, from: 0, holes: false };
        pool.unshared(what).units().await
    }
}
