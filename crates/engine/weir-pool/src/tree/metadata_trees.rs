//! Reads the metadata trees (directory, segment table, remap tables, reference tables) even if
//! parts of them are unreadable.
//!
//! The effects of a loss are in `segments` (`entries`, `tables`) and, for the directory, in
//! weir-dataset. Trees of volumes are in `radix_tree`.
//!
//! Invariants:
//! - an unreadable node loses only its own range of the tree;
//! - only damage counts as a loss: an error that reports missing disks ends the read.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::hash::HashMap;
use weir_base::{ErrorKind, Txg, VsegId};
use weir_format::{BlockPtr, NODE_FANOUT, NODE_SHIFT, SegmentClass, TreeRoot};

use crate::error::PoolError;
use crate::segments::entries::table_block;
use crate::segments::lost_part::LostPart;
use crate::segments::sanity::Visited;
use crate::segments::segment_table::Segments;
use crate::state::lost_nodes::Unreadable;
use crate::state::pool::Pool;
use crate::tree::radix_tree::Tree;

/// Maximum number of nodes read concurrently.
const NODES_TOGETHER: usize = 256;

/// The metadata trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataTree {
    /// The segment table.
    Segments,
    /// The dataset directory.
    Datasets,
    /// Remap tables.
    Remaps,
    /// Reference tables.
    References,
}

/// Location of a node or block of a metadata tree; for tests that damage it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnPlace {
    /// Tree of the node or block.
    pub tree: MetadataTree,
    /// Level of the node; 0: a block.
    pub level: u8,
    /// Index of the node or block in its level.
    pub index: u64,
    /// Vdev of each copy, and the byte offset on each disk of a mirror.
    pub copies: [Option<(u16, u64)>; 3],
    /// Length in bytes.
    pub len: usize,
}

/// Unreadable parts of the segment, remap and reference tables. The engine in weir-dataset lists
/// unreadable parts of the directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostTables {
    /// Number of unreadable parts of the segment table. Blocks in the segments that these parts
    /// describe cannot be read.
    pub segment_parts: u64,
    /// Bytes of physical segments that are not allocated, because a segment with an unreadable
    /// entry may be there.
    pub withheld_bytes: u64,
    /// Cleaned segments whose remap tables were found unreadable so far. Their moved blocks cannot
    /// be read.
    pub remap_tables: u64,
    /// Segments whose reference tables were found unreadable so far. Space freed in them is not
    /// reclaimed.
    pub reference_tables: u64,
}

/// The readable part of a tree.
#[derive(Clone, Debug, Default)]
pub struct WholeTree {
    /// Pointers to blocks, each with its index, in order.
    pub blocks: Vec<(u64, BlockPtr)>,
    /// Unreadable nodes, the highest levels first.
    pub lost: Vec<LostPart>,
    /// Error of the first unreadable node.
    pub why: Option<PoolError>,
    /// Readable nodes, each with its level, its index in that level and its pointer.
    pub(crate) nodes: Vec<(u8, u64, BlockPtr)>,
}

