//! Check of the space counters of volumes and snapshots against the contents of their trees.
//!
//! weir-pool checks the counters of segments block by block.
//!
//! Invariants: the check changes nothing; after damage a counter may exceed the sum over the tree.

use async_recursion::async_recursion as boxed;
use weir_format::BlockPtr;
use weir_pool::PoolError;

use crate::accounting::unique::Pair;
use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::snapshot::{Snapshot, descent, inherits, objects_of};
use crate::state::volume::Volume;

/// Space counter that differs from the sum over the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongAccount {
    /// Volume or snapshot, without the pool's name.
    pub name: String,
    /// Name of the counter, which is in units of 64 bytes.
    pub what: &'static str,
    /// Value in the directory entry.
    pub counted: u64,
    /// Sum over the tree.
    pub found: u64,
}

impl Engine {
    /// Compares the space counters in the directory entries with the trees. The result is empty if
    /// they agree. No write may run concurrently.
    #[boxed(?Send)]
    pub async fn check_accounts(&self) -> Result<Vec<WrongAccount>, DatasetError> {
        let _committer = self.core.committer.lock().await;
        let mut wrong = Vec::new();
        for volume in self.volumes() {
            self.check_tree(&volume, &mut wrong).await?;
            self.check_line(&volume, &mut wrong).await?;
            self.check_unique(&volume, &mut wrong).await?;
        }
        Ok(wrong)
    }

    /// True if counters may exceed the sum over a tree in which `lost` nodes are unreadable: the
    /// counters include the blocks below those nodes.
    fn may_exceed(&self, lost: u64) -> bool {
        lost > 0 || self.core.pool.damaged_since().is_some()
    }

    /// Checks the counters of the space that a volume references, and of the part that it inherits
    /// from its origin.
    async fn check_tree(
        &self,
        volume: &Volume,
        wrong: &mut Vec<WrongAccount>,
    ) -> Result<(), PoolError> {
        let record = volume.state.lock().record.clone();
        let inherits = inherits(&record);
        let (mut tree, mut shared, mut inherited) = (0, 0, 0);
        let mut visit = |ptr: BlockPtr| {
            let units = u64::from(ptr.stored_units);
            tree += units;
            shared += if ptr.shared { units } else { 0 };
            inherited += if ptr.birth <= inherits { units } else { 0 };
        };
        let lost =
            self.core.pool.walk_dataset(objects_of(&record), record.root, &mut visit).await?;
        let may_exceed = self.may_exceed(lost);
        let mut compare = |what, counted, found| {
            if counted < found || (counted > found && !may_exceed) {
                wrong.push(WrongAccount { name: record.name.clone(), what, counted, found });
            }
        };
        compare("tree", record.tree_units, tree);
        compare("shared", record.shared_units, shared);
        compare("inherited", descent(&record).inherited_units, inherited);
        Ok(())
    }

    /// Checks the space that a volume and its snapshots occupy on disk.
    async fn check_line(
        &self,
        volume: &Volume,
        wrong: &mut Vec<WrongAccount>,
    ) -> Result<(), PoolError> {
        let (name, chain, born) = {
            let state = volume.state.lock();
            let born = state.snapshots.iter().map(|s| s.record.born_units);
            let born = born.fold(state.record.born_units, u64::saturating_add);
            (state.record.name.clone(), state.chain(), born)
        };
        let (mut found, mut lost) = (0, 0);
        for index in 0..chain.versions.len() {
            let mut visit = |ptr: BlockPtr| found += u64::from(ptr.stored_units);
            lost += self.core.pool.walk_version(&chain, index, None, &mut visit).await?;
        }
        if born < found || (born > found && !self.may_exceed(lost)) {
            wrong.push(WrongAccount { name, what: "line", counted: born, found });
        }
        Ok(())
    }

    /// Checks the space that each snapshot alone references.
    async fn check_unique(
        &self,
        volume: &Volume,
        wrong: &mut Vec<WrongAccount>,
    ) -> Result<(), PoolError> {
        let (chain, snapshots) = {
            let state = volume.state.lock();
            let known = |snapshot: &Snapshot| {
                let name = format!("{}@{}", state.record.name, snapshot.record.name);
                snapshot.moment().unique_units.filter(|_| snapshot.is_active()).map(|u| (name, u))
            };
            (state.chain(), state.snapshots.iter().map(known).collect::<Vec<_>>())
        };
        for (at, known) in snapshots.into_iter().enumerate() {
            let Some((name, counted)) = known else { continue };
            let after = if at == 0 { chain.inherits } else { chain.versions[at - 1].txg };
            let pair = Pair::of(&chain, at, at + 1, after);
            let found = Volume::units_unique(&self.core.pool, &pair).await?;
            if counted != found.units && found.is_whole && !self.may_exceed(0) {
                let found = found.units;
                wrong.push(WrongAccount { name, what: "unique", counted, found });
            }
        }
        Ok(())
    }
}
