//! Cloning a range: blocks of one volume become references to those of another, and no data moves.
//!
//! Not here: counting references (weir-pool), copying a volume as a whole (copy).
//!
//! Invariants:
//! - a clone is part of one txg, never of the intent log: it is acknowledged when that is
//!   committed;
//! - the source is read as the txg before left it, the references to it are made before the txg
//!   frees anything, and what the txg itself wrote to the destination comes after: ranges may
//!   overlap, and a write that is acknowledged while a clone is under way is kept;
//! - the txg of a clone never holds a record of its destination that was filled up with what was
//!   there before the clone: a change of a part of a record waits from before the commit that
//!   precedes the clone ([`Announced`]) until the clone is durable;
//! - what cannot be cloned, such as a range with damage, fails by itself, not the txg.

use std::ops::Range;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::limits::CLONE_PIECE_BLOCKS;
use weir_base::{BLOCK_BYTES, RecordSize, Txg};
use weir_format::{BlockPtr, NODE_FANOUT};
use weir_pool::{Change, PlantedBug, PoolError, Shared, Sharing, Tree, WriteOut};

use crate::commit::txg::Frozen;
use crate::error::DatasetError;
use crate::objects::dirty::DirtyTable;
use crate::objects::range_set::RangeSet;
use crate::state::block_clone::{Failure, RangeClone};
use crate::state::engine::Engine;
use crate::state::volume::{State, Volume};

#[cfg(test)]
pub(crate) mod tests;

const BLOCK: u64 = BLOCK_BYTES as u64;
const FANOUT: u64 = NODE_FANOUT as u64;
/// What a reference adds to the tables that count, at most.
const COUNT_BYTES: u64 = 8;

/// Records of a volume that a clone is about to replace. From now on no change of a part of them
/// brings the rest into the open txg: it waits until the clone is committed.
struct Announced<'a> {
    volume: &'a Volume,
    records: Range<u64>,
}

impl<'a> Announced<'a> {
    fn new(volume: &'a Volume, records: Range<u64>) -> Self {
        volume.state.lock().announced_clones.push(records.clone());
        Self { volume, records }
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let mut state = self.volume.state.lock();
        let all = &mut state.announced_clones;
        let own = all.iter().position(|records| *records == self.records);
        all.swap_remove(own.expect("each is taken back once"));
    }
}

/// A piece that one txg clones, in records.
struct Piece {
    from: u64,
    to: Range<u64>,
    size: RecordSize,
}

/// The pieces of a range in an order in which each finds its source as it was before all of them.
fn pieces(size: RecordSize, from: u64, to: u64, count: u64, backwards: bool) -> Vec<Piece> {
    let most = CLONE_PIECE_BLOCKS / size.blocks();
    let starts = (0..count).step_by(most as usize);
    let mut pieces: Vec<Piece> = starts
        .map(|at| {
            let end = count.min(at + most);
            Piece { from: from + at, to: to + at..to + end, size }
        })
        .collect();
    if backwards {
        pieces.reverse();
    }
    pieces
}

impl Engine {
    /// Makes a range of `destination` what a range of `source` is, by reference: no data is read
    /// or written. Both may be ranges of one volume, and overlap; a source may be a snapshot
    /// ([`Engine::open_snapshot`]). Long ranges become so a piece of 1 GiB after the other.
    ///
    /// What was acknowledged before this call is replaced. Of a block that is written while this is
    /// under way either may come last, whole; once a piece is part of a txg, what is written to it
    /// is kept.
    ///
    /// # Durability
    /// On disk when this returns `Ok`; before, each piece whole or not at all.
    ///
    /// # Errors
    /// `Unfit` for ranges that are not whole records, and for volumes of different pools or with
    /// records of different sizes; `OutOfRange`, `ReadOnly`, `Full`; `PartLost` for a range with a
    /// partial record.
    #[boxed(?Send)]
    pub async fn clone_range(
        &self,
        source: &Arc<Volume>,
        from: u64,
        destination: &Arc<Volume>,
        to: u64,
        len: u64,
    ) -> Result<(), DatasetError> {
        self.core.pool.check_alive()?;
        let unfit = |volume: &Volume, why: &str| {
            let name = volume.full_name(&volume.state.lock());
            Err(DatasetError::Unfit { name, why: why.to_owned() })
        };
        for volume in [source, destination] {
            if !Arc::ptr_eq(&volume.core, &self.core) {
                return unfit(volume, "is in another pool: copy its data");
            }
        }
        let (size, other) = (destination.record_size(), source.record_size());
        if size != other {
            let why = format!("has records of {size}, and the source of {other}: copy its data");
            return unfit(destination, &why);
        }
        let record = size.bytes() as u64;
        if [from, to, len].iter().any(|bytes| !bytes.is_multiple_of(record)) {
            return unfit(
                destination,
                &format!("shares whole records of {size}, where they begin"),
            );
        }
        source.check(&source.state.lock(), from, len)?;
        destination.check_change(&destination.state.lock(), to, len)?;
        let backwards = Arc::ptr_eq(source, destination) && to > from;
        for piece in pieces(size, from / record, to / record, len / record, backwards) {
            self.clone_piece(source, destination, piece).await?;
        }
        Ok(())
    }

