//! Dataset diff: finds the blocks and nodes, in all objects, that one version of a dataset has and
//! another version lacks. Callers free snapshots, account for space and send changes.
//!
//! `diff` compares the trees of one object.
//!
//! A block of the object table has the tree roots of four objects. If both versions have the same
//! block, they have the same four objects, and the diff skips these objects.
//!
//! Invariants:
//! - results come in the order of [`Place`];
//! - the diff has returned exactly the results before [`DatasetDiff::position`], so that a later
//!   diff can resume there.

use std::collections::VecDeque;
use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::{ObjectId, Txg};
use weir_block::Block;
use weir_format::{BlockPtr, OBJECT_SLOTS_PER_BLOCK, TreeRoot};

use crate::error::PoolError;
use crate::segments::sanity::Visited;
use crate::state::pool::Pool;
use crate::tree::diff::{Found, TreeDiff, TreeDiffSpec, usable};
use crate::tree::kind::TreeOf;
use crate::tree::place::{Objects, Place};
use crate::tree::radix_tree::Tree;
use crate::tree::snapshot_chain::end_of;

/// Number of blocks of the object table that are read ahead together.
const SLOT_BLOCKS_AHEAD: usize = 32;

/// Specification of a dataset diff.
#[derive(Clone, Copy, Debug)]
pub struct DiffSpec {
    /// Objects of both versions.
    pub objects: Objects,
    /// Tree of the version whose blocks and nodes the diff returns: the volume's tree or the object
    /// table.
    pub root: TreeRoot,
    /// Version that clients see in this tree; the diff names it when it adds an unreadable node to
    /// the list of permanent errors. `None`: the diff adds no node, because no client sees the tree
    /// or because the caller adds the nodes.
    pub of: Option<TreeOf>,
    /// The tree to compare with, if any.
    pub other: Option<TreeRoot>,
    /// Version that clients see in the other tree; used like `of`.
    pub other_of: Option<TreeOf>,
    /// Skips blocks and nodes born in this txg or earlier.
    pub after: Txg,
    /// Skips blocks and nodes before this place.
    pub from: Place,
    /// True if the result includes holes. With another tree: the holes of this tree where the other
    /// tree has a block. Without another tree: all holes of changed nodes. An object that only the
    /// other version has adds no hole.
    pub holes: bool,
}

impl DiffSpec {
    /// Selects all blocks and nodes of one version born after `after`.
    pub fn of_tree(objects: Objects, root: TreeRoot, of: Option<TreeOf>, after: Txg) -> Self {
        let from = Place::START;
        Self { objects, root, of, other: None, other_of: None, after, from, holes: false }
    }
}

/// Sum of the sizes of the results of a diff.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// Space on disk, in units of 64 bytes.
    pub units: u64,
    /// True if no unreadable node hid any result.
    pub is_whole: bool,
}

/// A block of the object table whose objects are being compared.
struct SlotBlock {
    found: Found,
    /// Content of the block; `None` if the block is unreadable, or if its objects are not compared.
    own: Option<Block>,
    /// Block of the other version at the same index, with its pointer; `None` if the other version
    /// has no block there, or if the block is unreadable.
    beside: Option<(BlockPtr, Block)>,
    /// The comparison skips blocks born in this txg or earlier.
    after: Txg,
    /// Objects not compared yet.
    left: Range<u64>,
}

/// A dataset diff in progress.
pub struct DatasetDiff<'p> {
    pool: &'p Pool,
    what: DiffSpec,
    /// Diff of the volume or of the object table.
    table: TreeDiff<'p>,
    /// Results of `table` that are not returned yet.
    pending: VecDeque<Found>,
    /// Number of blocks in `pending` that were read ahead.
    read_ahead: usize,
    slots: Option<SlotBlock>,
    /// Diff of one object of `slots`.
    object: Option<TreeDiff<'p>>,
    /// Nodes of objects visited so far.
    met: Visited,
    position: Place,
    /// Object of the last results.
    last: ObjectId,
    /// Number of unreadable slots, and of unreadable nodes in the objects whose diffs have
    /// finished.
    damaged: u64,
    /// Number of nodes and records that finished diffs of objects did not return, although only
    /// this version may reference them.
    kept: u64,
}

