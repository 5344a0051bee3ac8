//! Copy-on-write radix trees of block pointers: volume maps and metadata trees.
//!
//! `txg::apply_nodes` changes nodes. Readers hold a root, and no node below a root ever changes.
//!
//! A leaf's child is called a block here; in a volume it is a record, and indexes count records.
//!
//! Invariants:
//! - a change rewrites its node and all nodes above it; old nodes are freed, never overwritten;
//! - a node with only holes is not stored: its parent has a hole in its slot;
//! - in the tree of a dataset, a change below an unreadable node replaces the node with damage
//!   markers (see `lost_nodes`); every lookup resolves markers or fails;
//! - I8: a child's birth is at most its parent's.

use std::ops::Range;
use std::pin::Pin;

use async_recursion::async_recursion as boxed;
use weir_base::hash::HashSet;
use weir_base::{BLOCK_BYTES, DatasetId, ErrorKind, ObjectId, Txg};
use weir_block::{Block, BlockMut};
use weir_format::{
    BlockOwner, BlockPtr, FormatError, NODE_FANOUT, NODE_SHIFT, PtrKind, SegmentClass, TreeRoot,
    node_pointer, set_node_pointer,
};

use crate::error::PoolError;
use crate::segments::sanity::{self, Visited};
use crate::state::lost_nodes::Unreadable;
use crate::state::pool::Pool;
use crate::tree::snapshot_chain::{SharedBirths, end_of};

/// Earlier versions of the volume whose tree is being changed: their ends, and the blocks that they
/// reference.
#[derive(Clone, Copy, Debug, Default)]
pub struct EarlierSnapshots {
    /// Blocks that the earlier versions also reference. When the tree drops such blocks, they stay
    /// allocated.
    pub held: SharedBirths,
    /// Last txg of the newest earlier version, even if that version is being destroyed.
    pub newest: Txg,
    /// Last txg of the second newest earlier version.
    pub before_newest: Txg,
    /// Blocks born in this txg or earlier were inherited from the origin's snapshot chain.
    pub inherits: Txg,
    /// Size of the volume in records. No write goes beyond the end, so the part of an unreadable
    /// node beyond the end has only holes. `None` for a tree without an end.
    pub records: Option<u64>,
}

/// Kind of a tree. The kind selects the write head for the tree's nodes, and their owner in
/// summaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeKind {
    /// A metadata tree. Each of its blocks has one reference; the cleaner never moves them, because
    /// commits rewrite the whole tree instead.
    Root,
    /// The tree of an object of a dataset.
    Object(DatasetId, ObjectId),
}

impl TreeKind {
    pub(crate) fn class(self) -> SegmentClass {
        match self {
            Self::Root => SegmentClass::Root,
            Self::Object(..) => SegmentClass::Meta,
        }
    }

    pub(crate) fn owner(self, level: u8, index: u64) -> Option<BlockOwner> {
        match self {
            Self::Root => None,
            Self::Object(dataset, object) => Some(BlockOwner { dataset, object, level, index }),
        }
    }
}

/// Result of a lookup in cached nodes.
#[derive(Clone, Debug)]
pub enum Leaf {
    /// The leaf with the pointers of the block and its 127 neighbours, and the pointer to the leaf.
    Node(BlockPtr, Block),
    /// No leaf exists: all blocks that it would contain are holes.
    Hole,
    /// The tree has no nodes. The variant contains the pointer of the tree's only block.
    Root(BlockPtr),
    /// A node on the path is not cached and must be read first.
    Unknown,
}

/// A tree under one root.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) root: TreeRoot,
}

/// Level of the subtrees that are read ahead completely before a change. A subtree has at most
/// 16,512 nodes. That is large enough to contain many of the leaves that a txg with random changes
/// to a large volume needs, so that the pool reads them concurrently.
pub(crate) const WARM_LEVEL: u8 = 3;

/// Maximum number of nodes read concurrently when many pointers are looked up: 4 MiB.
const NODES_TOGETHER: usize = 1024;

/// Number of blocks under one pointer at `level` (0 = the block itself).
pub(crate) const fn span(level: u8) -> u64 {
    TreeRoot::capacity(level)
}

/// Slot, in a node of `level`, of the child that holds a block.
pub(crate) fn slot_of(block: u64, level: u8) -> usize {
    (block >> (NODE_SHIFT * u32::from(level - 1))) as usize % NODE_FANOUT
}

