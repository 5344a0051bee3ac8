//! Tree diff: finds the blocks and nodes that one tree has at an index and another tree lacks
//! there.
//!
//! `dataset_diff` compares all objects of a dataset.
//!
//! Trees are copy-on-write and a block never changes its index, so equal pointers at one index have
//! equal subtrees. The diff skips equal subtrees and reads only nodes that differ.
//!
//! Invariants:
//! - results come in block order, a node after everything below it;
//! - the diff has returned exactly the results that end at or before [`TreeDiff::position`], so
//!   that a later diff can resume there.

use async_recursion::async_recursion as boxed;
use futures_util::future::join;
use weir_base::{ErrorKind, ObjectId, Txg};
use weir_block::Block;
use weir_format::{BlockPtr, NODE_FANOUT, NODE_SHIFT, PtrKind, TreeRoot};

use crate::error::PoolError;
use crate::segments::sanity::Visited;
use crate::state::lost_nodes::{Marker, Unreadable};
use crate::state::pool::Pool;
use crate::tree::kind::TreeOf;
use crate::tree::radix_tree::Tree;
use crate::tree::snapshot_chain::end_of;

/// A block or node that one tree references and the other tree does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Level of the node; 0: a block.
    pub level: u8,
    /// Index of the block or node in its level.
    pub index: u64,
    /// Pointer to the block or node; a hole if only the other tree has a block there.
    pub ptr: BlockPtr,
}

/// Specification of a tree diff; the fields are as in `DiffSpec`, for one object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeDiffSpec {
    pub(crate) object: ObjectId,
    pub(crate) root: TreeRoot,
    pub(crate) of: Option<TreeOf>,
    pub(crate) other: Option<TreeRoot>,
    pub(crate) other_of: Option<TreeOf>,
    pub(crate) after: Txg,
    /// Skips blocks and nodes that end at or before this block.
    pub(crate) from: u64,
    pub(crate) holes: bool,
}

/// Subtree of the other tree at the index of a visited block or node.
#[derive(Clone, Copy)]
enum OtherSubtree {
    Nothing,
    /// The root of a subtree and its level. The subtree starts at the first block of the visited
    /// index, but may cover only the first part of its range.
    Root(BlockPtr, u8),
}

impl OtherSubtree {
    fn of(ptr: BlockPtr, level: u8) -> Self {
        if ptr.is_hole() { Self::Nothing } else { Self::Root(ptr, level) }
    }

    fn root(self) -> Option<(BlockPtr, u8)> {
        match self {
            Self::Nothing => None,
            Self::Root(ptr, level) => Some((ptr, level)),
        }
    }

    /// True if the other tree has exactly this pointer, at the same index and level.
    fn is(self, ptr: &BlockPtr, level: u8) -> bool {
        self.root().is_some_and(|(other, its_level)| its_level == level && other == *ptr)
    }
}

/// A node whose children are being visited.
struct Frame {
    ptr: BlockPtr,
    level: u8,
    index: u64,
    node: Block,
    /// Node of the other tree at this index; `None` if that tree has a lower subtree or nothing
    /// here.
    beside: Option<Block>,
    lower: OtherSubtree,
    /// Pointer of the other tree at this index, as stored (possibly a damage marker), with its
    /// level.
    other: Option<(BlockPtr, u8)>,
    /// Blocks and nodes below this node that were born in this txg or earlier are skipped.
    after: Txg,
    slot: usize,
}

/// A tree diff in progress.
pub(crate) struct TreeDiff<'p> {
    pool: &'p Pool,
    what: TreeDiffSpec,
    started: bool,
    stack: Vec<Frame>,
    position: u64,
    /// Nodes visited so far. The diffs of the objects of a dataset share this set.
    pub(crate) met: Visited,
    /// Number of unreadable nodes. The diff skips everything below them.
    damaged: u64,
    /// Number of nodes and records that the diff did not return, because a damage marker of either
    /// tree or a partial record of the other tree may still refer to them.
    kept: u64,
    unreadable: Unreadable,
}

