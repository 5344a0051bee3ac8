//! Txg commit: writes segment table, bootstrap table and, between two flush barriers, the
//! uberblock.
//!
//! The caller has already written the blocks of the datasets.
//!
//! Invariants (docs/design/commit.md):
//! - barrier 1: everything that the uberblock references is durable before the uberblock is issued;
//! - barrier 2: the uberblock is durable before the log is released and waiters are woken;
//! - the first commit in a pool of an older format writes all labels in this Weir's format, and
//!   flushes them, before its uberblock;
//! - a failed commit poisons the pool, and the txg is not retried. A failure of a log vdev fails no
//!   commit.

use std::ops::Range;
use std::sync::atomic::Ordering;

use async_recursion::async_recursion as boxed;
use futures_util::future::LocalBoxFuture;
use weir_base::{BLOCK_BYTES, ErrorKind, Guid, Txg, VsegId};
use weir_block::{Block, Blocks};
use weir_codec::checksum::xxh3_128;
use weir_format::layout::{FORMAT_VERSION, RING_SLOTS};
use weir_format::{
    BlockPtr, Bootstrap, BootstrapCopy, Compression, PtrKind, ReferenceTable, RemapTable,
    STALE_LEGS_MAX, SegmentClass, SegmentEntry, SegmentState, StaleLeg, TreeRoot, Uberblock,
};

use crate::disks::labels::{DamagedSlot, write_uberblock, zero_slot};
use crate::disks::leg::Leg;
use crate::disks::vdev::Vdev;
use crate::error::PoolError;
use crate::planted_bugs::PlantedBug;
use crate::segments::entries::{Inner, table_block};
use crate::segments::tables::{HoldsTables, Table};
use crate::state::compression::CompressHistory;
use crate::state::pool::{Committed, Pool};
use crate::tree::change::{Change, filled};
use crate::tree::radix_tree::{EarlierSnapshots, Tree, TreeKind};
use crate::txg::write_out::WriteOut;

/// Minimum number of copies of the bootstrap table in a commit. Two copies are in one root segment;
/// if the root segment has a third copy, the table has one too. With two copies, a bad sector loses
/// no part of the pool, even on a single disk.
const BOOTSTRAP_COPIES: usize = 2;
/// A commit rewrites the metadata trees if at least this many root segments are sealed and more
/// than half of their space is dead. The cleaner never processes root segments, and the trees take
/// a few MiB at most.
const ROOT_SEGMENTS_MAX: usize = 4;
/// The same limit while few segments are free. Only dead root segments make room for new ones, so
/// this lower limit reclaims each root segment soon.
const ROOT_SEGMENTS_MAX_IF_FULL: usize = 1;

/// State of the datasets in the txg to be committed.
#[derive(Clone, Copy, Debug)]
pub struct CommitInput {
    /// Dataset directory.
    pub datasets: TreeRoot,
    /// Next dataset id.
    pub next_dataset: u64,
    /// True if the whole directory was rewritten, so the commit must rewrite all metadata trees
    /// ([`Pool::root_is_stale`]).
    pub all: bool,
    /// True if the commit leaves unreadable parts of the directory in place.
    pub keeps_unread: bool,
}

/// The metadata trees in the txg to be committed.
#[derive(Clone, Copy)]
struct Trees {
    segments: TreeRoot,
    remaps: TreeRoot,
    references: TreeRoot,
}

impl Pool {
    /// True if the next commit should rewrite the directory, the segment table and all remap and
    /// reference tables. Reasons: old root segments can then be freed, or some metadata is
    /// unreadable or readable only from its second copy.
    pub fn root_is_stale(&self) -> bool {
        let (roots, _) = self.segments.root_segments();
        let sealed = roots
            .iter()
            .filter(|(_, entry)| entry.state == SegmentState::Sealed && entry.copy_of.is_none());
        let (mut count, mut live, mut room) = (0, 0, 0);
        for (_, entry) in sealed {
            count += 1;
            live += u64::from(entry.live_bytes);
            room += self.segments.room(entry);
        }
        let leaving = |entry: &SegmentEntry| {
            entry.state == SegmentState::Sealed && !self.segments.area(entry.vdev).is_open()
        };
        let half_dead = live < room / 2;
        let is_full = !self.has_free_above(self.reserve().writers);
        let max = if is_full { ROOT_SEGMENTS_MAX_IF_FULL } else { ROOT_SEGMENTS_MAX };
        (count >= max && half_dead)
            || roots.iter().any(|(_, entry)| leaving(entry))
            || self.roots_are_damaged()
    }