    async fn clone_piece(
        &self,
        source: &Arc<Volume>,
        destination: &Arc<Volume>,
        piece: Piece,
    ) -> Result<(), DatasetError> {
        let count = piece.to.end - piece.to.start;
        let room = self.clone_room.acquire_many(count as u32).await;
        let _room = room.expect("nobody closes it");
        let is_announced = self.core.pool.bug() != PlantedBug::PartsBesideClones;
        let announced = is_announced.then(|| Announced::new(destination, piece.to.clone()));
        // What was acknowledged before is in the trees then: to be shared, or to be replaced. So
        // is every record of the destination that was filled up before it was announced.
        for volume in [source, destination] {
            let unwritten = {
                let state = volume.state.lock();
                state.has_unwritten().then(|| self.core.open_txg())
            };
            if let Some(txg) = unwritten {
                self.commit_through(txg).await?;
            }
        }
        let failed = Failure::default();
        let txg = loop {
            let asked = self.ask_for_clone(source, destination, &piece, &failed)?;
            match asked {
                Some(txg) => break txg,
                None => self.commit_through(self.core.open_txg()).await?,
            }
        };
        drop(announced);
        self.commit_through(txg).await?;
        let failure = failed.lock().take();
        failure.map_or(Ok(()), Err)
    }

    /// Makes a piece, whose destination was announced, part of the open txg, unless it has to wait
    /// for a commit.
    fn ask_for_clone(
        &self,
        source: &Arc<Volume>,
        destination: &Volume,
        piece: &Piece,
        failed: &Failure,
    ) -> Result<Option<Txg>, DatasetError> {
        self.core.pool.check_alive()?;
        let blocks = piece.size.blocks_of(&piece.to);
        let (len, records) = (blocks.end - blocks.start, piece.to.end - piece.to.start);
        let mut state = destination.state.lock();
        destination.check_change(&state, blocks.start * BLOCK, len * BLOCK)?;
        let charge = state.nodes().of(len) * BLOCK + records * COUNT_BYTES;
        let (source, failed) = (Arc::clone(source), Arc::clone(failed));
        let Piece { from, ref to, size } = *piece;
        let clone = RangeClone { source, from, to: to.clone(), size, charge, failed };
        if !destination.admit_clone(&state, &clone)? {
            return Ok(None);
        }
        self.core.add_dirty(0, charge);
        state.cloning_bytes += clone.weight();
        state.clones.push(clone);
        Ok(Some(self.core.open_txg()))
    }

    /// Commits until this txg is, which may need nothing more.
    pub(crate) async fn commit_through(&self, txg: Txg) -> Result<(), DatasetError> {
        self.core.want(txg);
        while self.core.pool.committed_txg() < txg {
            self.commit().await?;
        }
        Ok(())
    }

    /// Makes the references that the clones of a txg into one volume are, before anything is freed.
    ///
    /// # Errors
    /// The txg has failed. A clone that cannot be made has its own error.
    pub(crate) async fn take_references(
        &self,
        out: &mut WriteOut<'_>,
        part: &mut Frozen,
    ) -> Result<(), PoolError> {
        let mut covered = RangeSet::default();
        // Of two that are asked for together, the later one comes after.
        for clone in part.clones.iter().rev() {
            if let Some(table) = &part.table {
                cover(&mut covered, table, clone);
            }
            match self.look_up(clone, part, (&covered, out.txg)).await {
                Ok((sharing, changes)) => {
                    out.share(&sharing).await?;
                    if part.cloned.is_empty() {
                        part.cloned = changes;
                    } else {
                        part.cloned.extend(changes);
                    }
                    covered.insert(clone.to.clone());
                }
                Err(error) => clone.fail(error),
            }
        }
        Ok(())
    }

