//! Applies changes to tree nodes: from the new pointers of a txg to a new root.
//!
//! weir-dataset supplies the changes; `tree` reads and traverses trees.
//!
//! Invariants:
//! - blocks that a changed tree no longer references are freed, unless earlier versions of the
//!   volume also reference them;
//! - an unreadable node is kept, and markers that name it take its place. If a node of a metadata
//!   tree is unreadable, the next commit rewrites all metadata trees from RAM.

use std::pin::Pin;

use weir_base::{BLOCK_BYTES, ErrorKind, Txg};
use weir_block::{Block, BlockMut, Blocks};
use weir_format::{
    BlockPtr, Compression, NODE_FANOUT, NODE_SHIFT, PtrKind, node_pointer, set_node_pointer,
};

use crate::error::PoolError;
use crate::planted_bugs::PlantedBug;
use crate::segments::sanity::Visited;
use crate::state::compression::CompressHistory;
use crate::state::live_of::LiveOf;
use crate::state::lost_nodes::{Unreadable, node_of_markers};
use crate::tree::change::{Change, NewContents, within};
use crate::tree::delta::Delta;
use crate::tree::radix_tree::{EarlierSnapshots, Tree, TreeKind, WARM_LEVEL, span};
use crate::tree::snapshot_chain::Version;
use crate::txg::write_out::WriteOut;

/// Changes to a tree, in progress.
pub(crate) struct Apply<'j, 'o, 'p> {
    pub(crate) tree: Tree<'j>,
    pub(crate) out: &'j mut WriteOut<'o>,
    pub(crate) home: TreeKind,
    pub(crate) past: &'j EarlierSnapshots,
    pub(crate) delta: &'p mut Delta,
    pub(crate) unreadable: Unreadable,
    /// Nodes already visited while subtrees were freed.
    pub(crate) met: Visited,
}

