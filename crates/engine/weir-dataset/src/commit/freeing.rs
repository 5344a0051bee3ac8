//! Freeing what destroyed snapshots and volumes held, a part with each txg.
//!
//! Not here: which txgs (commit), asking for it (snapshots, engine), the walk (weir-pool).
//!
//! What a version of a volume has for itself was born after the version before it ended and is not
//! at its place in the one after it (weir-pool, `line`). So it is found by walking the version's
//! tree beside the next one's, which reads the nodes that are freed and their counterparts.
//!
//! Invariants:
//! - of one line, one version at a time; a version that is partly freed first, else the newest:
//!   what a rollback left behind must go before the snapshot that was rolled back to. While that
//!   one is kept for a copy, older ones wait;
//! - how far it is stands in the record that the same txg stores;
//! - a volume's record stays until its last snapshot is gone;
//! - what is below a node that cannot be read is not freed here, a recount finds it; what is beside
//!   one is not freed either, where the two may share it.

use async_recursion::async_recursion as boxed;
use weir_base::BLOCK_BYTES;
use weir_format::layout::PACK_BYTES;
use weir_format::{DatasetRecord, DatasetState, TreeRoot};
use weir_pool::{PlantedBug, Pool, PoolError, Unshared, WriteOut};

use crate::commit::written::Written;
use crate::state::snapshot::Snapshot;
use crate::state::volume::State;

/// Part of the pool that one txg frees of a volume at most, as a divisor, and most and fewest
/// blocks: bounds the nodes it reads.
const FREE_SHARE: u64 = 64;
const FREE_BLOCKS_MAX: u64 = 1 << 20;
const FREE_BLOCKS_MIN: u64 = 8;

/// How far a destroyed volume is freed when nothing is left of it.
const ALL: u64 = u64::MAX;

/// A version that is being freed.
struct Target {
    /// `None`: the volume as it is.
    snapshot: Option<usize>,
    what: Unshared,
}

/// What one txg freed of it.
struct Freed {
    units: u64,
    /// [`ALL`] at the end.
    to: u64,
}

impl State {
    /// Whether a txg has something of this volume to free.
    pub(crate) fn has_to_free(&self) -> bool {
        self.is_destroyed() || self.going(PlantedBug::None).is_some()
    }

    /// The destroyed snapshot of which something is to be freed next.
    fn going(&self, bug: PlantedBug) -> Option<usize> {
        let partly = self.snapshots.iter().position(|s| s.record.freed_to > 0);
        if partly.is_some() {
            return partly;
        }
        let goes = |s: &Snapshot| s.record.state == DatasetState::Destroying;
        let newest = self.snapshots.iter().rposition(goes)?;
        let oldest = self.snapshots.iter().position(goes)?;
        let next = if bug == PlantedBug::OldestFreedFirst { oldest } else { newest };
        Some(next).filter(|next| !self.snapshots[*next].kept)
    }

    /// What is to be freed next.
    fn target(&self, bug: PlantedBug) -> Option<Target> {
        let is_partly = self.snapshots.iter().any(|s| s.record.freed_to > 0);
        let volume = self.is_destroyed() && self.record.freed_to != ALL;
        let snapshot = if volume && !is_partly { None } else { Some(self.going(bug)?) };
        let line = self.line();
        let index = snapshot.unwrap_or(self.snapshots.len());
        let after = if index == 0 { line.inherits } else { line.versions[index - 1].txg };
        let next = line.versions.get(index + 1).filter(|next| next.freed_to != ALL);
        let next = next.filter(|_| bug != PlantedBug::SharedFreed);
        let version = line.versions[index];
        let is_seen = match self.snapshots.get(index + 1) {
            Some(snapshot) => snapshot.is_active(),
            None => !self.is_destroyed(),
        };
        let other_of = next.filter(|_| is_seen).map(|next| line.of(next.txg));
        let what = Unshared {
            root: version.root,
            of: None,
            other: next.map(|next| next.root),
            other_of,
            after: after.max(line.inherits),
            from: version.freed_to,
            holes: false,
        };
        Some(Target { snapshot, what })
    }
}

/// Frees the next part of what is to be freed of a volume. Every block of the txg can be read.
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
        if freed.to != ALL && pool.bug() == PlantedBug::FreedAgain {
            freed.to = what.from;
        }
        if freed.to == ALL {
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
        state.is_destroyed() && state.record.freed_to == ALL && state.snapshots.is_empty();
    Ok(())
}

async fn free_part(
    pool: &Pool,
    out: &mut WriteOut<'_>,
    what: Unshared,
) -> Result<Freed, PoolError> {
    let mut walk = pool.unshared(what);
    let (mut blocks, mut units) = (0, 0);
    let share = pool.space().total_bytes / FREE_SHARE / BLOCK_BYTES as u64;
    let most = share.clamp(FREE_BLOCKS_MIN, FREE_BLOCKS_MAX) as usize;
    // What is freed of shared blocks changes their tables.
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
    if to != ALL {
        tracing::debug!(blocks, bytes, to, "freed a part of what was destroyed");
    }
    Ok(Freed { units, to })
}

fn note_volume(state: &mut State, written: &mut Written, freed: &Freed) {
    for record in [Some(&mut state.record), written.record.as_mut()].into_iter().flatten() {
        record.freed_to = freed.to;
        record.born_units = record.born_units.saturating_sub(freed.units);
        if freed.to == ALL {
            record.root = TreeRoot { height: record.root.height, ..TreeRoot::default() };
            record.freed_to = ALL;
        }
    }
}

fn note_snapshot(state: &mut State, written: &mut Written, index: usize, freed: &Freed) {
    let record = &mut state.snapshots[index].record;
    record.freed_to = freed.to;
    record.born_units = record.born_units.saturating_sub(freed.units);
    if freed.to != ALL {
        written.note(record.clone());
        return;
    }
    // What it leaves on disk, the next version has, and that is the one it counts for from now on.
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
