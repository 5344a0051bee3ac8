//! Copy-on-write radix trees of block pointers: the map of a volume, the segment table and the
//! dataset directory.
//!
//! Not here: who calls it when. Readers walk a root they hold; nothing under it ever changes.
//!
//! What the lowest nodes point to is called a block here; of a volume it is a record, which is a
//! block or more, and numbers count these.
//!
//! Invariants:
//! - a changed node is written anew, with all nodes above it; an old node is freed, not touched;
//! - a node of holes only is no node: its parent has a hole there;
//! - I8: a child's birth is at most its parent's.

use std::ops::{AddAssign, Range};
use std::pin::Pin;

use futures_util::StreamExt as _;
use weir_base::limits::NODE_READS_IN_FLIGHT;
use weir_base::{BLOCK_BYTES, DatasetId, ErrorKind, Txg};
use weir_device::{Block, BlockMut};
use weir_format::{
    BlockOwner, BlockPtr, Compression, FormatError, NODE_FANOUT, NODE_SHIFT, PtrKind, SegmentClass,
    TreeRoot, node_pointer, set_node_pointer,
};

use crate::change::{Becomes, Change, within};
use crate::error::PoolError;
use crate::line::{Held, end_of};
use crate::pack::{CompressHistory, RawRecord};
use crate::pool::Pool;
use crate::write_out::WriteOut;

/// What a set of changes did to a tree's use of space: gained less lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Blocks of 4 KiB.
    pub blocks: i64,
    /// Stored units, nodes not counted.
    pub stored_units: i64,
    /// Of those, what was there before and is referred to.
    pub shared_units: i64,
    /// Stored units, nodes included.
    pub tree_units: i64,
    /// Of those, what was born after everything earlier versions hold: what is not freed leaves
    /// them behind.
    pub born_units: i64,
    /// Freed of a version that is being destroyed: it was passed there, so nothing else holds it.
    pub leaving_units: i64,
    /// What the newest snapshot has for itself now that the tree has it no more.
    pub unique_units: i64,
    /// What was inherited from the line it was cloned from.
    pub inherited_units: i64,
}

impl Delta {
    pub(crate) fn gain(&mut self, ptr: &BlockPtr) {
        self.count(ptr, 1);
        if !ptr.is_hole() {
            self.born_units += i64::from(ptr.stored_units);
        }
    }

    fn count(&mut self, ptr: &BlockPtr, sign: i64) {
        if ptr.is_hole() {
            return;
        }
        let units = sign * i64::from(ptr.stored_units);
        self.tree_units += units;
        if ptr.kind == PtrKind::Data {
            self.blocks += sign * ptr.record.blocks().cast_signed();
            self.stored_units += units;
            self.shared_units += if ptr.shared { units } else { 0 };
        }
    }
}

impl AddAssign for Delta {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.stored_units += other.stored_units;
        self.shared_units += other.shared_units;
        self.tree_units += other.tree_units;
        self.born_units += other.born_units;
        self.leaving_units += other.leaving_units;
        self.unique_units += other.unique_units;
        self.inherited_units += other.inherited_units;
    }
}

/// The versions before a tree that is changed, and when they ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Past {
    /// What they lead to as well: it is not freed with its last place in the tree.
    pub held: Held,
    /// The newest one's txg, also if it is being destroyed.
    pub newest: Txg,
    /// The txg of the one before that.
    pub before_newest: Txg,
    /// What was born up to here was inherited from another line.
    pub inherits: Txg,
}

/// Which stream takes the nodes of a tree, and what summaries say of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeHome {
    /// The pool's own trees: single-referenced, rewritten as a whole, never cleaned.
    Root,
    /// A dataset's tree.
    Dataset(DatasetId),
}

impl TreeHome {
    fn class(self) -> SegmentClass {
        match self {
            Self::Root => SegmentClass::Root,
            Self::Dataset(_) => SegmentClass::Meta,
        }
    }

    fn owner(self, level: u8, index: u64) -> Option<BlockOwner> {
        match self {
            Self::Root => None,
            Self::Dataset(dataset) => Some(BlockOwner { dataset, level, index }),
        }
    }
}

/// Where a lookup in cached nodes ended.
#[derive(Clone, Debug)]
pub enum Leaf {
    /// The node that holds the pointers of the block and its 127 neighbours.
    Node(Block),
    /// There is none: all of them are holes.
    Hole,
    /// The tree has no nodes; this is the one block's own pointer.
    Root(BlockPtr),
    /// A node that must be read first.
    Unknown,
}