impl Tree<'_> {
    /// Walks a metadata tree and lists its blocks and its unreadable parts.
    ///
    /// # Errors
    /// Disks are missing or the pool is suspended. Damage is part of the result.
    #[boxed(?Send)]
    pub async fn read_whole(&self) -> Result<WholeTree, PoolError> {
        let TreeRoot { ptr, height } = self.root;
        let mut whole = WholeTree::default();
        let mut here = vec![(0, ptr)];
        let mut met = Visited::default();
        let mut unreadable = Unreadable::default();
        for level in (1..=height).rev() {
            here = self.part_markers(here, level, &mut whole, &mut unreadable).await?;
            let mut below = Vec::new();
            for some in here.chunks(NODES_TOGETHER) {
                let ptrs: Vec<BlockPtr> = some.iter().map(|(_, ptr)| *ptr).collect();
                let nodes = self.pool.read_blocks(&ptrs).await;
                for ((index, ptr), node) in some.iter().zip(nodes) {
                    let met = met.note(ptr, level).map_err(|source| self.damaged(ptr, source));
                    let node = met.and(node);
                    let children = node.and_then(|node| {
                        let slots = 0..NODE_FANOUT;
                        slots
                            .map(|slot| self.slot((ptr, level), &node, slot))
                            .collect::<Result<Vec<_>, _>>()
                    });
                    match children {
                        Ok(children) => {
                            whole.nodes.push((level, *index, *ptr));
                            below.extend((index << NODE_SHIFT..).zip(children));
                        }
                        Err(error) if error.kind() == ErrorKind::Data => {
                            tracing::error!(%error, level, index, "metadata node is lost");
                            whole.lost.push(LostPart { level, index: *index });
                            whole.why.get_or_insert(error);
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            here = below;
        }
        whole.blocks = self.part_markers(here, 0, &mut whole, &mut unreadable).await?;
        Ok(whole)
    }

    /// Resolves the pointers in `found`: drops holes, and replaces each damage marker by the
    /// pointer that it represents. If that pointer is unreadable, its range joins the unreadable
    /// parts of `whole`.
    async fn part_markers(
        &self,
        found: Vec<(u64, BlockPtr)>,
        level: u8,
        whole: &mut WholeTree,
        unreadable: &mut Unreadable,
    ) -> Result<Vec<(u64, BlockPtr)>, PoolError> {
        let mut there = Vec::with_capacity(found.len());
        for (index, ptr) in found {
            match self.resolve_known(ptr, (level, index), unreadable).await {
                Ok(ptr) if ptr.is_hole() => {}
                Ok(ptr) => there.push((index, ptr)),
                Err(error) if error.kind() == ErrorKind::Data => {
                    whole.lost.push(LostPart { level, index });
                    whole.why.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(there)
    }
}

impl Segments {
    /// Unreadable blocks of the stored segment table.
    pub(crate) fn lost_blocks(&self) -> Vec<Range<u64>> {
        let inner = self.inner.lock();
        let blocks = |lost: &Range<VsegId>| table_block(lost.start)..table_block(lost.end);
        inner.lost.iter().map(blocks).collect()
    }

    /// True if parts of the segment table or of the remap tree are unreadable, and commits leave
    /// them in place.
    pub(crate) fn has_unread_parts(&self) -> bool {
        self.inner.lock().has_unread_parts()
    }

    /// Lowers the live bytes of each root segment to its value in `of_roots`, counted by a txg that
    /// rewrote all metadata trees. The difference is the space of blocks below lost nodes. Changes
    /// nothing while parts of the segment table or of the remap tree are unreadable, because the
    /// blocks of these parts are unknown.
    pub(crate) fn settle_roots(&self, of_roots: &HashMap<VsegId, u64>, txg: Txg) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        if inner.has_unread_parts() {
            return;
        }
        let roots = inner.slots.iter().filter(|(_, slot)| slot.entry.class == SegmentClass::Root);
        let leaks = roots.filter_map(|(vseg, slot)| {
            let lives = of_roots.get(vseg).copied().unwrap_or_default();
            let leak = u64::from(slot.entry.live_bytes).saturating_sub(lives);
            (leak > 0).then_some((*vseg, leak))
        });
        for (vseg, bytes) in leaks.collect::<Vec<_>>() {
            tracing::info!(vseg = vseg.0, bytes, "space below lost metadata nodes was reclaimed");
            inner.take_live(vseg, bytes as usize, txg);
            inner.live_bytes = inner.live_bytes.saturating_sub(bytes);
        }
    }
}

impl Pool {
    /// Lists the locations of all nodes and blocks of the metadata trees.
    ///
    /// # Errors
    /// Disks are missing.
    #[boxed(?Send)]
    pub async fn own_places(&self) -> Result<Vec<OwnPlace>, PoolError> {
        let trees = {
            let committed = self.committed.lock();
            [
                (MetadataTree::Segments, committed.segments),
                (MetadataTree::Datasets, committed.datasets),
                (MetadataTree::Remaps, committed.remaps),
                (MetadataTree::References, committed.references),
            ]
        };
        let mut places = Vec::new();
        for (tree, root) in trees {
            let WholeTree { blocks, nodes, .. } = Tree::new(self, root).read_whole().await?;
            let blocks = blocks.into_iter().map(|(index, ptr)| (0, index, ptr));
            for (level, index, ptr) in nodes.into_iter().chain(blocks) {
                let Some(place) = self.segments.pin_root(&ptr) else { continue };
                let copies = place.copies().map(|copy| {
                    let on_disk = |(vdev, at)| (vdev, self.vdevs[usize::from(vdev)].base + at);
                    copy.map(on_disk)
                });
                places.push(OwnPlace { tree, level, index, copies, len: ptr.stored_bytes() });
            }
        }
        Ok(places)
    }

    /// Lists the unreadable parts of the segment, remap and reference tables.
    pub fn lost_tables(&self) -> LostTables {
        let inner = self.segments.inner.lock();
        let withheld = (0..).zip(&inner.withheld);
        LostTables {
            segment_parts: inner.lost.len() as u64,
            withheld_bytes: withheld
                .map(|(vdev, places)| places.len() as u64 * self.segments.bytes_on(vdev))
                .sum(),
            remap_tables: inner.remaps.unknown() as u64,
            reference_tables: inner.references.unknown() as u64,
        }
    }

    /// Lists disks that are missing or out of use, in vdevs that hold segments. Such a disk may
    /// hold data that is unreadable on other disks. Omits stale disks, because reads already tried
    /// them as a last resort.
    pub fn missing_legs(&self) -> Vec<String> {
        let legs = self.vdevs.with_segments().flat_map(|vdev| &vdev.legs);
        legs.filter(|leg| leg.usable().is_none()).map(|leg| leg.path().to_owned()).collect()
    }
}
