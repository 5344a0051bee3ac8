//! Block clone: turns the blocks of a range into references to the blocks of another range.
//!
//! weir-pool counts references; `volume_copy` copies whole volumes.
//!
//! Invariants:
//! - a clone is part of one txg, never of the intent log; it is acknowledged when that txg is
//!   committed;
//! - a clone reads its source in the tree of the previous txg, takes its references before the txg
//!   frees anything, and precedes the txg's writes to the destination;
//! - I22: the txg of a clone has no record of the destination that was completed with content from
//!   before the clone ([`Announced`]);
//! - a clone that cannot be made (of a damaged range, for example) fails alone; its txg succeeds.

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
use crate::state::block_clone::{BlockClone, Failure};
use crate::state::engine::Engine;
use crate::state::volume::{State, Volume};

#[cfg(test)]
pub(crate) mod tests;

const BLOCK: u64 = BLOCK_BYTES as u64;
const FANOUT: u64 = NODE_FANOUT as u64;
/// Maximum bytes that one reference adds to the reference tables.
const COUNT_BYTES: u64 = 8;

/// Records of a volume that a clone is about to replace. From the announcement until the clone is
/// durable, a partial change of one of these records waits before it loads the rest of the record
/// ([`State::is_becoming_clone`]). The engine commits after the announcement. This commit stores
/// each record whose rest was loaded before the announcement.
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
        all.swap_remove(own.expect("each is withdrawn once"));
    }
}

/// Part of a clone that one txg applies, in records.
struct Piece {
    from: u64,
    to: Range<u64>,
    size: RecordSize,
}

/// Splits a range into pieces, in an order in which no piece overwrites the source of a later
/// piece.
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
    /// Makes a range of `destination` a reference to a range of `source`, without reading or
    /// writing data. The two ranges may be in one volume and may overlap; the source may be a
    /// snapshot ([`Engine::open_snapshot`]). Long ranges are cloned in consecutive pieces of 1 GiB.
    ///
    /// The clone replaces all writes acknowledged before this call. A clone and a concurrent write
    /// to the same block apply one after the other, in either order. Once a piece is part of a txg,
    /// later writes to that piece are kept, because a txg applies its writes after its clones.
    ///
    /// # Durability
    /// The clone is on disk when this returns `Ok`. A crash before that leaves each piece complete
    /// or absent.
    ///
    /// # Errors
    /// `Unfit` for ranges that are not whole records, and for volumes of different pools or record
    /// sizes; `OutOfRange`, `ReadOnly`, `Full`; `PartLost` for a range with a partial record.
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
            let why = format!(
                "has records of {size}, and the source has records of {other}: copy its data"
            );
            return unfit(destination, &why);
        }
        let record = size.bytes() as u64;
        if [from, to, len].iter().any(|bytes| !bytes.is_multiple_of(record)) {
            return unfit(
                destination,
                &format!("clones only whole records of {size}, at record boundaries"),
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
        let _room = room.expect("never closed");
        let is_announced = self.core.pool.bug() != PlantedBug::PartsBesideClones;
        let announced = is_announced.then(|| Announced::new(destination, piece.to.clone()));
        // After these commits the trees contain all writes acknowledged before this call, which the
        // clone shares or replaces. They also contain every destination record that was completed
        // before the announcement.
        for volume in [source, destination] {
            let unwritten = {
                let state = volume.state.lock();
                state.object.has_unwritten().then(|| self.core.open_txg())
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

    /// Adds a piece to the open txg; the destination of the piece is already announced. `None`: a
    /// commit must come first.
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
        let clone = BlockClone { source, from, to: to.clone(), size, charge, failed };
        if !destination.admit_clone(&state, &clone)? {
            return Ok(None);
        }
        self.core.add_dirty(0, charge);
        state.cloning_bytes += clone.weight();
        state.clones.push(clone);
        Ok(Some(self.core.open_txg()))
    }

    /// Commits until `txg` is committed. Returns at once if `txg` is already committed.
    pub(crate) async fn commit_through(&self, txg: Txg) -> Result<(), DatasetError> {
        self.core.want(txg);
        while self.core.pool.committed_txg() < txg {
            self.commit().await?;
        }
        Ok(())
    }

    /// Takes the references for a txg's clones into one volume, before anything is freed.
    ///
    /// # Errors
    /// The txg has failed. A clone that cannot be made fails only its own call.
    pub(crate) async fn take_references(
        &self,
        out: &mut WriteOut<'_>,
        part: &mut Frozen,
    ) -> Result<(), PoolError> {
        let mut covered = RangeSet::default();
        // Of two clones in one txg, the later request has priority.
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

    /// Collects the references that a clone makes, and its changes to the destination's tree where
    /// no later change covers the clone.
    async fn look_up(
        &self,
        clone: &BlockClone,
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
                // Do not share damage: which blocks are below a damage marker is unknown.
                let ptr = tree.record_at(ptr, record).await?;
                pool.check_record(&ptr, clone.size)?;
                // Do not share a partial record: no reference count covers the record that it
                // replaced.
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
    /// True if the content of a block comes from a block clone that no commit has stored.
    pub(crate) fn is_becoming_clone(&self, block: u64) -> bool {
        let none = self.clones.is_empty() && self.syncing_clones.is_empty();
        if none && self.announced_clones.is_empty() {
            return false;
        }
        // A txg applies its writes after its clones, so a block that it writes has the written
        // content.
        let record = self.record.record_size.record_of(block);
        let is_clone = |range: &Range<u64>| range.contains(&record);
        let is_written = |table: &DirtyTable| table.get(block).is_some();
        if is_written(&self.object.open) {
            return false;
        }
        self.announced_clones.iter().any(is_clone)
            || self.clones.iter().any(|clone| is_clone(&clone.to))
            || (!self.object.syncing.as_deref().is_some_and(is_written)
                && self.syncing_clones.iter().any(is_clone))
    }
}

/// Adds to `covered` the destination records of a clone that the txg also writes.
fn cover(covered: &mut RangeSet, table: &DirtyTable, BlockClone { to, size, .. }: &BlockClone) {
    let blocks = size.blocks_of(to);
    for block in table.data_within(&blocks) {
        let record = size.record_of(block);
        covered.insert(record..record + 1);
    }
    for holes in table.holes_within(blocks) {
        covered.insert(size.touched(&holes));
    }
}

/// Tree changes that a clone makes to records not covered by a later write: references, and the
/// holes between them.
struct Made {
    range: Range<u64>,
    /// Records of the destination that no later write covers.
    open: RangeSet,
    /// All records before this one are already in `changes` or in `run`.
    at: u64,
    /// References for the records directly before `at`, all in one leaf.
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

    /// Makes a record a reference if no later write covers it. Records come in ascending order.
    fn refer(&mut self, record: u64, ptr: BlockPtr) {
        if record != self.at || record.is_multiple_of(FANOUT) {
            self.leave_holes(record);
        }
        self.run.push(ptr);
        self.at = record + 1;
    }

    /// Ends the run of references, and makes the uncovered records up to `to` holes.
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