impl Apply<'_, '_, '_> {
    /// Returns the new pointer for `old`, a subtree of `level` levels that starts at block `base`.
    pub(crate) fn under<'s>(
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
                // One change covers the whole range of the node: a block, or a hole of any size.
                assert!(level == 0 || ptr.is_hole(), "a range becomes a hole");
                if level == 0 && self.is_replaced(&old, first) {
                    self.count_lost(&old, 0, base);
                } else {
                    self.free_under(old, level, base / span(level)).await?;
                }
                self.delta.gain(&ptr);
                return Ok(ptr);
            }
            if old.is_hole() && changes.iter().all(Change::is_hole) {
                return Ok(old);
            }
            // Use the kept copy of a node that this txg wrote, because the node may not be on disk
            // yet.
            let kept = self.out.kept(&old);
            if level == WARM_LEVEL.min(self.tree.root.height) && kept.is_none() {
                self.tree.warm(old, level, base, changes).await;
            }
            let (old, mut node) = match kept {
                Some(kept) => (old, BlockMut::copy_of(&kept)),
                None => self.node_to_change(old, level, base / span(level)).await?,
            };
            if level == 1 {
                self.change_leaf(&old, &mut node, base, changes)?;
                self.out.free_some_unread().await?;
            } else {
                for index in touched_slots(changes, base, level) {
                    let child = node_pointer(&node, index).or_else(|source| {
                        // Treat the invalid child like an unreadable node.
                        let below = (base >> (NODE_SHIFT * u32::from(level - 1))) + index as u64;
                        let place = (level - 1, below);
                        self.note_lost(place, &old, self.tree.damaged(&old, source))?;
                        Ok::<_, PoolError>(old.damage_marker_of(level))
                    })?;
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

    /// Returns the node to change, and the pointer that the tree then drops. The dropped pointer is
    /// a hole for a new node, and for a node of damage markers, because the node that the markers
    /// name is kept.
    async fn node_to_change(
        &mut self,
        old: BlockPtr,
        level: u8,
        index: u64,
    ) -> Result<(BlockPtr, BlockMut), PoolError> {
        let (marker, place) = (old, (level, index));
        let found = self.tree.resolve_known(old, place, &mut self.unreadable).await;
        let (old, node) = match found {
            Ok(old) if old.is_hole() => return Ok((old, BlockMut::zeroed())),
            Ok(old) => (old, self.tree.pool.read_block(&old).await),
            Err(error) => (marker, Err(error)),
        };
        let node = match node {
            Ok(node) => node,
            Err(error) => {
                self.note_lost(place, &marker, error)?;
                let slots = self.slots_in_use(level, index);
                let markers = node_of_markers(&old.damage_marker_of(level), slots);
                let is_freed = self.tree.pool.bug == PlantedBug::LostNodeFreed;
                return Ok((if is_freed { old } else { BlockPtr::HOLE }, markers));
            }
        };
        let mut node = BlockMut::copy_of(&node);
        if self.tree.pool.damaged_since().is_some() {
            self.graft(&mut node, level, index).await?;
        }
        Ok((old, node))
    }

    /// Number of slots in a node that begin before the end of the volume.
    fn slots_in_use(&self, level: u8, index: u64) -> usize {
        let Some(records) = self.past.records else { return NODE_FANOUT };
        let (first, each) = (index.saturating_mul(span(level)), span(level - 1));
        let slots = records.saturating_sub(first).div_ceil(each);
        slots.min(NODE_FANOUT as u64) as usize
    }

    /// If the node that damage markers name is readable again: replaces the markers with the
    /// pointers in that node. Markers beyond the end of the volume, which older releases wrote,
    /// become holes.
    async fn graft(
        &mut self,
        node: &mut [u8; BLOCK_BYTES],
        level: u8,
        index: u64,
    ) -> Result<(), PoolError> {
        let in_use = self.slots_in_use(level, index);
        for slot in 0..NODE_FANOUT {
            let Ok(ptr) = node_pointer(node, slot) else { continue };
            if !ptr.is_damaged() {
                continue;
            }
            if slot >= in_use {
                set_node_pointer(node, slot, &BlockPtr::HOLE);
                continue;
            }
            let place = (level - 1, index * NODE_FANOUT as u64 + slot as u64);
            match self.tree.resolve_known(ptr, place, &mut self.unreadable).await {
                Ok(found) => set_node_pointer(node, slot, &found),
                Err(error) => self.note_lost(place, &ptr, error)?,
            }
        }
        Ok(())
    }

    /// Records that the part of the tree below `ptr` is unreadable, so that the change can continue
    /// without it.
    fn note_lost(
        &self,
        place: (u8, u64),
        ptr: &BlockPtr,
        error: PoolError,
    ) -> Result<(), PoolError> {
        if self.tree.pool.bug == PlantedBug::DamageFailsCommit {
            return Err(error);
        }
        self.note_leak(error)?;
        self.list(place, ptr, Version::HEAD);
        Ok(())
    }

    /// Adds the records below a node to the list of permanent errors, for versions of the volume up
    /// to `version`.
    fn list(&self, (level, index): (u8, u64), ptr: &BlockPtr, version: Txg) {
        if let TreeKind::Object(volume, object) = self.home {
            let birth = ptr.birth;
            let lost = LiveOf::Volume { volume, object, level, index, birth, version };
            self.tree.pool.note_lost(&lost);
        }
    }

    /// Calls [`Self::note_leak`] for an unreadable part that this txg frees in the volume, and
    /// reports the loss for snapshots that reference the part.
    fn note_freed(
        &self,
        place: (u8, u64),
        ptr: &BlockPtr,
        error: PoolError,
    ) -> Result<(), PoolError> {
        self.note_leak(error)?;
        if ptr.birth <= self.past.newest {
            self.list(place, ptr, self.past.newest);
        }
        Ok(())
    }

    /// Lets the txg continue if a part to be freed is unreadable: the blocks of that part stay
    /// counted as live. Returns any other error.
    fn note_leak(&self, error: PoolError) -> Result<(), PoolError> {
        if error.kind() != ErrorKind::Data {
            return Err(error);
        }
        // A node full of damage markers has an error for each of its slots.
        if self.tree.pool.note_lost_node(self.out.txg) {
            tracing::error!(%error, "blocks below a damaged node stay allocated");
        } else {
            tracing::debug!(%error, "blocks below a damaged node stay allocated");
        }
        if self.home == TreeKind::Root {
            self.tree.pool.want_new_roots();
        }
        Ok(())
    }

    /// Applies changes to the leaf at `base`. Most slots of a tree are in leaves, and a leaf needs
    /// no reads below it, so this function is not async.
    fn change_leaf(
        &mut self,
        of: &BlockPtr,
        leaf: &mut [u8; BLOCK_BYTES],
        base: u64,
        changes: &[Change],
    ) -> Result<(), PoolError> {
        for change in changes {
            let blocks = change.start.max(base)..change.end().min(base + span(1));
            let slots = (blocks.start - base) as usize..(blocks.end - base) as usize;
            for (slot, block) in slots.clone().zip(blocks) {
                match node_pointer(leaf, slot) {
                    // A commit may put the same pointer of an unreadable block back into a metadata
                    // tree. The block is then not freed, so its segment must not count the block
                    // again: a damaged pointer may name a dead segment.
                    Ok(old) if self.home == TreeKind::Root && change.to.is(&old) => {
                        self.count_lost(&old, 0, block);
                    }
                    Ok(old) if self.is_replaced(&old, change) => {
                        self.count_lost(&old, 0, block);
                    }
                    Ok(old) => self.lose(&old, 0, block),
                    Err(source) => {
                        self.note_freed((0, block), of, self.tree.damaged(of, source))?;
                    }
                }
            }
            match &change.to {
                NewContents::Pointer(ptr) => slots.for_each(|slot| {
                    self.delta.gain(ptr);
                    set_node_pointer(leaf, slot, ptr);
                }),
                NewContents::Run(run) => {
                    *self.delta += run.gain;
                    run.put(leaf, slots.start);
                }
            }
        }
        Ok(())
    }

    /// True if a change replaces `old` with a partial record that refers to `old`.
    fn is_replaced(&self, old: &BlockPtr, change: &Change) -> bool {
        let NewContents::Pointer(new) = &change.to else { return false };
        self.tree.pool.bug != PlantedBug::ReplacedFreed
            && new.is_partial()
            && self.out.replaced.get(&new.address()).is_some_and(|rest| rest == old)
    }

    /// Counts a pointer that the tree dropped, and frees its block if no other version of the
    /// volume references the block.
    fn lose(&mut self, old: &BlockPtr, level: u8, index: u64) {
        if self.count_lost(old, level, index) {
            self.out.free(old);
        }
    }

    /// Counts a pointer that the tree dropped. Returns true if no other version of the volume
    /// references its block.
    fn count_lost(&mut self, old: &BlockPtr, level: u8, index: u64) -> bool {
        if !old.is_stored() {
            return false;
        }
        let units = i64::from(old.stored_units);
        self.delta.count(old, -1);
        if old.birth <= self.past.inherits {
            self.delta.inherited_units -= units;
        }
        if old.birth <= self.past.held.at(level, index) {
            let newest = old.birth > self.past.before_newest;
            self.delta.unique_units += if newest { units } else { 0 };
            return false;
        }
        if old.birth > self.past.newest {
            self.delta.born_units -= units;
        } else {
            self.delta.leaving_units -= units;
        }
        true
    }

    /// Frees a whole subtree.
    fn free_under<'s>(
        &'s mut self,
        old: BlockPtr,
        level: u8,
        index: u64,
    ) -> Pin<Box<dyn Future<Output = Result<(), PoolError>> + 's>> {
        Box::pin(async move {
            let found = self.tree.resolve_known(old, (level, index), &mut self.unreadable).await;
            // A damaged node must not make a volume indestructible. Blocks below it stay counted as
            // live until a recount.
            let old = match found {
                Ok(old) => old,
                Err(error) => return self.note_freed((level, index), &old, error),
            };
            if old.is_hole() {
                return Ok(());
            }
            if let Err(source) = self.met.note(&old, level) {
                // This txg already freed the node, or the node is a descendant of itself.
                return self.note_leak(self.tree.damaged(&old, source));
            }
            if level > 0 {
                // A hole can cover a node that this txg wrote, which may not be on disk yet.
                let node = match self.out.kept(&old) {
                    Some(kept) => Ok(kept),
                    None => self.tree.pool.read_block(&old).await,
                };
                match node {
                    Ok(node) => {
                        for slot in 0..NODE_FANOUT {
                            let index = index * NODE_FANOUT as u64 + slot as u64;
                            match self.tree.slot((&old, level), &node, slot) {
                                Ok(child) if level == 1 && !child.is_damaged() => {
                                    self.lose(&child, 0, index);
                                }
                                Ok(child) => self.free_under(child, level - 1, index).await?,
                                Err(error) => self.note_freed((level - 1, index), &old, error)?,
                            }
                        }
                    }
                    Err(error) => self.note_freed((level, index), &old, error)?,
                }
            }
            self.lose(&old, level, index);
            self.out.free_some_unread().await
        })
    }
}

pub(crate) async fn write_node(
    out: &mut WriteOut<'_>,
    home: TreeKind,
    (level, index): (u8, u64),
    node: &Block,
) -> Result<BlockPtr, PoolError> {
    // Try to compress every node: checksums limit the saving to about 40 %, but one attempt always
    // pays off.
    let mut history = CompressHistory::default();
    let (class, owner) = (home.class(), home.owner(level, index));
    let (kind, lz4) = (PtrKind::Node, Compression::Lz4);
    let record = Blocks::One(node.clone());
    out.write_record(class, owner, kind, &record, lz4, &mut history).await
}

/// Slots of the node of `level` at `base` that changes affect.
pub(crate) fn touched_slots(changes: &[Change], base: u64, level: u8) -> Vec<usize> {
    let child = span(level - 1);
    let mut slots: Vec<usize> = Vec::new();
    for change in within(changes, base, span(level)) {
        let first = (change.start.max(base) - base) / child;
        let last = (change.end().min(base + span(level)) - 1 - base) / child;
        // The preceding change may have ended in the same slot: list a slot only once.
        let first = slots.last().map_or(first as usize, |slot| (slot + 1).max(first as usize));
        slots.extend(first..=last as usize);
    }
    slots
}