impl<'p> TreeDiff<'p> {
    pub(crate) fn new(pool: &'p Pool, what: TreeDiffSpec, met: Visited) -> Self {
        Self {
            pool,
            what,
            started: false,
            stack: Vec::new(),
            position: what.from,
            met,
            damaged: 0,
            kept: 0,
            unreadable: Unreadable::default(),
        }
    }

    pub(crate) fn object(&self) -> ObjectId {
        self.what.object
    }

    /// Index of the first block not yet visited.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Number of unreadable nodes. The diff skipped everything below them.
    pub(crate) fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Number of nodes and records that the diff did not return, although only this tree may
    /// reference them.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// Returns the next blocks, at most one leaf of them, and each node whose last block is among
    /// them. An empty list marks the end.
    ///
    /// # Errors
    /// The pool is suspended. Damaged nodes are counted and skipped.
    #[boxed(?Send)]
    pub(crate) async fn next(&mut self) -> Result<Vec<Found>, PoolError> {
        let mut found = Vec::new();
        if !self.started {
            self.started = true;
            let TreeRoot { ptr, height } = self.what.root;
            // The root node of the other tree is unreadable, so the other tree may reference any
            // block: return nothing.
            let Some(beside) = self.beside_root(height).await? else {
                self.position = u64::MAX;
                return Ok(found);
            };
            let after = self.what.after;
            self.visit(ptr, (height, 0), beside, after, &mut found).await?;
        }
        while let Some(frame) = self.stack.last_mut() {
            if frame.slot == NODE_FANOUT {
                let frame = self.stack.pop().expect("it is the last");
                self.leave(&frame, &mut found).await?;
                continue;
            }
            // Finish a leaf in one call. At a higher node, first return the results found so far.
            if !found.is_empty() && frame.level > 1 {
                break;
            }
            let (slot, level, after) = (frame.slot, frame.level, frame.after);
            frame.slot += 1;
            let tree = Tree::new(self.pool, self.what.root);
            let index = frame.index * NODE_FANOUT as u64 + slot as u64;
            let child = tree.pointer_below((&frame.ptr, level), &frame.node, index);
            let beside = match (&frame.beside, frame.lower) {
                (Some(node), _) => tree
                    .pointer_below((&frame.ptr, level), node, index)
                    .map(|p| OtherSubtree::of(p, level - 1)),
                (None, lower) if slot == 0 => Ok(lower),
                (None, _) => Ok(OtherSubtree::Nothing),
            };
            match (self.usable(child)?, self.usable(beside)?) {
                (Some(child), Some(beside)) => {
                    self.visit(child, (level - 1, index), beside, after, &mut found).await?;
                }
                _ => self.pass((level - 1, index)),
            }
        }
        if self.stack.is_empty() {
            self.position = u64::MAX;
        }
        Ok(found)
    }

    /// Subtree of the other tree that corresponds to the root of this tree; `None` if a damaged
    /// node hides it.
    async fn beside_root(&mut self, height: u8) -> Result<Option<OtherSubtree>, PoolError> {
        let Some(other) = self.what.other else { return Ok(Some(OtherSubtree::Nothing)) };
        let (mut ptr, mut level) = (other.ptr, other.height);
        while level > height && !ptr.is_hole() {
            let Some(node) = self.read(&ptr).await? else {
                self.pool.note_lost_in(self.what.other_of, &ptr, (level, 0));
                return Ok(None);
            };
            let below = Tree::new(self.pool, other).pointer_below((&ptr, level), &node, 0);
            let Some(below) = self.usable(below)? else { return Ok(None) };
            level -= 1;
            let Some(below) = self.resolve(below, (level, 0)).await? else { return Ok(None) };
            ptr = below;
        }
        Ok(Some(OtherSubtree::of(ptr, level)))
    }

    /// Finishes a node after everything below it was visited. The diff returns the node as a
    /// result, unless damage markers in the other tree may still refer to it.
    async fn leave(&mut self, frame: &Frame, found: &mut Vec<Found>) -> Result<(), PoolError> {
        let Frame { ptr, level, index, other, .. } = *frame;
        self.find_node(ptr, (level, index), other, found).await?;
        self.pass((level, index));
        Ok(())
    }

