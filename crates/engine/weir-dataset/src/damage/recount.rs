//! Recount: reclaims space that damage kept allocated, once nothing needs the blocks below a lost
//! tree node.
//!
//! weir-pool (`recount`) finds the leaks in the counters of segments.
//!
//! A recount runs automatically after a destruction in a damaged pool, after an import of such a
//! pool, and after a scrub. A recount reads the summaries of all segments and the nodes that
//! reference the blocks of the segments, but no data.
//!
//! Invariant: a recount changes the pool through commits only; an interrupted recount runs again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use weir_base::{ObjectId, VsegId};
use weir_format::layout::PACK_BYTES;
use weir_format::{BlockPtr, DatasetRecord, TreeRoot};
use weir_pool::{Delta, DiskAddress, PoolError, Tree};

use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::snapshot::{descent_mut, inherits, objects_of};
use crate::state::timer::Timer;
use crate::state::volume::Volume;

/// Maximum number of consecutive recounts that each correct a counter, until the next scrub. A
/// block that loses its last reference needs a second recount; without this limit, contradictory
/// tables would be corrected endlessly.
const RECOUNTS_MAX: u32 = 8;

/// Segments that a recount processes between commits. After an interruption, results that are not
/// committed must be found again.
const SEGMENTS_PER_COMMIT: usize = 64;

/// Maximum total size of a pool's tree nodes for a recount: no commit can run while the recount
/// reads all nodes. 128 MiB of nodes take some seconds on any disk, and map 16 GiB of 4 KiB blocks.
/// In a larger pool the counters stay too high, and the pool stays in the damaged state.
const RECOUNT_NODE_BYTES_MAX: u64 = 128 << 20;

/// Result of a recount of some counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    /// The counters were right.
    Right,
    /// The counters were wrong and are corrected.
    Corrected,
    /// The counters could not be checked.
    Unknown,
}

impl Volume {
    /// Disk address of a node (`level` 1 for a leaf) or record (0) of the committed tree; `None`
    /// for a hole. For tests.
    ///
    /// # Errors
    /// The errors of a read.
    #[boxed(?Send)]
    pub async fn disk_address(
        &self,
        level: u8,
        index: u64,
    ) -> Result<Option<DiskAddress>, PoolError> {
        let root = self.state.lock().record.root;
        let ptr = Tree::new(&self.core.pool, root).pointer_at(level, index).await?;
        if ptr.is_hole() {
            return Ok(None);
        }
        self.core.pool.disk_address(&ptr).await.map(Some)
    }

    /// As [`Self::disk_address`], for a node or record of an object. For tests.
    ///
    /// # Errors
    /// The errors of a read.
    #[boxed(?Send)]
    pub async fn object_address(
        &self,
        object: ObjectId,
        level: u8,
        index: u64,
    ) -> Result<Option<DiskAddress>, PoolError> {
        let (pool, table) = (&self.core.pool, self.state.lock().record.root);
        let root = pool.object_root(table, object).await?;
        let ptr = Tree::new(pool, root).pointer_at(level, index).await?;
        if ptr.is_hole() { Ok(None) } else { pool.disk_address(&ptr).await.map(Some) }
    }

    /// Segments that a read of a record of the committed tree needs: the segments in the pointers
    /// on its path, and the segments that hold the blocks. For tests.
    ///
    /// # Errors
    /// The errors of a read.
    #[boxed(?Send)]
    pub async fn segments_behind(&self, record: u64) -> Result<Vec<VsegId>, PoolError> {
        let root = self.state.lock().record.root;
        let tree = Tree::new(&self.core.pool, root);
        let mut segments = Vec::new();
        for level in 0..=root.height {
            let index = record / TreeRoot::capacity(level);
            let ptr = tree.pointer_at(level, index).await?;
            if !ptr.is_hole() {
                segments.extend([ptr.vseg, self.core.pool.segment_of(&ptr).await?]);
            }
        }
        Ok(segments)
    }
}

impl Engine {
    /// Recounts every segment. Clears the pool's damage state if no damage is left.
    ///
    /// # Errors
    /// The pool is suspended.
    pub(crate) async fn recount(&self, sleep: &Timer<'_>) -> Result<(), DatasetError> {
        let pool = self.pool();
        // Destroyed data that is not freed yet is counted later: freeing it requests another
        // recount.
        self.commit_now().await?;
        let met = pool.lost_nodes_met();
        tracing::info!(pool = pool.name(), "recount of damaged space begins");
        // The counters of segments depend on the reference tables, so restore those first.
        let is_restored = self.restore_tables().await?;
        let roots = || self.roots_with(&[]);
        let mut is_whole = true;
        let segments: Vec<_> = pool.plan_recount().collect();
        for some in segments.chunks(SEGMENTS_PER_COMMIT) {
            for vseg in some {
                if self.is_stopping() {
                    pool.want_recount();
                    return Ok(());
                }
                is_whole &= pool.recount_segment(*vseg, &roots).await?;
                sleep(Duration::ZERO).await;
            }
            self.commit_now().await?;
        }
        if is_restored && self.may_recount() {
            pool.want_recount();
        } else if is_whole {
            match self.recount_trees(met).await? {
                Counts::Right => tracing::info!(pool = pool.name(), "no damage is left"),
                // Blocks that lost their last reference are still counted in their segments, so
                // another recount is needed.
                Counts::Corrected if self.may_recount() => pool.want_recount(),
                Counts::Corrected => {
                    tracing::error!(pool = pool.name(), "recounts keep finding wrong counters");
                }
                Counts::Unknown => {}
            }
            self.commit_now().await?;
        }
        Ok(())
    }

