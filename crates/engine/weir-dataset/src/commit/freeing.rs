//! Frees the blocks of destroyed snapshots and volumes, a part in each txg.
//!
//! `txg` runs the freeing, `snapshots` and `datasets` request it; weir-pool has the tree diff.
//!
//! Invariants:
//! - of one snapshot chain, a txg frees one version at a time: a partly freed version first, or
//!   else the newest. So the versions that a rollback replaced are freed before the snapshot of the
//!   rollback. While a copy keeps the newest version, older versions wait;
//! - the txg that frees blocks also stores the progress in the version's directory entry;
//! - a volume's directory entry stays until its last snapshot is freed;
//! - blocks below an unreadable node are not freed here; a recount finds them. If the diff cannot
//!   read a node of the next version, it also keeps the blocks that both versions may share.

use async_recursion::async_recursion as boxed;
use weir_base::BLOCK_BYTES;
use weir_format::layout::PACK_BYTES;
use weir_format::{DatasetRecord, DatasetState, TreeRoot};
use weir_pool::{DiffSpec, Place, PlantedBug, Pool, PoolError, WriteOut};

use crate::commit::written::Written;
use crate::state::snapshot::{Snapshot, freed_to, is_partly_freed, set_freed_to};
use crate::state::volume::State;

/// One txg frees at most the blocks of the pool divided by `FREE_SHARE` for one volume, but at
/// least `FREE_BLOCKS_MIN` and at most `FREE_BLOCKS_MAX` blocks. This limits the nodes that the txg
/// reads.
const FREE_SHARE: u64 = 64;
const FREE_BLOCKS_MAX: u64 = 1 << 20;
const FREE_BLOCKS_MIN: u64 = 8;

/// Version of a volume that is being freed.
struct Target {
    /// Index of the snapshot that is being freed; `None` for the head of the volume.
    snapshot: Option<usize>,
    what: DiffSpec,
}

/// Result of freeing in one txg.
struct Freed {
    units: u64,
    /// First place not yet visited; [`Place::END`] after the last block.
    to: Place,
}

impl State {
    /// True if the next txg has blocks of this volume to free.
    pub(crate) fn has_to_free(&self) -> bool {
        self.is_destroyed() || self.going(PlantedBug::None).is_some()
    }

    /// Index of the destroyed snapshot that is freed next.
    fn going(&self, bug: PlantedBug) -> Option<usize> {
        let partly = self.snapshots.iter().position(|s| is_partly_freed(&s.record));
        if partly.is_some() {
            return partly;
        }
        let goes = |s: &Snapshot| s.record.state == DatasetState::Destroying;
        let newest = self.snapshots.iter().rposition(goes)?;
        let oldest = self.snapshots.iter().position(goes)?;
        let next = if bug == PlantedBug::OldestFreedFirst { oldest } else { newest };
        Some(next).filter(|next| !self.snapshots[*next].kept)
    }

    /// Version that is freed next.
    fn target(&self, bug: PlantedBug) -> Option<Target> {
        let is_partly = self.snapshots.iter().any(|s| is_partly_freed(&s.record));
        let volume = self.is_destroyed() && freed_to(&self.record) != Place::END;
        let snapshot = if volume && !is_partly { None } else { Some(self.going(bug)?) };
        let chain = self.chain();
        let index = snapshot.unwrap_or(self.snapshots.len());
        let after = if index == 0 { chain.inherits } else { chain.versions[index - 1].txg };
        let next = chain.versions.get(index + 1).filter(|next| next.freed_to != Place::END);
        let next = next.filter(|_| bug != PlantedBug::SharedFreed);
        let version = chain.versions[index];
        let is_seen = match self.snapshots.get(index + 1) {
            Some(snapshot) => snapshot.is_active(),
            None => !self.is_destroyed(),
        };
        let other_of = next.filter(|_| is_seen).map(|next| chain.of(next.txg));
        let what = DiffSpec {
            objects: chain.objects,
            root: version.root,
            of: None,
            other: next.map(|next| next.root),
            other_of,
            after: after.max(chain.inherits),
            from: version.freed_to,
            holes: false,
        };
        Some(Target { snapshot, what })
    }
}

