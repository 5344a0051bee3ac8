//! Counts the space that only one snapshot references, by a tree diff against the next version.
//!
//! `state::snapshot` updates the sum while the volume changes; `check` verifies it.
//!
//! Invariant: a sum that is incomplete because of an unreadable node is not kept.

use weir_base::{DatasetId, Txg};
use weir_format::TreeRoot;
use weir_pool::{DiffSpec, Objects, Pool, PoolError, SnapshotChain, TreeOf, Units};

use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::snapshot::Snapshot;
use crate::state::volume::Volume;

impl Engine {
    /// Counts the space that only this snapshot references, and keeps the sum until a change
    /// invalidates it.
    pub(crate) async fn count_unique(
        &self,
        volume: &Volume,
        id: DatasetId,
    ) -> Result<u64, DatasetError> {
        const TRIES_MAX: usize = 4;
        let mut counted = 0;
        for _ in 0..TRIES_MAX {
            let what = {
                let state = volume.state.lock();
                let Some(at) = state.snapshots.iter().position(|s| s.record.id == id) else {
                    return Ok(0);
                };
                let chain = state.chain();
                let after = if at == 0 { chain.inherits } else { chain.versions[at - 1].txg };
                // Skip snapshots under destruction: freeing them frees none of the counted blocks.
                let shown = state.snapshots[at + 1..].iter().position(Snapshot::is_active);
                let next = shown.map_or(chain.versions.len() - 1, |shown| at + 1 + shown);
                Pair::of(&chain, at, next, after)
            };
            let next = what.next;
            let found = Volume::units_unique(&self.core.pool, &what).await;
            let found = match found {
                // A commit replaced the trees during the diff: start a new diff.
                Err(PoolError::NoSegment { .. }) => continue,
                found => found?,
            };
            counted = found.units;
            if !found.is_whole {
                // Do not keep this sum: the unreadable node may become readable again.
                return Ok(counted);
            }
            let mut state = volume.state.lock();
            let chain = state.chain();
            let at = state.snapshots.iter().position(|s| s.record.id == id);
            let Some(at) = at else { return Ok(counted) };
            // Keep the sum only if the next version is unchanged: from now on updates subtract only
            // blocks that this next version drops.
            if chain.versions[at + 1].root == next {
                state.snapshots[at].moment_mut().unique_units = Some(counted);
                return Ok(counted);
            }
            if chain.versions[at + 1..].iter().any(|version| version.root == next) {
                return Ok(counted);
            }
        }
        Ok(counted)
    }
}

/// A snapshot, and the next version of its volume that is not under destruction. Clients can read
/// both.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    objects: Objects,
    root: TreeRoot,
    of: TreeOf,
    pub(crate) next: TreeRoot,
    next_of: TreeOf,
    /// The diff skips blocks born in this txg or earlier: older versions reference them too.
    after: Txg,
}

impl Pair {
    /// Builds the pair from the indexes of two versions of a snapshot chain.
    pub(crate) fn of(chain: &SnapshotChain, at: usize, next: usize, after: Txg) -> Self {
        let (version, next) = (chain.versions[at], chain.versions[next]);
        Self {
            objects: chain.objects,
            root: version.root,
            of: chain.of(version.txg),
            next: next.root,
            next_of: chain.of(next.txg),
            after,
        }
    }
}

impl Volume {
    /// Counts the blocks of a snapshot that neither an older version nor the next version
    /// references.
    pub(crate) async fn units_unique(pool: &Pool, pair: &Pair) -> Result<Units, PoolError> {
        let Pair { objects, root, of, next, next_of, after } = *pair;
        let (of, other, other_of) = (Some(of), Some(next), Some(next_of));
        let what = DiffSpec { other, other_of, ..DiffSpec::of_tree(objects, root, of, after) };
        pool.unshared(what).units().await
    }
}
