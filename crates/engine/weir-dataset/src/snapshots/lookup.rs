//! Looking at datasets: by number, their names in order, where space goes, what would be freed.
//!
//! Not here: changing them (engine, snapshots), what one snapshot has for itself (unique).
//!
//! Invariants:
//! - nothing here changes anything;
//! - a number means the same dataset for ever, whatever it is called.

use async_recursion::async_recursion as boxed;
use weir_base::DatasetId;
use weir_codec::checksum::xxh3_64;

use crate::accounting::unique::Pair;
use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::snapshot::{Snapshot, SnapshotId, descent};
use crate::state::volume::{State, Volume};

/// Where the space of all datasets of a pool goes, in bytes on disk, one copy, nodes included, as
/// of the last commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatasetSpace {
    /// What volumes lead to; what several share counts once.
    pub by_volumes: u64,
    /// What only snapshots lead to.
    pub by_snapshots: u64,
    /// What was destroyed and is still to be freed.
    pub freeing: u64,
}

impl Volume {
    /// Its number in the pool; of what shows a snapshot, that one's.
    pub fn dataset(&self) -> DatasetId {
        self.id
    }

    /// Tells it apart from every other one, on other pools too.
    pub fn guid(&self) -> u64 {
        let created = self.state.lock().record.created_unix_ms;
        let unique = [self.core.pool.guid().0, self.id.0, created].map(u64::to_le_bytes);
        xxh3_64(&[&unique[0], &unique[1], &unique[2]])
    }
}

impl Engine {
    /// What a dataset is called now: a volume's name, or a volume's and a snapshot's own.
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
    /// `NotFound`.
    pub fn snapshot_names(&self, volume: &str) -> Result<Vec<String>, DatasetError> {
        let volume = self.volume(volume)?;
        let state = volume.state.lock();
        let active = state.snapshots.iter().filter(|snapshot| snapshot.is_active());
        Ok(active.map(|snapshot| snapshot.record.name.clone()).collect())
    }

    /// The snapshot that a volume was cloned from.
    pub fn origin_of(&self, volume: &Volume) -> Option<SnapshotId> {
        let origin = descent(&volume.state.lock().record).origin?;
        let (volume, name) = self.name_of(origin.snapshot)?;
        Some(SnapshotId { volume, name: name? })
    }

    /// Where the space of all datasets goes.
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

    /// What destroying these snapshots of one volume together would free: more than each alone
    /// would, where several share what nothing else has. Reads the nodes they have for themselves.
    ///
    /// # Errors
    /// `NoSnapshot`.
    #[boxed(?Send)]
    pub async fn freed_by(&self, volume: &str, names: &[String]) -> Result<u64, DatasetError> {
        /// Trees replaced under the walk are looked at again, but not for ever.
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

/// What goes with the snapshots that `goes`: of each, what was born since the version before it and
/// is not in the next version that stays.
fn going(state: &State, goes: impl Fn(&Snapshot) -> bool) -> Vec<Pair> {
    let line = state.line();
    let mut found = Vec::new();
    for (at, snapshot) in state.snapshots.iter().enumerate() {
        if !goes(snapshot) {
            continue;
        }
        let after = if at == 0 { line.inherits } else { line.versions[at - 1].txg };
        let stays = |s: &Snapshot| s.is_active() && !goes(s);
        let next = state.snapshots[at + 1..].iter().position(stays);
        let next = next.map_or(line.versions.len() - 1, |next| at + 1 + next);
        found.push(Pair::of(&line, at, next, after));
    }
    found
}