    /// What a clone refers to, and what it makes of the destination's tree where that is not
    /// covered by something later.
    async fn look_up(
        &self,
        clone: &RangeClone,
        part: &Frozen,
        (covered, txg): (&RangeSet, Txg),
    ) -> Result<(Sharing, Vec<Change>), DatasetError> {
        let pool = &self.core.pool;
        let destroyed = |volume: &Volume, state: &State| {
            Err(DatasetError::Destroyed { name: volume.full_name(state) })
        };
        if part.is_destroyed || clone.to.end > clone.size.records_in(part.record.size_bytes) {
            return destroyed(&part.volume, &part.volume.state.lock());
        }
        let root = {
            let state = clone.source.state.lock();
            if state.is_destroyed() {
                return destroyed(&clone.source, &state);
            }
            state.record.root
        };
        let count = clone.to.end - clone.to.start;
        let tree = Tree::new(pool, root);
        let leaves = tree.leaves(clone.from..clone.from + count).await;
        let blocks = clone.size.blocks_of(&(clone.from..clone.from + count));
        let leaves = clone.source.noted_node(blocks, leaves.map_err(DatasetError::from)).await?;
        let mut made = Made::new(&clone.to, covered);
        let (mut shared, is_open) = (Vec::with_capacity(count as usize), covered.is_empty());
        for (base, of, leaf) in &leaves {
            let records = clone.from.max(*base)..(clone.from + count).min(base + FANOUT);
            for record in records {
                let ptr = tree.pointer_in(of, leaf, record)?;
                // Damage is not shared: nothing could be said of the references below it.
                let ptr = tree.record_at(ptr, record).await?;
                pool.check_record(&ptr, clone.size)?;
                // No reference count covers the record that a partial record replaced.
                pool.refuse_partial(&ptr)?;
                let record = record - clone.from + clone.to.start;
                if !ptr.is_hole() && (is_open || !covered.contains(record)) {
                    shared.push(Shared::from(&ptr));
                    made.refer(record, ptr.shared_in(txg));
                }
            }
        }
        let sharing = Sharing::new(shared);
        pool.check_share(&sharing).await?;
        Ok((sharing, made.finish()))
    }
}

impl State {
    /// Whether something that was acknowledged is not in the committed tree yet. No clone is: those
    /// that are under way at the same time join one txg.
    fn has_unwritten(&self) -> bool {
        !self.open.is_empty() || self.syncing.is_some()
    }

    /// Whether a clone that is not in the tree yet makes a block what it will be.
    pub(crate) fn is_becoming_clone(&self, block: u64) -> bool {
        let none = self.clones.is_empty() && self.syncing_clones.is_empty();
        if none && self.announced_clones.is_empty() {
            return false;
        }
        // What a txg writes comes after its clones.
        let record = self.record.record_size.record_of(block);
        let is_clone = |range: &Range<u64>| range.contains(&record);
        let is_written = |table: &DirtyTable| table.get(block).is_some();
        if is_written(&self.open) {
            return false;
        }
        self.announced_clones.iter().any(is_clone)
            || self.clones.iter().any(|clone| is_clone(&clone.to))
            || (!self.syncing.as_deref().is_some_and(is_written)
                && self.syncing_clones.iter().any(is_clone))
    }
}

/// Adds the records that a txg wrote where a clone goes.
fn cover(covered: &mut RangeSet, table: &DirtyTable, RangeClone { to, size, .. }: &RangeClone) {
    let blocks = size.blocks_of(to);
    for block in table.data_within(&blocks) {
        let record = size.record_of(block);
        covered.insert(record..record + 1);
    }
    for holes in table.holes_within(blocks) {
        covered.insert(size.touched(&holes));
    }
}

/// What a clone makes of its range, but for what is covered, as changes of a txg: references, and
/// holes between them.
struct Made {
    range: Range<u64>,
    /// What is not covered.
    open: RangeSet,
    /// Up to here everything is among the changes, or in the run that follows.
    at: u64,
    /// References to be, before `at`: neighbours in one leaf.
    run: Vec<BlockPtr>,
    changes: Vec<Change>,
}

impl Made {
    fn new(range: &Range<u64>, covered: &RangeSet) -> Self {
        let mut open = RangeSet::default();
        open.insert(range.clone());
        covered.within(range.clone()).for_each(|covered| open.remove(covered));
        let (run, changes) = (Vec::with_capacity(NODE_FANOUT), Vec::new());
        Self { range: range.clone(), open, at: range.start, run, changes }
    }

    /// A record that is not covered becomes a reference; records come in order.
    fn refer(&mut self, record: u64, ptr: BlockPtr) {
        if record != self.at || record.is_multiple_of(FANOUT) {
            self.leave_holes(record);
        }
        self.run.push(ptr);
        self.at = record + 1;
    }

    /// Ends the run; what is not covered from there to a record becomes holes.
    fn leave_holes(&mut self, to: u64) {
        if !self.run.is_empty() {
            self.changes.push(Change::run(self.at - self.run.len() as u64, &self.run));
            self.run.clear();
        }
        self.changes.extend(self.open.within(self.at..to).map(Change::hole));
        self.at = to;
    }

    fn finish(mut self) -> Vec<Change> {
        self.leave_holes(self.range.end);
        self.changes
    }
}
