//! Tree nodes that are unreadable on every leg: how commits, reads and tree traversals handle them.
//!
//! Tree changes are in `txg::apply_nodes`, the recount that corrects counters in `damage::recount`.
//!
//! Invariants (docs/decisions/0015 explains damage markers):
//! - only an [`ErrorKind::Data`] error counts as damage; an error of a missing disk does not;
//! - a marker is at a lower level than the node it names, and a root is never a marker;
//! - a node that holds markers was born after [`Pool::damaged_since`];
//! - until a recount, counters include two kinds of unreferenced blocks: blocks below a node that
//!   was unreadable when it was freed, and an unreadable node that no marker names any more.

use std::pin::Pin;
use std::sync::atomic::Ordering;

use async_recursion::async_recursion as boxed;
use weir_base::{ErrorKind, Txg, VsegId};
use weir_block::Block;
use weir_format::{BlockPtr, FormatError, NODE_FANOUT, NODE_SHIFT, PtrKind};

use crate::error::PoolError;
use crate::segments::sanity::Visited;
use crate::state::lost_nodes::{DiskAddress, Marker, Unreadable};
use crate::state::pool::Pool;
use crate::tree::radix_tree::{Tree, slot_of};

/// Maximum number of nodes that resolving one damage marker may read. If damage hit each level of a
/// tree in turn, resolving reads 21 nodes. The bound ends cycles of markers.
const STEPS_MAX: usize = 64;

impl Pool {
    /// Txg in which a change first found an unreadable tree node. From then on trees may have
    /// damage markers and counters may be too high, until a recount finds neither a marker nor a
    /// wrong counter.
    pub fn damaged_since(&self) -> Option<Txg> {
        let since = self.lost_nodes.since.load(Ordering::Acquire);
        (since > 0).then_some(Txg(since))
    }

    /// Sets the damage state from the bootstrap table during an import.
    pub(crate) fn restore_lost_nodes(&self, since: Option<Txg>) {
        let Some(since) = since else { return };
        self.lost_nodes.since.store(since.0, Ordering::Release);
        self.lost_nodes.recount.store(true, Ordering::Release);
        // The segments of metadata trees may count nodes that were unreadable and that no marker
        // names any more. A rewrite of these trees corrects the counters (`settle_roots`); a
        // recount does not check them.
        self.want_new_roots();
    }

    /// Records that a change in `txg` found unreadable data. From then on checks accept counters
    /// that are too high. Returns true if this is the first unreadable data of the txg.
    pub fn note_lost_node(&self, txg: Txg) -> bool {
        let since = &self.lost_nodes.since;
        if since.compare_exchange(0, txg.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            tracing::error!(pool = self.name(), txg = txg.0, "a tree node is lost");
        }
        self.lost_nodes.met.fetch_add(1, Ordering::AcqRel);
        self.lost_nodes.newest.fetch_max(txg.0, Ordering::AcqRel) < txg.0
    }

    /// Requests a recount if the pool is damaged, because a damaged item was freed.
    pub fn want_recount(&self) {
        if self.damaged_since().is_some() {
            self.lost_nodes.recount.store(true, Ordering::Release);
        }
    }

    /// Returns whether a recount was requested, and clears the request.
    pub fn take_recount(&self) -> bool {
        self.lost_nodes.recount.swap(false, Ordering::AcqRel)
    }

    /// Number of times that changes found damage so far; the argument of
    /// [`Self::clear_lost_nodes`].
    pub fn lost_nodes_met(&self) -> u64 {
        self.lost_nodes.met.load(Ordering::Acquire)
    }