impl Pool {
    /// Starts a diff of two versions of a dataset.
    pub fn unshared(&self, what: DiffSpec) -> DatasetDiff<'_> {
        let DiffSpec { objects, root, of, other, other_of, after, from, holes } = what;
        let object = ObjectId::VOLUME;
        let first = from.within(object, objects);
        let table = TreeDiffSpec { object, root, of, other, other_of, after, from: first, holes };
        DatasetDiff {
            pool: self,
            what,
            table: TreeDiff::new(self, table, Visited::default()),
            pending: VecDeque::new(),
            read_ahead: 0,
            slots: None,
            object: None,
            met: Visited::default(),
            position: from,
            last: ObjectId::VOLUME,
            damaged: 0,
            kept: 0,
        }
    }
}

impl<'p> DatasetDiff<'p> {
    /// First place not yet visited; [`Place::END`] at the end.
    pub fn position(&self) -> Place {
        self.position
    }

    /// Object of the results that [`Self::next`] returned last.
    pub fn object(&self) -> ObjectId {
        self.last
    }

    /// Number of unreadable nodes and slots. The diff skipped everything below them.
    pub fn damaged(&self) -> u64 {
        let object = self.object.as_ref().map_or(0, TreeDiff::damaged);
        self.damaged + self.table.damaged() + object
    }

    /// True if the diff may have missed blocks or nodes that only this version references. A
    /// recount finds the missed ones.
    pub fn leaves_something(&self) -> bool {
        let object = self.object.as_ref().map_or(0, TreeDiff::kept);
        self.damaged() + self.kept + self.table.kept() + object > 0
    }

    /// Returns the next blocks of one object, at most one leaf of them, and each node whose last
    /// block is among them. An empty list marks the end.
    ///
    /// # Errors
    /// The pool is suspended. Damaged nodes are counted and skipped.
    pub async fn next(&mut self) -> Result<Vec<Found>, PoolError> {
        match self.what.objects {
            Objects::One => {
                let found = self.table.next().await?;
                self.position = Place::in_volume(self.table.position());
                Ok(found)
            }
            Objects::Many => self.next_of_many().await,
        }
    }