impl<'a> Tree<'a> {
    /// Creates a handle for the tree under `root`.
    pub fn new(pool: &'a Pool, root: TreeRoot) -> Self {
        Self { pool, root }
    }

    /// Reads and validates the pointer in slot `index` of a node of `level`; `of` is the node's
    /// pointer.
    pub(crate) fn slot(
        &self,
        (of, level): (&BlockPtr, u8),
        node: &Block,
        index: usize,
    ) -> Result<BlockPtr, PoolError> {
        let judged = node_pointer(node, index).and_then(|ptr| {
            sanity::child(&ptr, level)?;
            Ok(ptr)
        });
        judged.map_err(|source| self.damaged(of, source))
    }

    /// Error for a node with an invalid field.
    pub(crate) fn damaged(&self, node: &BlockPtr, source: FormatError) -> PoolError {
        self.pool.bad_block(node, "tree node", source)
    }

    /// Finds the leaf of a block in cached nodes only.
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
                return Ok(Leaf::Node(ptr, node));
            }
            ptr = self.slot((&ptr, level), &node, slot_of(block, level))?;
        }
        Ok(Leaf::Root(ptr))
    }

    /// Returns a block's pointer from its leaf. The pointer may be a damage marker.
    pub fn pointer_in(
        &self,
        of: &BlockPtr,
        leaf: &Block,
        block: u64,
    ) -> Result<BlockPtr, PoolError> {
        self.slot((of, 1), leaf, slot_of(block, 1))
    }

    /// Looks up a block's pointer. Reads nodes as needed.
    pub async fn lookup(&self, block: u64) -> Result<BlockPtr, PoolError> {
        self.pointer_at(0, block).await
    }

    /// Reads blocks into the cache, with the nodes above them: the nodes of a level together, then
    /// the blocks. `blocks` has ascending numbers; the records of the tree have one block. Skips
    /// damaged nodes and blocks.
    pub(crate) async fn load(&self, blocks: &[u64]) {
        let inside = blocks.partition_point(|block| *block < span(self.root.height));
        let mut here = vec![(self.root.ptr, &blocks[..inside])];
        for level in (0..=self.root.height).rev() {
            here.retain(|(ptr, below)| !ptr.is_hole() && !ptr.is_damaged() && !below.is_empty());
            let mut next = Vec::new();
            for some in here.chunks(NODES_TOGETHER) {
                let ptrs: Vec<BlockPtr> = some.iter().map(|(ptr, _)| *ptr).collect();
                let read = self.pool.read_blocks(&ptrs).await;
                if level == 0 {
                    continue;
                }
                for ((ptr, below), node) in some.iter().zip(read) {
                    let Ok(node) = node else { continue };
                    let of_child = NODE_SHIFT * u32::from(level - 1);
                    for below in below.chunk_by(|one, two| one >> of_child == two >> of_child) {
                        let child = self.slot((ptr, level), &node, slot_of(below[0], level));
                        next.extend(child.ok().map(|child| (child, below)));
                    }
                }
            }
            here = next;
        }
    }

    /// Looks up the pointer to a block (`level` 0) or node by its index in its level.
    /// Reads nodes as needed. Returns a hole if there is no such block or node.
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
            let child = self.slot((&ptr, above), &node, slot_of(block, above))?;
            let index = block >> (NODE_SHIFT * u32::from(above - 1));
            ptr = self.resolve(child, above - 1, index).await?;
        }
        Ok(ptr)
    }

    /// Reads the parent node of a block (`level` 0) or node; `None` if the tree has no node there.
    /// The child must not be the root of the tree.
    #[boxed(?Send)]
    pub(crate) async fn node_above(
        &self,
        level: u8,
        index: u64,
    ) -> Result<Option<(BlockPtr, Block)>, PoolError> {
        let ptr = self.pointer_at(level + 1, index >> NODE_SHIFT).await?;
        if ptr.is_hole() {
            return Ok(None);
        }
        Ok(Some((ptr, self.pool.read_block(&ptr).await?)))
    }

    /// Returns the pointer to a block or node from its parent node; `of` is the parent's pointer
    /// and level. The result may be a damage marker.
    pub(crate) fn pointer_below(
        &self,
        of: (&BlockPtr, u8),
        node: &Block,
        index: u64,
    ) -> Result<BlockPtr, PoolError> {
        self.slot(of, node, index as usize % NODE_FANOUT)
    }

    pub(crate) fn top(&self) -> (BlockPtr, u8) {
        (self.root.ptr, self.root.height)
    }

    /// Number of levels of nodes in the tree.
    pub(crate) fn height(&self) -> u8 {
        self.root.height
    }

    /// Calls `found` for every block of a range that is not a hole, in order, until `found` returns
    /// false. A hole of any size takes one step.
    ///
    /// # Errors
    /// `Damaged` at the first node that cannot be read.
    #[boxed(?Send)]
    pub async fn scan(
        &self,
        range: Range<u64>,
        found: &mut dyn FnMut(u64, BlockPtr) -> bool,
    ) -> Result<(), PoolError> {
        self.scan_all(range, None, found).await
    }

    /// Scans as [`Self::scan`] does, but calls `damaged` for each range of blocks below an
    /// unreadable node, and stops if `damaged` returns false.
    ///
    /// # Errors
    /// Any error except damage.
    #[boxed(?Send)]
    pub async fn scan_past_damage(
        &self,
        range: Range<u64>,
        damaged: &mut dyn FnMut(Range<u64>) -> bool,
        found: &mut dyn FnMut(u64, BlockPtr) -> bool,
    ) -> Result<(), PoolError> {
        self.scan_all(range, Some(damaged), found).await
    }

    async fn scan_all<'f>(
        &self,
        range: Range<u64>,
        damaged: Option<&'f mut dyn FnMut(Range<u64>) -> bool>,
        found: &'f mut dyn FnMut(u64, BlockPtr) -> bool,
    ) -> Result<(), PoolError> {
        let end = range.end.min(span(self.root.height));
        let mut scan = Scan {
            tree: *self,
            range: range.start..end,
            unreadable: Unreadable::default(),
            met: Visited::default(),
            damaged,
            found,
        };
        scan.under(self.root.ptr, self.root.height, 0).await?;
        Ok(())
    }

    /// Calls `visit` for each pointer of the tree, nodes included, except pointers to blocks that
    /// earlier versions also reference and pointers already freed (see
    /// [`Version`](crate::Version)); for checks. Returns the number of unreadable nodes and skips
    /// everything below them.
    ///
    /// Visits a lost node once, even if several damage markers name it, because the node occupies
    /// its space once.
    #[boxed(?Send)]
    pub async fn walk(
        &self,
        held: &SharedBirths,
        freed_to: u64,
        visit: &mut dyn FnMut(BlockPtr),
    ) -> Result<u64, PoolError> {
        self.walk_replaced(held, freed_to, AlsoWalked::default(), visit).await
    }

    /// Walks as [`Self::walk`] does, with the options in `also`.
    pub(crate) async fn walk_replaced(
        &self,
        held: &SharedBirths,
        freed_to: u64,
        also: AlsoWalked<'_>,
        visit: &mut dyn FnMut(BlockPtr),
    ) -> Result<u64, PoolError> {
        let AlsoWalked { replaced: mut seen, blocks } = also;
        let mut level = self.root.height;
        let mut here = vec![(self.root.ptr, 0)];
        let (mut unreadable, mut named) = (Unreadable::default(), HashSet::default());
        let is_own = |ptr: &BlockPtr, level, index| {
            !ptr.is_hole()
                && end_of(level, index) > freed_to
                && ptr.birth > held.below(level, index)
        };
        let mut met = Visited::default();
        while !here.is_empty() {
            here.retain(|(ptr, index)| is_own(ptr, level, *index));
            let own = here.iter().filter(|(ptr, index)| ptr.birth > held.at(level, *index));
            own.for_each(|(ptr, _)| visit(*ptr));
            if level == 0 {
                if let Some(blocks) = blocks {
                    blocks.extend(here.iter().map(|(ptr, index)| (*index, *ptr)));
                }
                let partial = here.iter().filter(|(ptr, _)| ptr.is_partial());
                for (ptr, index) in partial {
                    let Some(seen) = seen.as_deref_mut() else { break };
                    let place = (ptr, *index);
                    let kept = (&mut *seen, &mut named);
                    if let Err(error) = self.visit_replaced(place, held, kept, visit).await {
                        unreadable.insert(ptr.address(), error);
                    }
                }
                break;
            }
            let mut below = Vec::new();
            for (ptr, above) in &here {
                let read = match met.note_any(ptr) {
                    Ok(()) => self.pool.read_block(ptr).await,
                    Err(source) => Err(self.damaged(ptr, source)),
                };
                let node = match read {
                    Err(error) if error.kind() == ErrorKind::Data => {
                        unreadable.insert(ptr.address(), error);
                        continue;
                    }
                    node => node?,
                };
                let of = (ptr, &node);
                let children = self.children(of, (level, *above), &mut unreadable).await;
                for (index, (raw, child)) in (above * NODE_FANOUT as u64..).zip(children) {
                    if let Some((node, _)) = raw.damaged_node()
                        && is_own(&raw, level - 1, index)
                        && named.insert(node.address())
                    {
                        visit(node);
                    }
                    match child {
                        Err(error) if error.kind() != ErrorKind::Data => return Err(error),
                        Err(error) => {
                            let of = if raw.is_damaged() { raw } else { *ptr };
                            unreadable.insert(of.address(), error);
                        }
                        Ok(child) => below.push((child, index)),
                    }
                }
            }
            level -= 1;
            here = below;
        }
        Ok(unreadable.len() as u64)
    }

    /// Visits the records that a partial record replaced, directly or through further partial
    /// records, and the lost nodes above these records. Skips blocks that earlier versions hold.
    ///
    /// `seen`: addresses of the partial records that walks have followed. `named`: addresses of the
    /// lost nodes that this walk has visited. Skips the addresses in both sets, and adds new ones.
    ///
    /// # Errors
    /// The partial record cannot be read.
    async fn visit_replaced(
        &self,
        (ptr, index): (&BlockPtr, u64),
        held: &SharedBirths,
        (seen, named): (&mut HashSet<u64>, &mut HashSet<u64>),
        visit: &mut dyn FnMut(BlockPtr),
    ) -> Result<(), PoolError> {
        let mut ptr = *ptr;
        while ptr.is_partial() && seen.insert(ptr.address()) {
            let record = self.pool.read_partial(&ptr).await?;
            if let Some((node, level)) = record.rest().damaged_node()
                && node.birth > held.at(level, index >> (NODE_SHIFT * u32::from(level)))
                && named.insert(node.address())
            {
                visit(node);
            }
            ptr = self.pool.resolve_replaced(&record).await?;
            if ptr.kind == PtrKind::Data && ptr.birth > held.at(0, index) {
                visit(ptr);
            }
        }
        Ok(())
    }

    /// Returns every leaf of a range that is not a hole, in order: its first block, its pointer and
    /// its contents. Reads nodes concurrently. All leaves of the range must fit in memory.
    ///
    /// # Errors
    /// `Damaged` if a node of the range cannot be read.
    #[boxed(?Send)]
    pub async fn leaves(
        &self,
        range: Range<u64>,
    ) -> Result<Vec<(u64, BlockPtr, Block)>, PoolError> {
        let inside = |start: u64, level| start < range.end && start + span(level) > range.start;
        if self.root.height == 0 {
            let mut leaf = BlockMut::zeroed();
            set_node_pointer(&mut leaf, 0, &self.root.ptr);
            return Ok(vec![(0, self.root.ptr, leaf.freeze())]);
        }
        let mut here = vec![(0, self.root.ptr)];
        let mut nodes = Vec::new();
        for level in (1..=self.root.height).rev() {
            here.retain(|(start, ptr)| !ptr.is_hole() && inside(*start, level));
            nodes = Vec::with_capacity(here.len());
            for some in here.chunks(NODES_TOGETHER) {
                let ptrs: Vec<BlockPtr> = some.iter().map(|(_, ptr)| *ptr).collect();
                for ((base, ptr), node) in some.iter().zip(self.pool.read_blocks(&ptrs).await) {
                    nodes.push((*base, *ptr, node?));
                }
            }
            if level == 1 {
                break;
            }
            here.clear();
            for (base, ptr, node) in &nodes {
                for slot in 0..NODE_FANOUT {
                    let start = base + slot as u64 * span(level - 1);
                    let mut child = self.slot((ptr, level), node, slot)?;
                    if child.is_damaged() && inside(start, level - 1) {
                        child = self.resolve(child, level - 1, start / span(level - 1)).await?;
                    }
                    here.push((start, child));
                }
            }
        }
        Ok(nodes)
    }

    /// Finds the last block that is not a hole. An unreadable node counts as full: if such a node
    /// is the last, the result is the last block of its range.
    #[boxed(?Send)]
    pub async fn last_block(&self) -> Result<Option<u64>, PoolError> {
        let (mut ptr, mut base) = (self.root.ptr, 0);
        for level in (1..=self.root.height).rev() {
            if ptr.is_hole() {
                return Ok(None);
            }
            let all = base + span(level) - 1;
            let node = match self.pool.read_block(&ptr).await {
                Err(error) if error.kind() == ErrorKind::Data => return Ok(Some(all)),
                node => node?,
            };
            let mut last = None;
            for index in (0..NODE_FANOUT).rev() {
                let child = self.slot((&ptr, level), &node, index)?;
                if !child.is_hole() {
                    last = Some((index, child));
                    break;
                }
            }
            let Some((index, child)) = last else { return Ok(None) };
            base += index as u64 * span(level - 1);
            if child.is_damaged() {
                return Ok(Some(base + span(level - 1) - 1));
            }
            ptr = child;
        }
        Ok((!ptr.is_hole()).then_some(base))
    }
}