    async fn find_node(
        &mut self,
        ptr: BlockPtr,
        (level, index): (u8, u64),
        other: Option<(BlockPtr, u8)>,
        found: &mut Vec<Found>,
    ) -> Result<(), PoolError> {
        if let Some((other, its_level)) = other
            && self.pool.damaged_since().is_some()
        {
            let tree = Tree::new(self.pool, self.what.root);
            let marker = tree.marker_below(Some((ptr, level)), other, its_level).await?;
            if marker != Marker::None {
                self.kept += 1;
                return Ok(());
            }
        }
        found.push(Found { level, index, ptr });
        Ok(())
    }

    fn pass(&mut self, (level, index): (u8, u64)) {
        self.position = self.position.max(end_of(level, index));
    }

    /// Visits one index: skips it, returns it as a result, or enters the node.
    async fn visit(
        &mut self,
        ptr: BlockPtr,
        (level, index): (u8, u64),
        beside: OtherSubtree,
        after: Txg,
        found: &mut Vec<Found>,
    ) -> Result<(), PoolError> {
        if end_of(level, index) <= self.what.from {
            return Ok(());
        }
        if ptr.is_hole() {
            self.visit_hole((level, index), beside, found);
        } else if !beside.is(&ptr, level) && ptr.birth > after {
            let (Some(seen), Some(seen_beside)) = (
                self.resolve(ptr, (level, index)).await?,
                self.resolve_beside(beside, ptr.birth, (level, index)).await?,
            ) else {
                self.pass((level, index));
                return Ok(());
            };
            let is_own = !seen_beside.is(&seen, level) && seen.birth > after;
            if seen.is_hole() {
                self.visit_hole((level, index), seen_beside, found);
            } else if is_own && level > 0 {
                let other = beside.root();
                return self.enter(seen, (level, index), (seen_beside, other), after, found).await;
            } else if is_own && self.is_needed_beside(seen_beside, &seen).await? {
                self.kept += 1;
            } else if is_own {
                found.push(Found { level, index, ptr: seen });
            }
        }
        self.pass((level, index));
        Ok(())
    }

    /// True if the other tree has, at this index, a partial record that refers to the record `ptr`.
    async fn is_needed_beside(
        &mut self,
        beside: OtherSubtree,
        ptr: &BlockPtr,
    ) -> Result<bool, PoolError> {
        match beside {
            OtherSubtree::Root(other, 0) if other.is_partial() => {
                let replaced = self.pool.find_replaced(&other, &|rest| rest == ptr).await;
                Ok(self.usable(replaced)?.is_none_or(|replaced| replaced.is_some()))
            }
            _ => Ok(false),
        }
    }

    fn visit_hole(&self, (level, index): (u8, u64), beside: OtherSubtree, found: &mut Vec<Found>) {
        let is_news = self.what.holes
            && (self.what.other.is_none() || matches!(beside, OtherSubtree::Root(..)));
        if is_news {
            found.push(Found { level, index, ptr: BlockPtr::HOLE });
        }
    }

    /// Resolves a pointer of this tree; `None` if it is unreadable.
    async fn resolve(
        &mut self,
        ptr: BlockPtr,
        place: (u8, u64),
    ) -> Result<Option<BlockPtr>, PoolError> {
        if ptr.is_damaged() {
            // Only a recount can determine when the node that the marker names is no longer needed.
            self.kept += 1;
        }
        let tree = Tree::new(self.pool, self.what.root);
        let resolved = tree.resolve_known(ptr, place, &mut self.unreadable).await;
        self.usable(resolved)
    }

    /// Resolves the other tree's subtree for a block or node born in `birth`; `None` if it is
    /// unreadable.
    async fn resolve_beside(
        &mut self,
        beside: OtherSubtree,
        birth: Txg,
        (level, index): (u8, u64),
    ) -> Result<Option<OtherSubtree>, PoolError> {
        let OtherSubtree::Root(ptr, its_level) = beside else { return Ok(Some(beside)) };
        if !ptr.is_damaged() {
            return Ok(Some(beside));
        }
        if birth > ptr.birth {
            // All blocks and nodes below the unreadable node are older than this block or node, so
            // this one is not among them.
            return Ok(Some(OtherSubtree::Nothing));
        }
        let index = index << (NODE_SHIFT * u32::from(level - its_level));
        let tree = Tree::new(self.pool, self.what.root);
        let resolved = tree.resolve_known(ptr, (its_level, index), &mut self.unreadable).await;
        Ok(self.usable(resolved)?.map(|ptr| OtherSubtree::of(ptr, its_level)))
    }