    /// Adds up all remaining results.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn units(mut self) -> Result<Units, PoolError> {
        let mut units = 0;
        loop {
            let found = self.next().await?;
            if found.is_empty() {
                return Ok(Units { units, is_whole: !self.leaves_something() });
            }
            units += found.iter().map(|found| u64::from(found.ptr.stored_units)).sum::<u64>();
        }
    }

    #[boxed(?Send)]
    async fn next_of_many(&mut self) -> Result<Vec<Found>, PoolError> {
        loop {
            if let Some(diff) = &mut self.object {
                let found = diff.next().await?;
                self.position = Place { object: diff.object(), block: diff.position() };
                if !found.is_empty() {
                    self.last = diff.object();
                    return Ok(found);
                }
                self.end_object();
            } else if let Some(slots) = &mut self.slots {
                if let Some(object) = slots.left.next() {
                    self.object = self.begin_object(ObjectId(object))?;
                    continue;
                }
                let found = slots.found;
                self.slots = None;
                return Ok(self.with_nodes(found));
            } else if let Some(found) = self.pending.pop_front() {
                if has_slots(&found) {
                    self.read_ahead(&found).await;
                    self.slots = Some(self.read_slots(found).await?);
                    continue;
                }
                return Ok(self.with_nodes(found));
            } else {
                self.pending = self.table.next().await?.into();
                if self.pending.is_empty() {
                    self.position = Place::END;
                    return Ok(Vec::new());
                }
            }
        }
    }

    /// Returns `first`, a block or node of the object table, and the nodes that follow it in the
    /// results before the next block.
    fn with_nodes(&mut self, first: Found) -> Vec<Found> {
        let mut found = vec![first];
        while let Some(node) = self.pending.pop_front_if(|next| next.level > 0) {
            found.push(node);
        }
        self.last = ObjectId::TABLE;
        let last = found[found.len() - 1];
        self.position = Place::of_slots(end_of(last.level, last.index));
        found
    }

    fn end_object(&mut self) {
        let Some(diff) = self.object.take() else { return };
        self.damaged += diff.damaged();
        self.kept += diff.kept();
        self.position = Place { object: ObjectId(diff.object().0 + 1), block: 0 };
        self.met = diff.met;
    }

    /// Reads a block of the object table, the pending blocks after it, and their counterparts in
    /// the other version into the cache, all concurrently.
    async fn read_ahead(&mut self, first: &Found) {
        if self.read_ahead > 0 {
            self.read_ahead -= 1;
            return;
        }
        let pending = self.pending.iter().filter(|found| has_slots(found));
        let wanted = std::iter::once(first).chain(pending).take(SLOT_BLOCKS_AHEAD);
        let wanted: Vec<Found> = wanted.copied().collect();
        self.read_ahead = wanted.len() - 1;
        if wanted.len() == 1 {
            return;
        }
        let mut ptrs = Vec::new();
        for found in wanted {
            ptrs.push(found.ptr);
            if let Some(other) = self.what.other
                && let Ok(beside) = Tree::new(self.pool, other).lookup(found.index).await
                && !beside.is_hole()
            {
                ptrs.push(beside);
            }
        }
        // The diff reports an unreadable block later, when it reads the block's slots.
        drop(self.pool.read_blocks(&ptrs).await);
    }

    /// Reads a block of the object table and its counterpart in the other version.
    async fn read_slots(&mut self, found: Found) -> Result<SlotBlock, PoolError> {
        let first = Place::of_slots(found.index).object.0;
        let left = first.max(1)..first + OBJECT_SLOTS_PER_BLOCK as u64;
        let mut slots = SlotBlock { found, own: None, beside: None, after: self.what.after, left };
        let own = self.pool.read_block(&found.ptr).await;
        slots.own = self.usable(own)?;
        if slots.own.is_none() {
            self.pool.note_lost_in(self.what.of, &found.ptr, (0, found.index));
            return Ok(slots);
        }
        let Some(other) = self.what.other else { return Ok(slots) };
        let ptr = Tree::new(self.pool, other).lookup(found.index).await;
        match self.usable(ptr)? {
            // The other version is unreadable here, so it may share any block below this one:
            // return none of them.
            None => slots.own = None,
            Some(ptr) if ptr.is_hole() => {}
            Some(ptr) => {
                let block = self.pool.read_block(&ptr).await;
                slots.beside = self.usable(block)?.map(|block| (ptr, block));
                if slots.beside.is_none() {
                    self.pool.note_lost_in(self.what.other_of, &ptr, (0, found.index));
                    // The other version may share every block born no later than its unreadable
                    // block.
                    slots.after = slots.after.max(ptr.birth);
                }
            }
        }
        Ok(slots)
    }

    /// Starts the diff of an object whose slot is in the current block of the object table; `None`
    /// if the diff would find nothing.
    fn begin_object(&mut self, object: ObjectId) -> Result<Option<TreeDiff<'p>>, PoolError> {
        let Some(SlotBlock { found, own: Some(own), beside, after, .. }) = &self.slots else {
            return Ok(None);
        };
        let mut after = *after;
        let root = self.pool.root_in_slot(&found.ptr, own, object);
        let other = beside
            .as_ref()
            .map(|(ptr, block)| (ptr.birth, self.pool.root_in_slot(ptr, block, object)));
        let Some(root) = self.usable(root)? else { return Ok(None) };
        let other = match other {
            None => None,
            Some((birth, other)) => {
                let other = self.usable(other)?;
                if other.is_none() {
                    after = after.max(birth);
                }
                other
            }
        };
        let from = self.what.from.within(object, Objects::Many);
        if root.ptr.is_hole() || Some(root) == other || from == u64::MAX {
            return Ok(None);
        }
        let in_object = |of: Option<TreeOf>| of.map(|of| TreeOf { object, ..of });
        let what = TreeDiffSpec {
            object,
            root,
            of: in_object(self.what.of),
            other,
            other_of: in_object(self.what.other_of),
            after,
            from,
            holes: self.what.holes,
        };
        Ok(Some(TreeDiff::new(self.pool, what, std::mem::take(&mut self.met))))
    }

    /// Unwraps a read result. Counts damage and returns `None` for it.
    fn usable<T>(&mut self, found: Result<T, PoolError>) -> Result<Option<T>, PoolError> {
        usable(found, &mut self.damaged)
    }
}

/// True for a stored block of the object table.
fn has_slots(found: &Found) -> bool {
    found.level == 0 && !found.ptr.is_hole()
}