/// A tree as of one root.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) root: TreeRoot,
}

/// Subtrees of this height are read ahead as a whole before they are changed: at most 16,512 nodes,
/// and many enough that random changes to a large volume read their leaves side by side.
const WARM_LEVEL: u8 = 3;

/// Nodes that a lookup of many pointers reads at the same time: 4 MiB.
const NODES_TOGETHER: usize = 1024;

/// Blocks under one pointer at `level` (0 = the block itself).
const fn span(level: u8) -> u64 {
    TreeRoot::capacity(level)
}

fn slot_of(block: u64, level: u8) -> usize {
    (block >> (NODE_SHIFT * u32::from(level - 1))) as usize % NODE_FANOUT
}

impl<'a> Tree<'a> {
    /// The tree under `root`.
    pub fn new(pool: &'a Pool, root: TreeRoot) -> Self {
        Self { pool, root }
    }

    pub(crate) fn slot(&self, node: &Block, index: usize) -> Result<BlockPtr, PoolError> {
        node_pointer(node, index).map_err(|source| self.damaged(source))
    }

    fn damaged(&self, source: FormatError) -> PoolError {
        PoolError::Structure { pool: self.pool.name().to_owned(), what: "tree node", source }
    }

    /// The leaf node of a block, from cached nodes only.
    pub fn leaf_cached(&self, block: u64) -> Result<Leaf, PoolError> {
        if block >= span(self.root.height) {
            return Ok(Leaf::Hole);
        }
        let mut ptr = self.root.ptr;
        for level in (1..=self.root.height).rev() {
            if ptr.is_hole() {
                return Ok(Leaf::Hole);
            }
            let Some(node) = self.pool.cached(&ptr, 0) else { return Ok(Leaf::Unknown) };
            if level == 1 {
                return Ok(Leaf::Node(node));
            }
            ptr = self.slot(&node, slot_of(block, level))?;
        }
        Ok(Leaf::Root(ptr))
    }

    /// A block's pointer in its leaf node.
    pub fn pointer_in(&self, leaf: &Block, block: u64) -> Result<BlockPtr, PoolError> {
        self.slot(leaf, slot_of(block, 1))
    }

    /// Looks a block up, reading nodes as needed.
    pub async fn lookup(&self, block: u64) -> Result<BlockPtr, PoolError> {
        self.pointer_at(0, block).await
    }

    /// The pointer to a block (`level` 0) or node by its position in its level, reading nodes above
    /// it as needed; a hole where there is none.
    pub async fn pointer_at(&self, level: u8, index: u64) -> Result<BlockPtr, PoolError> {
        if level > self.root.height || index >= span(self.root.height - level) {
            return Ok(BlockPtr::HOLE);
        }
        let block = index << (NODE_SHIFT * u32::from(level));
        let mut ptr = self.root.ptr;
        for above in (level + 1..=self.root.height).rev() {
            if ptr.is_hole() {
                break;
            }
            let node = self.pool.read_block(&ptr).await?;
            ptr = self.slot(&node, slot_of(block, above))?;
        }
        Ok(ptr)
    }

    /// The node above a block (`level` 0) or node, which must not be the root of the tree; `None`
    /// where there is none.
    pub(crate) async fn node_above(
        &self,
        level: u8,
        index: u64,
    ) -> Result<Option<Block>, PoolError> {
        let ptr = self.pointer_at(level + 1, index >> NODE_SHIFT).await?;
        if ptr.is_hole() { Ok(None) } else { self.pool.read_block(&ptr).await.map(Some) }
    }

    /// The pointer to a block or node in the node above it.
    pub(crate) fn pointer_below(&self, node: &Block, index: u64) -> Result<BlockPtr, PoolError> {
        self.slot(node, index as usize % NODE_FANOUT)
    }

    /// Levels of nodes.
    pub(crate) fn height(&self) -> u8 {
        self.root.height
    }

    /// Every block of a range that is not a hole, in order, to `found`; a hole of any size costs
    /// one step. `found` returns false to stop.
    pub async fn scan(
        &self,
        range: Range<u64>,
        found: &mut dyn FnMut(u64, BlockPtr) -> bool,
    ) -> Result<(), PoolError> {
        let end = range.end.min(span(self.root.height));
        self.scan_under(self.root.ptr, self.root.height, 0, &(range.start..end), found).await?;
        Ok(())
    }