    async fn enter(
        &mut self,
        ptr: BlockPtr,
        (level, index): (u8, u64),
        (beside, other): (OtherSubtree, Option<(BlockPtr, u8)>),
        mut after: Txg,
        found: &mut Vec<Found>,
    ) -> Result<(), PoolError> {
        if let Err(error) = self.met.note(&ptr, level) {
            tracing::error!(%error, "a tree references a node twice");
            self.damaged += 1;
            self.pass((level, index));
            return Ok(());
        }
        let beside_node = match beside {
            OtherSubtree::Root(other, its_level) if its_level == level => Some(other),
            _ => None,
        };
        let is_level = beside_node.is_some();
        let (node, beside_node) = match beside_node {
            Some(other) => {
                let (node, beside) =
                    join(self.pool.read_block(&ptr), self.pool.read_block(&other)).await;
                let beside = self.usable(beside)?;
                if beside.is_none() {
                    self.pool.note_lost_in(self.what.other_of, &other, (level, index));
                    // Blocks and nodes older than the other tree's unreadable node may be shared,
                    // so skip them.
                    after = after.max(other.birth);
                }
                (node, beside)
            }
            None => (self.pool.read_block(&ptr).await, None),
        };
        if ptr.birth <= after {
            self.pass((level, index));
            return Ok(());
        }
        match self.usable(node)? {
            Some(node) => {
                let lower = if is_level { OtherSubtree::Nothing } else { beside };
                let (beside, slot) = (beside_node, 0);
                let frame = Frame { ptr, level, index, node, beside, lower, other, after, slot };
                if level > 1 {
                    self.read_ahead(&frame).await;
                }
                self.stack.push(frame);
            }
            None => {
                self.pool.note_lost_in(self.what.of, &ptr, (level, index));
                // The node itself is a result: its pointer is known, although its children are not.
                self.find_node(ptr, (level, index), other, found).await?;
                self.pass((level, index));
            }
        }
        Ok(())
    }

    /// Reads the children that the diff will visit into the cache, all concurrently.
    async fn read_ahead(&self, frame: &Frame) {
        let tree = Tree::new(self.pool, self.what.root);
        let (of, mut wanted) = ((&frame.ptr, frame.level), Vec::new());
        for slot in 0..NODE_FANOUT as u64 {
            let index = frame.index * NODE_FANOUT as u64 + slot;
            let child = tree.pointer_below(of, &frame.node, index).unwrap_or_default();
            let beside = frame.beside.as_ref();
            let below = |node| tree.pointer_below(of, node, index).unwrap_or_default();
            let beside = beside.map_or(BlockPtr::HOLE, below);
            let is_walked = child.kind == PtrKind::Node
                && child != beside
                && child.birth > frame.after
                && end_of(frame.level - 1, index) > self.what.from;
            if is_walked {
                wanted.push(child);
                wanted.extend(beside.is_stored().then_some(beside));
            }
        }
        if wanted.len() > 1 {
            // The diff reports an unreadable node later, when it visits the node.
            drop(self.pool.read_blocks(&wanted).await);
        }
    }

    async fn read(&mut self, ptr: &BlockPtr) -> Result<Option<Block>, PoolError> {
        let node = self.pool.read_block(ptr).await;
        self.usable(node)
    }

    /// Unwraps a read result. Counts damage as an unreadable node and returns `None` for it.
    fn usable<T>(&mut self, found: Result<T, PoolError>) -> Result<Option<T>, PoolError> {
        usable(found, &mut self.damaged)
    }
}

/// Unwraps a read result. Returns `None` for damage, and counts it in `damaged`.
pub(crate) fn usable<T>(
    found: Result<T, PoolError>,
    damaged: &mut u64,
) -> Result<Option<T>, PoolError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::Data => {
            tracing::error!(%error, "the diff skips the blocks below a damaged node");
            *damaged += 1;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
