//! Queries on datasets: by number, names in order, space use, and space that a destruction would
//! free.
//!
//! The calls that change datasets are in `datasets` and `snapshots`; `accounting::unique` counts
//! the space that one snapshot alone references.
//!
//! Invariants:
//! - a query changes nothing;
//! - a number identifies the same dataset for ever, also after a rename.

use async_recursion::async_recursion as boxed;
use weir_base::DatasetId;
use weir_codec::checksum::xxh3_64;

use crate::accounting::unique::Pair;
use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::snapshot::{Snapshot, SnapshotId, descent};
use crate::state::volume::{State, Volume};

/// Space of all datasets of a pool as of the last commit: bytes of data and nodes as stored. Counts
/// each byte once, whatever the redundancy of the vdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatasetSpace {
    /// Space that volumes reference; space shared by several volumes counts once.
    pub by_volumes: u64,
    /// Space that only snapshots reference.
    pub by_snapshots: u64,
    /// Space of destroyed datasets that is not yet freed.
    pub freeing: u64,
}

impl Volume {
    /// Number of the dataset in the pool. A view of a snapshot has the snapshot's number.
    pub fn dataset(&self) -> DatasetId {
        self.id
    }

    /// Unique identity, also across pools.
    pub fn guid(&self) -> u64 {
        let created = self.state.lock().record.created_unix_ms;
        let unique = [self.core.pool.guid().0, self.id.0, created].map(u64::to_le_bytes);
        xxh3_64(&[&unique[0], &unique[1], &unique[2]])
    }
}

impl Engine {
    /// Present name of a dataset: the volume's name, and the snapshot's own name if the dataset is
    /// a snapshot.
    pub fn name_of(&self, dataset: DatasetId) -> Option<(String, Option<String>)> {
        let named = |volume: &std::sync::Arc<Volume>| {
            let state = volume.state.lock();
            let name = || state.record.name.clone();
            if volume.id == dataset {
                return Some((name(), None));
            }
            let mut active = state.snapshots.iter().filter(|s| s.is_active());
            let own = active.find(|s| s.record.id == dataset)?.record.name.clone();
            Some((name(), Some(own)))
        };
        self.volumes().iter().find_map(named)
    }

    /// Names of a volume's snapshots, oldest first.
    ///
    /// # Errors
    /// `NotFound` if the volume does not exist.
    pub fn snapshot_names(&self, volume: &str) -> Result<Vec<String>, DatasetError> {
        let volume = self.volume(volume)?;
        let state = volume.state.lock();
        let active = state.snapshots.iter().filter(|snapshot| snapshot.is_active());
        Ok(active.map(|snapshot| snapshot.record.name.clone()).collect())
    }

    /// The origin of a clone.
    pub fn origin_of(&self, volume: &Volume) -> Option<SnapshotId> {
        let origin = descent(&volume.state.lock().record).origin?;
        let (volume, name) = self.name_of(origin.snapshot)?;
        Some(SnapshotId { volume, name: name? })
    }

    /// Space use of all datasets.
    pub fn dataset_space(&self) -> DatasetSpace {
        let mut all = DatasetSpace::default();
        for volume in self.all_volumes() {
            let state = volume.state.lock();
            let space = state.space();
            if state.is_destroyed() {
                all.freeing += space.used;
            } else {
                all.by_volumes += space.by_volume;
                all.by_snapshots += space.by_snapshots;
            }
        }
        all
    }

    /// Bytes that destroying these snapshots of one volume together would free. Blocks that only
    /// these snapshots share count too, so the number can exceed the sum over the single snapshots.
    /// Reads the nodes that only these snapshots reference.
    ///
    /// # Errors
    /// `NoSnapshot` if a snapshot does not exist.
    #[boxed(?Send)]
    pub async fn freed_by(&self, volume: &str, names: &[String]) -> Result<u64, DatasetError> {
        /// Maximum retries after a commit replaced the trees during the diff.
        const TRIES_MAX: usize = 4;
        let found = self.volume(volume)?;
        let mut tries = 0;
        loop {
            tries += 1;
            let going = {
                let state = found.state.lock();
                if let Some(name) = names.iter().find(|name| state.snapshot(name).is_none()) {
                    let name = format!("{}@{name}", self.full_name(volume));
                    return Err(DatasetError::NoSnapshot { name });
                }
                going(&state, |s| s.is_active() && names.contains(&s.record.name))
            };
            match self.units_of(&going).await {
                Err(weir_pool::PoolError::NoSegment { .. }) if tries < TRIES_MAX => {}
                units => return Ok(units? * weir_format::layout::PACK_BYTES as u64),
            }
        }
    }

    async fn units_of(&self, going: &[Pair]) -> Result<u64, weir_pool::PoolError> {
        let mut units = 0;
        for pair in going {
            units += Volume::units_unique(&self.core.pool, pair).await?.units;
        }
        Ok(units)
    }
}

/// Pairs each snapshot for which `goes` returns true with the next remaining version. The diff of a
/// pair finds the blocks that were born after the previous version and that the next remaining
/// version does not reference.
fn going(state: &State, goes: impl Fn(&Snapshot) -> bool) -> Vec<Pair> {
    let chain = state.chain();
    let mut found = Vec::new();
    for (at, snapshot) in state.snapshots.iter().enumerate() {
        if !goes(snapshot) {
            continue;
        }
        let after = if at == 0 { chain.inherits } else { chain.versions[at - 1].txg };
        let stays = |s: &Snapshot| s.is_active() && !goes(s);
        let next = state.snapshots[at + 1..].iter().position(stays);
        let next = next.map_or(chain.versions.len() - 1, |next| at + 1 + next);
        found.push(Pair::of(&chain, at, next, after));
    }
    found
}