    /// Requests that the next commit rewrites all metadata trees, because some metadata is
    /// unreadable or readable only from its second copy.
    pub(crate) fn want_new_roots(&self) {
        if self.bug != PlantedBug::LostRootStays {
            self.roots_are_damaged.store(true, Ordering::Release);
        }
    }

    /// True if a reader found metadata that is unreadable, or readable only from its second copy,
    /// and no commit has rewritten the trees since.
    pub fn roots_are_damaged(&self) -> bool {
        self.roots_are_damaged.load(Ordering::Acquire)
    }

    /// Commits the txg of `out`; the caller has completed [`WriteOut::finish`].
    ///
    /// # Durability
    /// On `Ok` the txg is the newest txg of the pool on every leg in use.
    ///
    /// # Errors
    /// The pool is poisoned. An import finds the last committed txg and the intent log.
    pub fn commit<'a>(
        &'a self,
        out: WriteOut<'a>,
        input: CommitInput,
    ) -> LocalBoxFuture<'a, Result<(), PoolError>> {
        Box::pin(async move {
            self.check_alive()?;
            assert!(out.is_finished(), "space is freed before its txg is committed");
            self.commit_steps(out, input).await.map_err(|error| self.poison(&error))
        })
    }

    async fn commit_steps(
        &self,
        mut out: WriteOut<'_>,
        input: CommitInput,
    ) -> Result<(), PoolError> {
        let txg = out.txg;
        self.check_owner().await?;
        self.log.move_to(self.wanted_log_vdev());
        let before = *self.committed.lock();
        if before.version < FORMAT_VERSION && self.bug != PlantedBug::LabelsKeepFormat {
            self.raise_labels(FORMAT_VERSION).await?;
        }
        assert_eq!(txg, before.txg.next(), "txgs are committed one after another");
        let all = input.all;
        self.segments.remove_emptied();
        let (remaps, stored) =
            self.write_tables::<RemapTable>(&mut out, before.remaps, all).await?;
        let (references, counts) =
            self.write_tables::<ReferenceTable>(&mut out, before.references, all).await?;
        let segments = self.write_segment_table(&mut out, before.segments, all).await?;
        if all {
            if !input.keeps_unread {
                self.segments.settle_roots(&out.of_roots, txg);
            }
            if self.roots_are_damaged.swap(false, Ordering::AcqRel) {
                self.want_recount();
            }
        }
        let trees = Trees { segments, remaps, references };
        let (bytes, copies) = self.write_bootstrap(&mut out, trees, input).await?;
        out.wait_writes().await?;
        if self.bug != PlantedBug::SkipCommitFlush {
            self.flush_all().await?;
        }
        let log = self.log.start_after(txg);
        let (stale_legs, unconfirmed_legs) = self.legs_behind(before.txg, log.vdev);
        let uberblock = Uberblock {
            version: FORMAT_VERSION,
            pool: self.label.pool,
            txg,
            unix_ms: self.clock.unix_ms(),
            log_epoch: log.epoch,
            log_vdev: log.vdev,
            log_batch: log.batch,
            log_offset: log.offset,
            bootstrap: copies,
            bootstrap_bytes: bytes.len() as u32,
            bootstrap_checksum: xxh3_128(&bytes),
            stale_legs,
            lineage: self.lineage.clone(),
            unconfirmed_legs,
        };
        // A leg may have failed since its flush. If too few complete legs are left, do not write an
        // uberblock that lists that leg as stale: an import would select this uberblock and find
        // its data unreadable.
        self.vdevs.in_service().try_for_each(Vdev::check_alive)?;
        self.check_owner().await?;
        write_uberblock(&self.vdevs, &uberblock).await?;
        self.note_listed(&uberblock);
        self.settle_legs(&uberblock);
        let _is_zeroed = self.zero_damaged_slots(txg, |_| true).await;
        *self.committed.lock() = Committed {
            txg,
            segments,
            datasets: input.datasets,
            remaps,
            references,
            next_dataset: input.next_dataset,
            log_vdev: log.vdev,
            version: uberblock.version,
        };
        self.segments.stored_tables(stored, counts);
        self.fit_cache();
        self.log.release(log);
        out.end();
        Ok(())
    }

    /// Claims the pool: writes the first uberblock of this import epoch, which references the same
    /// trees as `from`.
    #[boxed(?Send)]
    pub(crate) async fn claim(&self, from: &Uberblock) -> Result<(), PoolError> {
        let committed = self.committed_txg();
        let txg = committed.next();
        assert_eq!(self.lineage[0].first, txg, "nothing was committed yet");
        if self.has_old_labels && from.version == FORMAT_VERSION {
            let raised = self.raise_labels(from.version).await;
            raised.map_err(|error| self.poison(&error))?;
        }
        let (stale_legs, unconfirmed_legs) = self.legs_behind(committed, from.log_vdev);
        let claim = Uberblock {
            txg,
            unix_ms: self.clock.unix_ms(),
            stale_legs,
            lineage: self.lineage.clone(),
            unconfirmed_legs,
            ..from.clone()
        };
        if self.zero_damaged_slots(committed, |slot| slot.is_torn).await {
            // A power cut may tear the claim on the same disk. Without this flush that disk would
            // have two damaged slots in a row, and an import of that disk alone would be refused.
            self.flush_all().await.map_err(|error| self.poison(&error))?;
        }
        let alive = self.vdevs.in_service().try_for_each(Vdev::check_alive);
        alive.map_err(|error| self.poison(&error))?;
        write_uberblock(&self.vdevs, &claim).await.map_err(|error| self.poison(&error))?;
        self.note_listed(&claim);
        self.committed.lock().txg = txg;
        if self.zero_damaged_slots(txg, |_| true).await {
            // Flush before the first row is written: that row may overwrite rows of the txgs that a
            // forced import abandoned, so no later import may find the uberblocks of those txgs.
            self.flush_all().await.map_err(|error| self.poison(&error))?;
        }
        Ok(())
    }

    /// Records which legs a durable uberblock lists as stale.
    fn note_listed(&self, uberblock: &Uberblock) {
        for leg in self.vdevs.legs() {
            leg.set_listed(uberblock.stale_legs.iter().any(|stale| stale.guid == leg.guid));
        }
    }

    /// Clears the stale state of each leg that a durable uberblock no longer lists.
    fn settle_legs(&self, uberblock: &Uberblock) {
        for leg in self.vdevs.legs() {
            let mut listed = uberblock.stale_legs.iter().chain(&uberblock.unconfirmed_legs);
            if listed.all(|listed| listed.guid != leg.guid) {
                leg.settle_copied();
            }
        }
    }

    /// Records ring slots, each with its leg, that are damaged or have the uberblock of a txg that
    /// a forced import abandoned. `seen`: the newest txg when the slots were found. A power cut
    /// tore the slots `torn` while another disk got the uberblock.
    pub(crate) fn note_damaged_slots(
        &self,
        found: impl Iterator<Item = (Guid, u64)>,
        seen: Txg,
        torn: &[(Guid, u64)],
    ) {
        let found = found.map(|(leg, slot)| {
            let is_torn = torn.contains(&(leg, slot));
            DamagedSlot { leg, slot, seen, is_torn }
        });
        self.damaged_slots.lock().extend(found);
    }

    /// Zeroes the noted ring slots that `is_due` selects, because an import counts damaged slots
    /// after the newest uberblock. Skips slots that txgs after `seen`, up to `newest`, overwrote
    /// with a valid uberblock. Returns true if a slot was zeroed.
    async fn zero_damaged_slots(&self, newest: Txg, is_due: impl Fn(&DamagedSlot) -> bool) -> bool {
        let mut is_zeroed = false;
        let found: Vec<_> = self.damaged_slots.lock().extract_if(.., |slot| is_due(slot)).collect();
        for DamagedSlot { leg, slot, seen, .. } in found {
            // The first txg after `seen` whose uberblock goes to this slot.
            let first = slot.wrapping_sub(seen.0.wrapping_add(1)) % RING_SLOTS;
            let is_written = first < newest.0.saturating_sub(seen.0);
            let Ok((vdev, leg)) = self.leg(leg) else { continue };
            let Some(device) = leg.usable().filter(|_| !is_written) else { continue };
            if let Err(error) = zero_slot(&*device, vdev.disk_bytes(), slot).await {
                leg.fault(&error);
            }
            is_zeroed = true;
        }
        is_zeroed
    }

    pub(crate) async fn flush_all(&self) -> Result<(), PoolError> {
        let flushes = self.vdevs.in_service().map(|vdev| vdev.unless_dispensable(vdev.flush()));
        futures_util::future::join_all(flushes).await.into_iter().collect()
    }

    /// Returns the legs that the uberblock lists as stale, then the legs that it lists as
    /// unconfirmed. Detached legs are listed as stale too, the most recent first, because an old
    /// label may still name them. The lists hold at most [`STALE_LEGS_MAX`] legs together.
    ///
    /// If the log is on a failed log vdev, the leg that failed last is not listed. Nothing was
    /// logged after the failure of that leg, and the leg has the only durable copy of the log.
    fn legs_behind(&self, committed: Txg, log_vdev: u16) -> (Vec<StaleLeg>, Vec<StaleLeg>) {
        let last = self.vdevs[usize::from(log_vdev)].last_standing();
        let stale = |leg: &Leg| {
            let after = leg.stale_in_next(committed)?;
            Some(StaleLeg { guid: leg.guid, after })
        };
        let legs = self.vdevs.in_service().flat_map(|vdev| &vdev.legs).filter_map(stale);
        let mut legs: Vec<StaleLeg> = legs.filter(|stale| Some(stale.guid) != last).collect();
        let unconfirmed = |leg: &Leg| {
            let after = leg.unconfirmed_in_next()?;
            Some(StaleLeg { guid: leg.guid, after })
        };
        let unconfirmed =
            self.vdevs.in_service().flat_map(|vdev| &vdev.legs).filter_map(unconfirmed);
        let unconfirmed: Vec<StaleLeg> = unconfirmed.take(STALE_LEGS_MAX - legs.len()).collect();
        let left = self.left.lock();
        let room = STALE_LEGS_MAX - legs.len() - unconfirmed.len();
        legs.extend(left.iter().rev().take(room));
        (legs, unconfirmed)
    }

    /// Writes the changed tables of one kind, or every table of that kind if `all`. Replaces the
    /// pointers of deleted tables by holes. Returns the new tree and the pointers of the tables
    /// written.
    async fn write_tables<T: Table>(
        &self,
        out: &mut WriteOut<'_>,
        root: TreeRoot,
        all: bool,
    ) -> Result<(TreeRoot, Vec<(VsegId, BlockPtr)>), PoolError>
    where
        Inner: HoldsTables<T>,
    {
        let (vsegs, lost, kept) = {
            let mut inner = self.segments.inner.lock();
            let tables = inner.tables_of::<T>();
            (tables.take_changed(all), tables.take_lost_parts(), tables.kept_parts().to_vec())
        };
        let root = self.without(out, root, &lost).await?;
        if vsegs.is_empty() && !all {
            return Ok((root, Vec::new()));
        }
        let blocks = vsegs.last().map_or(1, |last| last.0 + 1);
        let height = TreeRoot::height_for(blocks).max(root.height);
        let root = Tree::new(self, root).grow(out, TreeKind::Root, height).await?.0;
        let mut changes = Vec::with_capacity(vsegs.len());
        let mut stored = Vec::new();
        for vseg in vsegs {
            let ptr = match self.translated(|segments| segments.table::<T>(vseg)).await {
                Ok(Some(table)) => out.write_bytes(&table.encode(vseg)).await?,
                Ok(None) => BlockPtr::HOLE,
                // An unchanged table that cannot be read for the rewrite stays in place.
                Err(error) if error.kind() == ErrorKind::Data => {
                    let ptr = self.segments.inner.lock().tables_of::<T>().stored_at(vseg);
                    if let Some(ptr) = ptr {
                        out.keep_root(&ptr);
                        changes.push(Change::one(vseg.0, ptr));
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            if !ptr.is_hole() {
                stored.push((vseg, ptr));
            }
            changes.push(Change::one(vseg.0, ptr));
        }
        if all {
            changes = filled(changes, root.blocks(), &kept);
        }
        let (root, _) = Tree::new(self, root)
            .apply(out, TreeKind::Root, &EarlierSnapshots::default(), &changes)
            .await?;
        Ok((root, stored))
    }

    /// Removes lost parts from a metadata tree.
    #[boxed(?Send)]
    pub async fn without(
        &self,
        out: &mut WriteOut<'_>,
        root: TreeRoot,
        lost: &[Range<u64>],
    ) -> Result<TreeRoot, PoolError> {
        let inside = lost.iter().map(|range| range.start..range.end.min(root.blocks()));
        let holes: Vec<Change> =
            inside.filter(|range| !range.is_empty()).map(Change::hole).collect();
        let past = EarlierSnapshots::default();
        Ok(Tree::new(self, root).apply(out, TreeKind::Root, &past, &holes).await?.0)
    }

    async fn write_segment_table(
        &self,
        out: &mut WriteOut<'_>,
        root: TreeRoot,
        all: bool,
    ) -> Result<TreeRoot, PoolError> {
        let (_, next_vseg) = self.segments.root_segments();
        let height = TreeRoot::height_for(table_block(next_vseg) + 1);
        let root = Tree::new(self, root).grow(out, TreeKind::Root, height).await?.0;
        let mut changes = Vec::new();
        for (start, content) in self.segments.take_dirty_blocks(all) {
            let ptr = match content {
                Some(content) => write_directory_block(out, &content).await?,
                None => BlockPtr::HOLE,
            };
            changes.push(Change::one(start, ptr));
        }
        if all {
            changes = filled(changes, root.blocks(), &self.segments.lost_blocks());
        }
        let (root, _) = Tree::new(self, root)
            .apply(out, TreeKind::Root, &EarlierSnapshots::default(), &changes)
            .await?;
        Ok(root)
    }

    /// Appends the bootstrap table. The table describes the segment in which it is stored, so its
    /// location must be fixed before its content is encoded.
    async fn write_bootstrap(
        &self,
        out: &mut WriteOut<'_>,
        trees: Trees,
        input: CommitInput,
    ) -> Result<(Vec<u8>, Vec<BootstrapCopy>), PoolError> {
        let strip = self.label.strip_bytes as usize;
        let txg = out.txg;
        let encode = || {
            let (root_segments, next_vseg) = self.segments.root_segments();
            let CommitInput { datasets, next_dataset, .. } = input;
            let Trees { segments, remaps, references } = trees;
            Bootstrap {
                txg,
                next_vseg,
                next_dataset,
                segments,
                datasets,
                remaps,
                references,
                saved_bytes: self.space().saved_bytes,
                root_segments,
                free: self.segments.free_runs(),
                damaged_since: self.damaged_since(),
            }
            .encode()
        };
        // Add space for one more root segment and its third copy, because `lane_with_room` may open
        // a root segment.
        let more = 2 * (size_of::<u64>() + SegmentEntry::BYTES);
        let wanted = (encode().len() + more).next_multiple_of(strip);
        out.close_rows(SegmentClass::Root).await?;
        out.lane_with_room(SegmentClass::Root, wanted, false).await?;
        // A segment that stores everything twice needs no separate second copy.
        let is_twice = |vseg| self.segments.entry(vseg).is_some_and(|entry| entry.second_at > 0);
        if !is_twice(out.root_cursor().0) {
            out.lane_with_room(SegmentClass::Root, BOOTSTRAP_COPIES * wanted, false).await?;
        }
        let (vseg, vdev, cursor) = out.root_cursor();
        // Round each copy to whole strips: on raidz the copies are then on different disks of one
        // row.
        let copy_bytes = encode().len().next_multiple_of(strip);
        let row = self.vdevs[usize::from(vdev)].row_bytes as usize;
        let appended = if is_twice(vseg) { 1 } else { BOOTSTRAP_COPIES };
        let end = (cursor as usize + appended * copy_bytes).next_multiple_of(row);
        self.segments.set_fill(vseg, end as u32, out.txg, false);
        let bytes = encode();
        let mut padded = bytes.clone();
        padded.resize(copy_bytes, 0);
        let mut copies = Vec::new();
        while copies.len() < BOOTSTRAP_COPIES {
            copies.extend(out.append_strips(&padded).await?);
        }
        out.close_rows(SegmentClass::Root).await?;
        Ok((bytes, copies))
    }
}

/// Writes one block of the segment table or the dataset directory.
#[boxed(?Send)]
pub async fn write_directory_block(
    out: &mut WriteOut<'_>,
    content: &[u8; BLOCK_BYTES],
) -> Result<BlockPtr, PoolError> {
    let mut history = CompressHistory::default();
    let (class, kind) = (SegmentClass::Root, PtrKind::Data);
    let (record, lz4) = (Blocks::One(Block::copy_of(content)), Compression::Lz4);
    out.write_record(class, None, kind, &record, lz4, &mut history).await
}
