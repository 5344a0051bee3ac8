//! Tree nodes that no leg has any more: what a commit, a read and a walk do about one.
//!
//! Not here: changing trees (tree), correcting counters afterwards (recount), telling people.
//!
//! A change below an unreadable node makes a new node in its place, all slots of which are *damage
//! markers*: pointers that stand for what the old node holds there, and that lead to the old node.
//! The old block is kept. So the change is committed, its neighbours are explicit damage, and they
//! are back as soon as a leg has the old node again: a read through a marker tries it every time.
//!
//! Invariants:
//! - only [`ErrorKind::Data`] makes damage: where disks are missing, nothing is decided;
//! - a marker is in a lower level than the node it names, and a root is never a marker;
//! - a node that holds markers was born after [`Pool::damaged_since`];
//! - what a node held that could not be read when it went, and the node itself once no marker
//!   names it, stays in the counters until a recount finds that nothing leads there.

use std::pin::Pin;
use std::sync::atomic::Ordering;

use async_recursion::async_recursion as boxed;
use weir_base::{ErrorKind, Txg, VsegId};
use weir_block::Block;
use weir_format::{BlockPtr, FormatError, NODE_FANOUT, NODE_SHIFT, PtrKind};

use crate::error::PoolError;
use crate::segments::sanity::Met;
use crate::state::lost_nodes::{DiskPlace, Marker, Unreadable};
use crate::state::pool::Pool;
use crate::tree::radix_tree::{Tree, slot_of};

/// Nodes that one marker may lead through: a tree that damage met at every level, one after the
/// other, takes 21. Bounds markers that lead in a circle.
const STEPS_MAX: usize = 64;

impl Pool {
    /// The txg in which a change first met a tree node that could not be read. From then on trees
    /// may hold damage markers, and counters may be too high, until a recount finds neither.
    pub fn damaged_since(&self) -> Option<Txg> {
        let since = self.lost_nodes.since.load(Ordering::Acquire);
        (since > 0).then_some(Txg(since))
    }

    /// What the bootstrap table of a pool that is being opened says.
    pub(crate) fn restore_lost_nodes(&self, since: Option<Txg>) {
        self.lost_nodes.since.store(since.map_or(0, |txg| txg.0), Ordering::Release);
        self.lost_nodes.recount.store(since.is_some(), Ordering::Release);
    }

    /// Notes that a change in `txg` met something that cannot be read: from then on counters may
    /// be too high, and that is no fault.
    pub fn note_lost_node(&self, txg: Txg) {
        let since = &self.lost_nodes.since;
        if since.compare_exchange(0, txg.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            tracing::error!(pool = self.name(), txg = txg.0, "a tree node is lost");
        }
        self.lost_nodes.met.fetch_add(1, Ordering::AcqRel);
    }

    /// Asks for a recount, if the pool was damaged: something went that was damaged.
    pub fn want_recount(&self) {
        if self.damaged_since().is_some() {
            self.lost_nodes.recount.store(true, Ordering::Release);
        }
    }

    /// Whether a recount was asked for; it is not any more.
    pub fn take_recount(&self) -> bool {
        self.lost_nodes.recount.swap(false, Ordering::AcqRel)
    }

    /// How often changes met damage so far; handed back to [`Self::clear_lost_nodes`].
    pub fn lost_nodes_met(&self) -> u64 {
        self.lost_nodes.met.load(Ordering::Acquire)
    }

    /// Notes that no marker is left and that every counter is right, unless damage was met since
    /// `met` was read, or another recount was asked for: something went that was counted before.
    /// The next commit stores it; the caller lets none go on meanwhile.
    pub fn clear_lost_nodes(&self, met: u64) -> bool {
        let is_wanted = self.lost_nodes.recount.load(Ordering::Acquire);
        // What lost parts of the segment table lead to is counted still.
        let is_known = self.segments.lost_blocks().is_empty() && !self.roots_are_damaged();
        let is_clear = self.lost_nodes_met() == met && !is_wanted && is_known;
        if is_clear {
            self.lost_nodes.since.store(0, Ordering::Release);
        }
        is_clear
    }

    /// Where the stored bytes of a block are on each disk of its vdev; for tests and for people who
    /// look at disks. On raidz only its place in the segment area is known.
    ///
    /// # Errors
    /// As [`Pool::read_block`].
    pub async fn disk_place(&self, ptr: &BlockPtr) -> Result<DiskPlace, PoolError> {
        let pinned = self.locate(ptr).await?;
        let vdev = &self.vdevs[usize::from(pinned.vdev)];
        let offset = if vdev.mirrors() { vdev.base + pinned.at } else { pinned.at };
        Ok(DiskPlace { vdev: pinned.vdev, offset, len: ptr.stored_bytes() })
    }

    /// The segment that holds a block; for tests.
    ///
    /// # Errors
    /// As [`Pool::read_block`].
    pub async fn segment_of(&self, ptr: &BlockPtr) -> Result<VsegId, PoolError> {
        let host = self.translated(|segments| segments.host_of(ptr)).await?;
        Ok(host.unwrap_or(ptr.vseg))
    }

    pub(crate) fn bad_marker(&self) -> PoolError {
        let (what, field) = ("tree node", "damage marker");
        let source = FormatError::Field { what, field, value: 0 };
        PoolError::Structure { pool: self.name().to_owned(), what, place: None, source }
    }
}