/// Options of a walk: visit records that partial records replaced, and collect the blocks (level
/// 0).
#[derive(Default)]
pub(crate) struct AlsoWalked<'a> {
    /// Addresses of the partial records that earlier walks have followed. The walk follows each
    /// other partial record: it adds the address and visits the records that the partial record
    /// replaced. `None`: the walk visits no replaced records.
    pub(crate) replaced: Option<&'a mut HashSet<u64>>,
    /// List to which the walk adds the blocks (level 0) that it reaches, with their indexes.
    pub(crate) blocks: Option<&'a mut Vec<(u64, BlockPtr)>>,
}

/// A scan in progress.
struct Scan<'t, 'f> {
    tree: Tree<'t>,
    range: Range<u64>,
    unreadable: Unreadable,
    met: Visited,
    /// Receives unreadable ranges; if `None`, damage ends the scan.
    damaged: Option<&'f mut dyn FnMut(Range<u64>) -> bool>,
    found: &'f mut dyn FnMut(u64, BlockPtr) -> bool,
}

impl Scan<'_, '_> {
    /// Scans a subtree; returns false if a callback stopped the scan.
    fn under<'s>(
        &'s mut self,
        ptr: BlockPtr,
        level: u8,
        base: u64,
    ) -> Pin<Box<dyn Future<Output = Result<bool, PoolError>> + 's>> {
        Box::pin(async move {
            let blocks = self.range.start.max(base)..self.range.end.min(base + span(level));
            if ptr.is_hole() || blocks.is_empty() {
                return Ok(true);
            }
            let place = (level, base / span(level));
            let found = self.tree.resolve_known(ptr, place, &mut self.unreadable).await;
            let node = match found {
                Ok(ptr) if ptr.is_hole() => return Ok(true),
                Ok(ptr) if level == 0 => return Ok((self.found)(base, ptr)),
                Ok(ptr) => match self.met.note(&ptr, level) {
                    Ok(()) => self.tree.pool.read_block(&ptr).await,
                    Err(source) => Err(self.tree.damaged(&ptr, source)),
                },
                Err(error) => Err(error),
            };
            let node = match (node, &mut self.damaged) {
                (Err(error), Some(damaged)) if error.kind() == ErrorKind::Data => {
                    return Ok(damaged(blocks));
                }
                (node, _) => node?,
            };
            // Slots outside of the range are not decoded: the scan of one record visits one slot.
            let width = span(level - 1);
            let first = ((blocks.start - base) / width) as usize;
            let end = (blocks.end - base).div_ceil(width) as usize;
            for index in first..end {
                let child_base = base + index as u64 * width;
                // Handle an invalid pointer like a pointer to an unreadable node.
                let child = match (self.tree.slot((&ptr, level), &node, index), &mut self.damaged) {
                    (Err(_), Some(_)) => ptr.damage_marker_of(level),
                    (child, _) => child?,
                };
                if child.is_hole() {
                    continue;
                }
                if !self.under(child, level - 1, child_base).await? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }
}

const _: () = assert!(BLOCK_BYTES == NODE_FANOUT * BlockPtr::BYTES);