    /// Clears the damage state and returns true. The caller has found that no marker is left and
    /// that all counters are correct, and allows no commit during the call. Returns false if a
    /// change found damage since `met` was read, if another recount was requested because damaged
    /// items were freed after the count, or if metadata is still unreadable. The next commit stores
    /// the new state.
    pub fn clear_lost_nodes(&self, met: u64) -> bool {
        let is_wanted = self.lost_nodes.recount.load(Ordering::Acquire);
        // While parts of the segment table or of the remap tree are unreadable, counters include
        // the blocks of these parts.
        let is_known = !self.segments.has_unread_parts() && !self.roots_are_damaged();
        let is_clear = self.lost_nodes_met() == met && !is_wanted && is_known;
        if is_clear {
            self.lost_nodes.since.store(0, Ordering::Release);
        }
        is_clear
    }

    /// Byte offset of a block's stored data on each disk of its vdev, for tests and for
    /// administrators who inspect disks. For raidz, the result is the offset in the segment area.
    ///
    /// # Errors
    /// As [`Pool::read_block`].
    pub async fn disk_address(&self, ptr: &BlockPtr) -> Result<DiskAddress, PoolError> {
        let pinned = self.locate(ptr).await?;
        let vdev = &self.vdevs[usize::from(pinned.vdev)];
        let offset = if vdev.mirrors() { vdev.base + pinned.at } else { pinned.at };
        Ok(DiskAddress { vdev: pinned.vdev, offset, len: ptr.stored_bytes() })
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
    /// Resolves a pointer found at `level` and `index`: returns `ptr` itself or, for a damage
    /// marker, the pointer that the named node holds for this index.
    ///
    /// A change below an unreadable node writes a new node in its place and fills it with *damage
    /// markers*. A marker is a pointer that names the old node and represents the old node's
    /// contents at the marker's index. The old block is kept. So the change can commit. Its
    /// unchanged neighbours become readable again as soon as any leg has the old node, because each
    /// read through a marker tries to read the old node.
    ///
    /// # Errors
    /// `Damaged` if the named node is still unreadable.
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
            while at > level && ptr.is_stored() {
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

    /// Resolves a pointer as [`Self::resolve`] does, but tries each unreadable node once; for
    /// traversals that find many markers.
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

    /// Returns each pointer of a node of `level` twice: as stored (possibly a damage marker), and
    /// as [`Self::resolve`] resolves it.
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

    /// Resolves a damage marker that [`Self::pointer_in`] returned for a record.
    ///
    /// # Errors
    /// `Damaged` if the node that the marker names cannot be read.
    pub async fn record_at(&self, ptr: BlockPtr, record: u64) -> Result<BlockPtr, PoolError> {
        self.resolve(ptr, 0, record).await
    }

    /// True if the tree has a damage marker, or an unreadable node that may have one below it.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub(crate) async fn has_markers(&self) -> Result<bool, PoolError> {
        let (ptr, height) = self.top();
        let mut met = Visited::default();
        Ok(self.marker_under(None, ptr, height, &mut met).await? != Marker::None)
    }

    /// Searches the subtree of `ptr` for damage markers that need the node `of`, which was at the
    /// same index before. With `of` = `None`, searches for any marker.
    pub(crate) async fn marker_below(
        &self,
        of: Option<(BlockPtr, u8)>,
        ptr: BlockPtr,
        level: u8,
    ) -> Result<Marker, PoolError> {
        self.marker_under(of, ptr, level, &mut Visited::default()).await
    }

    fn marker_under<'s>(
        &'s self,
        of: Option<(BlockPtr, u8)>,
        ptr: BlockPtr,
        level: u8,
        met: &'s mut Visited,
    ) -> Pin<Box<dyn Future<Output = Result<Marker, PoolError>> + 's>> {
        Box::pin(async move {
            if let Some((named, named_level)) = ptr.damaged_node() {
                return Ok(match of {
                    Some((of, _)) if of.address() == named.address() => Marker::Names,
                    // The node `of` may be below the node that the marker names.
                    Some((_, level)) if named_level > level => Marker::Unknown,
                    Some(_) => Marker::None,
                    None => Marker::Names,
                });
            }
            if level == 0 && ptr.is_partial() {
                // The record that the partial record replaced may be below a lost node.
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
            // Skip older nodes: a node with markers was born after the first damage and after the
            // nodes that its markers name.
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