    fn scan_under<'s>(
        &'s self,
        ptr: BlockPtr,
        level: u8,
        base: u64,
        range: &'s Range<u64>,
        found: &'s mut dyn FnMut(u64, BlockPtr) -> bool,
    ) -> Pin<Box<dyn Future<Output = Result<bool, PoolError>> + 's>> {
        Box::pin(async move {
            if ptr.is_hole() || base >= range.end || base + span(level) <= range.start {
                return Ok(true);
            }
            if level == 0 {
                return Ok(found(base, ptr));
            }
            let node = self.pool.read_block(&ptr).await?;
            for index in 0..NODE_FANOUT {
                let child = self.slot(&node, index)?;
                let child_base = base + index as u64 * span(level - 1);
                if !self.scan_under(child, level - 1, child_base, range, &mut *found).await? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Every pointer of the tree that earlier versions do not hold and that it leads to still (see
    /// [`Version`](crate::Version)), nodes included, to `visit`; for checks.
    pub async fn walk(
        &self,
        held: &Held,
        freed_to: u64,
        visit: &mut dyn FnMut(BlockPtr),
    ) -> Result<(), PoolError> {
        let mut level = self.root.height;
        let mut here = vec![(self.root.ptr, 0)];
        while !here.is_empty() {
            here.retain(|(ptr, index)| {
                !ptr.is_hole()
                    && end_of(level, *index) > freed_to
                    && ptr.birth > held.below(level, *index)
            });
            let own = here.iter().filter(|(ptr, index)| ptr.birth > held.at(level, *index));
            own.for_each(|(ptr, _)| visit(*ptr));
            if level == 0 {
                break;
            }
            level -= 1;
            let mut below = Vec::new();
            for (ptr, above) in &here {
                let node = self.pool.read_block(ptr).await?;
                for slot in 0..NODE_FANOUT {
                    let index = above * NODE_FANOUT as u64 + slot as u64;
                    below.push((self.slot(&node, slot)?, index));
                }
            }
            here = below;
        }
        Ok(())
    }

    /// Every leaf of a range that is not a hole, in order, with its first block. Nodes are read
    /// together; the range is short enough for all of its leaves to be in memory.
    pub async fn leaves(&self, range: Range<u64>) -> Result<Vec<(u64, Block)>, PoolError> {
        let inside = |start: u64, level| start < range.end && start + span(level) > range.start;
        if self.root.height == 0 {
            let mut leaf = BlockMut::zeroed();
            set_node_pointer(&mut leaf, 0, &self.root.ptr);
            return Ok(vec![(0, leaf.freeze())]);
        }
        let mut here = vec![(0, self.root.ptr)];
        let mut nodes = Vec::new();
        for level in (1..=self.root.height).rev() {
            here.retain(|(start, ptr)| !ptr.is_hole() && inside(*start, level));
            nodes = Vec::with_capacity(here.len());
            for some in here.chunks(NODES_TOGETHER) {
                let ptrs: Vec<BlockPtr> = some.iter().map(|(_, ptr)| *ptr).collect();
                for ((base, _), node) in some.iter().zip(self.pool.read_blocks(&ptrs).await) {
                    nodes.push((*base, node?));
                }
            }
            if level == 1 {
                break;
            }
            here.clear();
            for (base, node) in &nodes {
                for slot in 0..NODE_FANOUT {
                    here.push((base + slot as u64 * span(level - 1), self.slot(node, slot)?));
                }
            }
        }
        Ok(nodes)
    }

    /// The last block that is not a hole.
    pub async fn last_block(&self) -> Result<Option<u64>, PoolError> {
        let (mut ptr, mut base) = (self.root.ptr, 0);
        for level in (1..=self.root.height).rev() {
            if ptr.is_hole() {
                return Ok(None);
            }
            let node = self.pool.read_block(&ptr).await?;
            let mut last = None;
            for index in (0..NODE_FANOUT).rev() {
                let child = self.slot(&node, index)?;
                if !child.is_hole() {
                    last = Some((index, child));
                    break;
                }
            }
            let Some((index, child)) = last else { return Ok(None) };
            base += index as u64 * span(level - 1);
            ptr = child;
        }
        Ok((!ptr.is_hole()).then_some(base))
    }

    /// Brings the nodes under `top` that `changes` will touch into the cache, many at a time. A
    /// node that cannot be read is left for [`Self::apply`] to report.
    async fn warm(&self, top: BlockPtr, top_level: u8, base: u64, changes: &[Change]) {
        let mut here = vec![(top, base)];
        for level in (1..=top_level).rev() {
            let reads =
                here.iter().filter(|(ptr, _)| !ptr.is_hole()).map(|(ptr, base)| async move {
                    let node = self.pool.read_block(ptr).await.ok()?;
                    // Leaves are only wanted in the cache; holding all of them here could be much.
                    (level > 1).then_some((node, *base))
                });
            let nodes: Vec<_> = futures_util::stream::iter(reads)
                .buffer_unordered(NODE_READS_IN_FLIGHT)
                .filter_map(std::future::ready)
                .collect()
                .await;
            here.clear();
            for (node, base) in nodes {
                for index in touched_slots(changes, base, level) {
                    let Ok(child) = self.slot(&node, index) else { continue };
                    here.push((child, base + index as u64 * span(level - 1)));
                }
            }
        }
    }

    /// Applies changes (sorted, disjoint, inside the tree) and returns the new root.
    ///
    /// Every pointer that is replaced, and every node on the way, is freed through `out`, if
    /// nothing of the past holds it.
    pub async fn apply(
        &self,
        out: &mut WriteOut<'_>,
        home: TreeHome,
        past: &Past,
        changes: &[Change],
    ) -> Result<(TreeRoot, Delta), PoolError> {
        let mut delta = Delta::default();
        assert!(changes.is_sorted_by(|a, b| a.end() <= b.start), "changes are sorted and disjoint");
        if let Some(last) = changes.last() {
            assert!(last.end() <= span(self.root.height), "changes lie inside the tree");
        }
        let mut job = Apply { tree: *self, out, home, past, delta: &mut delta };
        let ptr = job.under(self.root.ptr, self.root.height, 0, changes).await?;
        Ok((TreeRoot { ptr, height: self.root.height }, delta))
    }

    /// A root of at least this height with the same content (old blocks keep their numbers), and
    /// what the new nodes take.
    pub async fn grow(
        &self,
        out: &mut WriteOut<'_>,
        home: TreeHome,
        height: u8,
    ) -> Result<(TreeRoot, Delta), PoolError> {
        let mut root = self.root;
        let mut delta = Delta::default();
        while root.height < height {
            if !root.ptr.is_hole() {
                let mut node = BlockMut::zeroed();
                set_node_pointer(&mut node, 0, &root.ptr);
                let node = node.freeze();
                root.ptr = write_node(out, home, (root.height + 1, 0), &node).await?;
                delta.gain(&root.ptr);
                out.keep(root.ptr, node);
            }
            root.height += 1;
        }
        Ok((root, delta))
    }
}

async fn write_node(
    out: &mut WriteOut<'_>,
    home: TreeHome,
    (level, index): (u8, u64),
    node: &Block,
) -> Result<BlockPtr, PoolError> {
    // Checksums make nodes compress to about 60 % at best; always worth one try.
    let mut history = CompressHistory::default();
    let (class, owner) = (home.class(), home.owner(level, index));
    let (kind, lz4) = (PtrKind::Node, Compression::Lz4);
    out.write_record(class, owner, kind, RawRecord::of(node), lz4, &mut history).await
}

/// Slots of the node at `base` (a node of `level`) that some change touches.
fn touched_slots(changes: &[Change], base: u64, level: u8) -> Vec<usize> {
    let child = span(level - 1);
    let mut slots: Vec<usize> = Vec::new();
    for change in within(changes, base, span(level)) {
        let first = (change.start.max(base) - base) / child;
        let last = (change.end().min(base + span(level)) - 1 - base) / child;
        // The change before may have ended in the same slot.
        let first = slots.last().map_or(first as usize, |slot| (slot + 1).max(first as usize));
        slots.extend(first..=last as usize);
    }
    slots
}

struct Apply<'j, 'o, 'p> {
    tree: Tree<'j>,
    out: &'j mut WriteOut<'o>,
    home: TreeHome,
    past: &'j Past,
    delta: &'p mut Delta,
}

impl Apply<'_, '_, '_> {
    /// The new pointer for what was `old`, a subtree of `level` levels starting at block `base`.
    fn under<'s>(
        &'s mut self,
        old: BlockPtr,
        level: u8,
        base: u64,
        changes: &'s [Change],
    ) -> Pin<Box<dyn Future<Output = Result<BlockPtr, PoolError>> + 's>> {
        Box::pin(async move {
            let changes = within(changes, base, span(level));
            let Some(first) = changes.first() else { return Ok(old) };
            if let Some(ptr) = first.covers(&(base..base + span(level))) {
                // One change covers all of it: a block, or a hole of any size.
                assert!(level == 0 || ptr.is_hole(), "a range becomes a hole");
                self.free_under(old, level, base / span(level)).await?;
                self.delta.gain(&ptr);
                return Ok(ptr);
            }
            if old.is_hole() && changes.iter().all(Change::is_hole) {
                return Ok(old);
            }
            // What this txg wrote itself may not be on disk yet.
            let kept = self.out.kept(&old);
            if level == WARM_LEVEL.min(self.tree.root.height) && kept.is_none() {
                self.tree.warm(old, level, base, changes).await;
            }
            let mut node = match kept {
                Some(kept) => BlockMut::copy_of(&kept),
                None if old.is_hole() => BlockMut::zeroed(),
                None => BlockMut::copy_of(&*self.tree.pool.read_block(&old).await?),
            };
            if level == 1 {
                self.change_leaf(&mut node, old.is_hole(), base, changes)?;
                self.out.free_some_unread().await?;
            } else {
                for index in touched_slots(changes, base, level) {
                    let child =
                        node_pointer(&node, index).map_err(|source| self.tree.damaged(source))?;
                    let child_base = base + index as u64 * span(level - 1);
                    let new = self.under(child, level - 1, child_base, changes).await?;
                    set_node_pointer(&mut node, index, &new);
                }
            }
            self.lose(&old, level, base / span(level));
            if weir_codec::compress::is_zero(&node[..]) {
                return Ok(BlockPtr::HOLE);
            }
            let place = (level, base / span(level));
            let new = write_node(self.out, self.home, place, &node.freeze()).await?;
            self.delta.gain(&new);
            Ok(new)
        })
    }

    /// Applies changes to the leaf at `base`: nothing below it has to be read, and most of a tree's
    /// places are in leaves. A new one leads nowhere yet.
    fn change_leaf(
        &mut self,
        leaf: &mut [u8; BLOCK_BYTES],
        is_new: bool,
        base: u64,
        changes: &[Change],
    ) -> Result<(), PoolError> {
        for change in changes {
            let blocks = change.start.max(base)..change.end().min(base + span(1));
            let slots = (blocks.start - base) as usize..(blocks.end - base) as usize;
            for (slot, block) in slots.clone().zip(blocks).filter(|_| !is_new) {
                let old = node_pointer(leaf, slot).map_err(|source| self.tree.damaged(source))?;
                self.lose(&old, 0, block);
            }
            match &change.to {
                Becomes::Pointer(ptr) => slots.for_each(|slot| {
                    self.delta.gain(ptr);
                    set_node_pointer(leaf, slot, ptr);
                }),
                Becomes::Run(run) => {
                    *self.delta += run.gain;
                    run.put(leaf, slots.start);
                }
            }
        }
        Ok(())
    }

    /// Counts a pointer that the tree leads to no more, and frees its block if nothing else does.
    fn lose(&mut self, old: &BlockPtr, level: u8, index: u64) {
        if old.is_hole() {
            return;
        }
        let units = i64::from(old.stored_units);
        self.delta.count(old, -1);
        if old.birth <= self.past.inherits {
            self.delta.inherited_units -= units;
        }
        if old.birth <= self.past.held.at(level, index) {
            let newest = old.birth > self.past.before_newest;
            self.delta.unique_units += if newest { units } else { 0 };
            return;
        }
        if old.birth > self.past.newest {
            self.delta.born_units -= units;
        } else {
            self.delta.leaving_units -= units;
        }
        self.out.free(old);
    }

    /// Frees a whole subtree.
    fn free_under<'s>(
        &'s mut self,
        old: BlockPtr,
        level: u8,
        index: u64,
    ) -> Pin<Box<dyn Future<Output = Result<(), PoolError>> + 's>> {
        Box::pin(async move {
            if old.is_hole() {
                return Ok(());
            }
            if level > 0 {
                match self.tree.pool.read_block(&old).await {
                    Ok(node) => {
                        for slot in 0..NODE_FANOUT {
                            let child = self.tree.slot(&node, slot)?;
                            let index = index * NODE_FANOUT as u64 + slot as u64;
                            if level == 1 {
                                self.lose(&child, 0, index);
                            } else {
                                self.free_under(child, level - 1, index).await?;
                            }
                        }
                    }
                    // A damaged node must not make a volume indestructible: what is below it
                    // stays counted as live, and a check will find it.
                    Err(error) if error.kind() == ErrorKind::Data => {
                        tracing::error!(%error, "space below a damaged node is not freed");
                    }
                    Err(error) => return Err(error),
                }
            }
            self.lose(&old, level, index);
            self.out.free_some_unread().await
        })
    }
}

const _: () = assert!(BLOCK_BYTES == NODE_FANOUT * BlockPtr::BYTES);