impl Tree<'_> {
    /// What is at a place where `ptr` was found: `ptr` itself, or what the node holds for the place
    /// that it names if it is a damage marker.
    ///
    /// # Errors
    /// `Damaged` where the node cannot be read, as when it was lost.
    pub(crate) async fn resolve(
        &self,
        ptr: BlockPtr,
        level: u8,
        index: u64,
    ) -> Result<BlockPtr, PoolError> {
        if !ptr.is_damaged() {
            return Ok(ptr);
        }
        let (mut ptr, mut steps) = (ptr, 0);
        let block = index << (NODE_SHIFT * u32::from(level));
        while let Some((node, mut at)) = ptr.damaged_node() {
            if at <= level {
                return Err(self.pool.bad_marker());
            }
            ptr = node;
            while at > level && ptr.leads_to_block() {
                steps += 1;
                if steps > STEPS_MAX {
                    return Err(self.pool.bad_marker());
                }
                let node = self.pool.read_block(&ptr).await?;
                ptr = self.pointer_below((&ptr, at), &node, slot_of(block, at) as u64)?;
                at -= 1;
            }
        }
        Ok(ptr)
    }

    /// As [`Self::resolve`], for work that meets many markers.
    pub(crate) async fn resolve_known(
        &self,
        ptr: BlockPtr,
        (level, index): (u8, u64),
        unreadable: &mut Unreadable,
    ) -> Result<BlockPtr, PoolError> {
        if !ptr.is_damaged() {
            return Ok(ptr);
        }
        if let Some(error) = unreadable.get(&ptr.address()) {
            return Err(error.clone());
        }
        let found = self.resolve(ptr, level, index).await;
        if let Err(error) = &found
            && error.kind() == ErrorKind::Data
        {
            unreadable.insert(ptr.address(), error.clone());
        }
        found
    }

    /// The pointers in a node of `level`, each as [`Self::resolve`] has it, and the nodes that
    /// markers among them name.
    pub(crate) async fn children(
        &self,
        (of, node): (&BlockPtr, &Block),
        (level, index): (u8, u64),
        unreadable: &mut Unreadable,
    ) -> Vec<(BlockPtr, Result<BlockPtr, PoolError>)> {
        let mut children = Vec::with_capacity(NODE_FANOUT);
        for slot in 0..NODE_FANOUT as u64 {
            let child = match self.pointer_below((of, level), node, slot) {
                Ok(ptr) => {
                    let place = (level - 1, index * NODE_FANOUT as u64 + slot);
                    (ptr, self.resolve_known(ptr, place, unreadable).await)
                }
                Err(error) => (BlockPtr::HOLE, Err(error)),
            };
            children.push(child);
        }
        children
    }

    /// What a record of which [`Self::pointer_in`] gave a damage marker is.
    ///
    /// # Errors
    /// `Damaged` where the node that the marker names cannot be read.
    pub async fn record_at(&self, ptr: BlockPtr, record: u64) -> Result<BlockPtr, PoolError> {
        self.resolve(ptr, 0, record).await
    }

    /// Whether the tree has a damage marker, or a node below which there may be one.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn has_markers(&self) -> Result<bool, PoolError> {
        let (ptr, height) = self.top();
        let mut met = Met::default();
        Ok(self.marker_under(None, ptr, height, &mut met).await? != Marker::None)
    }

    /// Looks below a place, at which `ptr` is now, for damage markers: such as a node that was at
    /// the same place is needed for, or any.
    pub(crate) async fn marker_below(
        &self,
        of: Option<(BlockPtr, u8)>,
        ptr: BlockPtr,
        level: u8,
    ) -> Result<Marker, PoolError> {
        self.marker_under(of, ptr, level, &mut Met::default()).await
    }

    fn marker_under<'s>(
        &'s self,
        of: Option<(BlockPtr, u8)>,
        ptr: BlockPtr,
        level: u8,
        met: &'s mut Met,
    ) -> Pin<Box<dyn Future<Output = Result<Marker, PoolError>> + 's>> {
        Box::pin(async move {
            if let Some((named, named_level)) = ptr.damaged_node() {
                return Ok(match of {
                    Some((of, _)) if of.address() == named.address() => Marker::Names,
                    // Below that node the one asked for may be.
                    Some((_, level)) if named_level > level => Marker::Unknown,
                    Some(_) => Marker::None,
                    None => Marker::Names,
                });
            }
            if level == 0 && ptr.is_partial() {
                // The record that it replaced may be below a lost node.
                let rest = match self.pool.read_partial(&ptr).await {
                    Err(error) if error.kind() == ErrorKind::Data => return Ok(Marker::Unknown),
                    record => record?.rest(),
                };
                let is_marker = rest.is_damaged();
                return if is_marker {
                    self.marker_under(of, rest, 0, met).await
                } else {
                    Ok(Marker::None)
                };
            }
            // Nodes that hold markers are younger than both the damage and what they name.
            let since = self.pool.damaged_since().unwrap_or(Txg(u64::MAX));
            let is_young = ptr.birth >= since && of.is_none_or(|(of, _)| ptr.birth > of.birth);
            if level == 0 || ptr.kind != PtrKind::Node || !is_young {
                return Ok(Marker::None);
            }
            if met.note(&ptr, level).is_err() {
                return Ok(Marker::Unknown);
            }
            let node = match self.pool.read_block(&ptr).await {
                Err(error) if error.kind() == ErrorKind::Data => return Ok(Marker::Unknown),
                node => node?,
            };
            let mut found = Marker::None;
            for slot in 0..NODE_FANOUT as u64 {
                let below = match self.pointer_below((&ptr, level), &node, slot) {
                    Ok(child) => self.marker_under(of, child, level - 1, &mut *met).await?,
                    Err(_) => Marker::Unknown,
                };
                found = found.max(below);
                if found == Marker::Names {
                    break;
                }
            }
            Ok(found)
        })
    }
}