    /// Rebuilds lost reference tables, and frees segments with lost entries once no tree references
    /// them. Returns true if another recount may correct more.
    async fn restore_tables(&self) -> Result<bool, DatasetError> {
        // No commit can run while this function reads all nodes of the pool, so skip a pool that
        // has too many nodes.
        if self.node_bytes() > RECOUNT_NODE_BYTES_MAX {
            return Ok(false);
        }
        let done = {
            let _committer = self.core.committer.lock().await;
            let (pool, roots) = (self.pool(), self.roots_with(&[]));
            let is_restored = pool.recount_lost_references(&roots).await?;
            pool.free_lost_segments(&roots).await? || is_restored
        };
        if done {
            self.commit_now().await?;
        }
        Ok(done)
    }

    /// True if another recount may follow a recount that corrected something.
    fn may_recount(&self) -> bool {
        self.scans.recounts.fetch_add(1, Ordering::AcqRel) < RECOUNTS_MAX
    }

    /// Compares reference counts and space counters with the trees, and corrects them. If all are
    /// right, and the count of found damage is still `met`, clears the pool's damage state.
    async fn recount_trees(&self, met: u64) -> Result<Counts, DatasetError> {
        // No commit can run while this function reads all nodes of the pool, so skip a pool that
        // has too many nodes.
        if self.node_bytes() > RECOUNT_NODE_BYTES_MAX {
            return Ok(Counts::Unknown);
        }
        let _committer = self.core.committer.lock().await;
        let (pool, roots) = (self.pool(), self.roots_with(&[]));
        for chain in roots.chains() {
            for version in &chain.versions {
                if pool.has_markers(chain.objects, version.root).await? {
                    return Ok(Counts::Unknown);
                }
            }
        }
        let mut is_right = pool.recount_references(&roots).await?;
        for volume in self.all_volumes() {
            match self.recount_account(&volume).await? {
                Counts::Right => {}
                Counts::Corrected => is_right = false,
                Counts::Unknown => return Ok(Counts::Unknown),
            }
        }
        Ok(match is_right {
            false => Counts::Corrected,
            true if pool.clear_lost_nodes(met) => Counts::Right,
            true => Counts::Unknown,
        })
    }

    /// Approximate bytes of all nodes of all trees.
    fn node_bytes(&self) -> u64 {
        let of = |record: &DatasetRecord| record.tree_units.saturating_sub(record.stored_units);
        let units = self.all_volumes().into_iter().map(|volume| {
            let state = volume.state.lock();
            of(&state.record) + state.snapshots.iter().map(|s| of(&s.record)).sum::<u64>()
        });
        units.sum::<u64>() * PACK_BYTES as u64
    }

    /// Sets the space counters of a volume and its snapshots to the sums over their trees.
    async fn recount_account(&self, volume: &Volume) -> Result<Counts, PoolError> {
        let (record, chain, is_going) = {
            let state = volume.state.lock();
            (state.record.clone(), state.chain(), state.has_to_free())
        };
        if is_going {
            return Ok(Counts::Unknown);
        }
        let (inherits, mut now, mut lost) = (inherits(&record), Delta::default(), 0);
        let pool = &self.core.pool;
        let mut visit = |ptr: BlockPtr| {
            now.count_found(&ptr);
            now.inherited_units +=
                if ptr.birth <= inherits { i64::from(ptr.stored_units) } else { 0 };
        };
        lost += pool.walk_dataset(objects_of(&record), record.root, &mut visit).await?;
        let mut born = Vec::with_capacity(chain.versions.len());
        for index in 0..chain.versions.len() {
            let mut units = 0;
            let mut visit = |ptr: BlockPtr| units += u64::from(ptr.stored_units);
            lost += pool.walk_version(&chain, index, None, &mut visit).await?;
            born.push(units);
        }
        if lost > 0 {
            return Ok(Counts::Unknown);
        }
        Ok(volume.set_account(&now, &born))
    }
}

impl Volume {
    /// Stores the sums in the next commit: the volume's counters, and the units born in each
    /// version.
    fn set_account(&self, now: &Delta, born: &[u64]) -> Counts {
        let mut state = self.state.lock();
        let state = &mut *state;
        let before = state.record.clone();
        let record = &mut state.record;
        record.used_blocks = now.blocks.cast_unsigned();
        record.stored_units = now.stored_units.cast_unsigned();
        record.shared_units = now.shared_units.cast_unsigned();
        record.tree_units = now.tree_units.cast_unsigned();
        record.born_units = born[born.len() - 1];
        descent_mut(record).inherited_units = now.inherited_units.cast_unsigned();
        let mut is_right = *record == before;
        state.record_dirty |= !is_right;
        for (snapshot, born) in state.snapshots.iter_mut().zip(born) {
            let differs = snapshot.record.born_units != *born;
            // Drop the earlier value: it was counted while a part of this version's tree or of the
            // next version's tree was unreadable.
            let had_unique = snapshot.moment_mut().unique_units.take().is_some();
            if differs || had_unique {
                snapshot.record.born_units = *born;
                snapshot.dirty = true;
                is_right &= !differs;
            }
        }
        self.measure_limits(state);
        if is_right { Counts::Right } else { Counts::Corrected }
    }
}