/// Frees the next part of a volume's destroyed versions. The blocks that the txg wrote must already
/// be readable.
///
/// The blocks that only one version references were born after the previous version, and the next
/// version does not have them at the same index (weir-pool, `snapshot_chain`). A tree diff of the
/// version against the next one finds these blocks, and reads only the nodes to free and the nodes
/// of the next version at the same indexes.
#[boxed(?Send)]
pub(crate) async fn free_some(
    pool: &Pool,
    out: &mut WriteOut<'_>,
    written: &mut Written,
) -> Result<(), PoolError> {
    let volume = std::sync::Arc::clone(&written.volume);
    let target = volume.state.lock().target(pool.bug());
    if let Some(Target { snapshot, mut what }) = target {
        what.after = what.after.max(volume.core.held_for_unread());
        let mut freed = free_part(pool, out, what).await?;
        if freed.to != Place::END && pool.bug() == PlantedBug::FreedAgain {
            freed.to = what.from;
        }
        if freed.to == Place::END {
            pool.want_recount();
        }
        let mut state = volume.state.lock();
        match snapshot {
            None => note_volume(&mut state, written, &freed),
            Some(index) => note_snapshot(&mut state, written, index, &freed),
        }
    }
    let state = volume.state.lock();
    written.is_gone =
        state.is_destroyed() && freed_to(&state.record) == Place::END && state.snapshots.is_empty();
    Ok(())
}

async fn free_part(
    pool: &Pool,
    out: &mut WriteOut<'_>,
    what: DiffSpec,
) -> Result<Freed, PoolError> {
    let mut walk = pool.unshared(what);
    let (mut blocks, mut units) = (0, 0);
    let share = pool.space().total_bytes / FREE_SHARE / BLOCK_BYTES as u64;
    let most = share.clamp(FREE_BLOCKS_MIN, FREE_BLOCKS_MAX) as usize;
    // Freeing shared blocks changes their reference tables, which stay in RAM until the commit:
    // stop when no RAM is left for further changed tables.
    while blocks < most && (blocks == 0 || pool.has_room_for_tables()) {
        let found = walk.next().await?;
        if found.is_empty() {
            break;
        }
        blocks += found.len();
        for freed in found {
            units += u64::from(freed.ptr.stored_units);
            out.free(&freed.ptr);
        }
        out.free_some_unread().await?;
    }
    out.free_all_unread().await?;
    if walk.leaves_something() {
        pool.note_lost_node(out.txg);
    }
    let (to, bytes) = (walk.position(), units * PACK_BYTES as u64);
    if to != Place::END {
        tracing::debug!(blocks, bytes, ?to, "freed a part of a destroyed dataset");
    }
    Ok(Freed { units, to })
}

fn note_volume(state: &mut State, written: &mut Written, freed: &Freed) {
    for record in [Some(&mut state.record), written.record.as_mut()].into_iter().flatten() {
        set_freed_to(record, freed.to);
        record.born_units = record.born_units.saturating_sub(freed.units);
        if freed.to == Place::END {
            record.root = TreeRoot { height: record.root.height, ..TreeRoot::default() };
        }
    }
}

fn note_snapshot(state: &mut State, written: &mut Written, index: usize, freed: &Freed) {
    let record = &mut state.snapshots[index].record;
    set_freed_to(record, freed.to);
    record.born_units = record.born_units.saturating_sub(freed.units);
    if freed.to != Place::END {
        written.note(record.clone());
        return;
    }
    // Blocks that stay allocated belong to the next version, whose counters include them from now
    // on.
    let DatasetRecord { id, born_units, .. } = state.snapshots.remove(index).record;
    written.forget(id);
    match state.snapshots.get_mut(index) {
        Some(next) => {
            next.record.born_units += born_units;
            next.moment_mut().unique_units = None;
            written.note(next.record.clone());
        }
        None => {
            let records = [Some(&mut state.record), written.record.as_mut()];
            for record in records.into_iter().flatten() {
                record.born_units += born_units;
            }
        }
    }
    if let Some(before) = index.checked_sub(1) {
        let before = &mut state.snapshots[before];
        before.moment_mut().unique_units = None;
        written.note(before.record.clone());
    }
}
