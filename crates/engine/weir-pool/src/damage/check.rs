//! Compares the counters of a pool with its trees.
//!
//! Not here: the space figures of volumes and snapshots (weir-dataset), verification of blocks
//! (`scan`).
//!
//! Invariants:
//! - a check changes nothing. The check traverses every tree, while no write-out runs;
//! - the traversal skips the subtree of an unreadable node. In that case, and until a damaged pool
//!   is recounted, a counter may be too high; a counter that is too low is always wrong;
//! - segments whose entries were lost have neither a counter nor an address; other code reports
//!   them.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use weir_base::VsegId;
use weir_base::hash::HashSet;
use weir_format::layout::PACK_BYTES;
use weir_format::{BlockPtr, ReferenceTable};

use crate::error::PoolError;
use crate::state::lost_nodes::WrongCount;
use crate::state::pool::Pool;
use crate::tree::radix_tree::Tree;
use crate::tree::snapshot_chain::{Roots, SharedBirths};

impl Pool {
    /// Compares the live-byte counter of every segment with the blocks that the trees refer to.
    ///
    /// A moved block counts in the segment that its pointer names and in the segment that holds it.
    /// A block with several pointers counts once.
    ///
    /// `roots`: the roots of all datasets. Returns each segment whose counter differs from the
    /// bytes of its blocks, with both numbers. In a damaged pool, counters that are too high are
    /// omitted.
    #[boxed(?Send)]
    pub async fn check_live_bytes(
        &self,
        roots: &Roots,
    ) -> Result<Vec<(VsegId, u64, u64)>, PoolError> {
        let mut sums = BTreeMap::<VsegId, (u64, u64)>::new();
        for (vseg, live) in self.segments.live_by_segment() {
            sums.entry(vseg).or_default().0 = u64::from(live);
        }
        let (mut unread, mut countable) = (Vec::new(), Vec::new());
        let shared = self.shared_segments();
        let mut add = |ptr: BlockPtr| {
            let bytes = ptr.stored_bytes() as u64;
            sums.entry(ptr.vseg).or_default().1 += bytes;
            match self.segments.host_of(&ptr) {
                Ok(Some(host)) => sums.entry(host).or_default().1 += bytes,
                Ok(None) => {}
                Err(_) => unread.push(ptr),
            }
        };
        let mut visit = |ptr: BlockPtr| {
            if shared.contains(&ptr.vseg) {
                countable.push(ptr);
            } else {
                add(ptr);
            }
        };
        let lost = self.walk_all(roots, &mut visit).await?;
        let may_exceed = self.may_exceed(lost, roots);
        countable.sort_unstable_by_key(BlockPtr::address);
        countable.dedup_by_key(|ptr| ptr.address());
        countable.into_iter().for_each(add);
        unread.sort_unstable_by_key(|ptr| ptr.vseg);
        for ptr in unread {
            if let Some(host) = self.translated(|segments| segments.host_of(&ptr)).await? {
                sums.entry(host).or_default().1 += ptr.stored_bytes() as u64;
            }
        }
        let differs = |counted, found| counted < found || (counted > found && !may_exceed);
        let differ = sums.into_iter().filter(|(_, (counted, found))| differs(*counted, *found));
        let differ = differ.filter(|(vseg, _)| !self.segments.is_lost(*vseg));
        Ok(differ.map(|(vseg, (counted, found))| (vseg, counted, found)).collect())
    }

    /// True if a pointer names a segment whose segment table entry was lost, or if the pointer's
    /// block is now in such a segment.
    fn is_in_lost_segment(&self, ptr: &BlockPtr) -> bool {
        let host = self.segments.host_of(ptr).ok().flatten();
        self.segments.is_lost(ptr.vseg) || host.is_some_and(|host| self.segments.is_lost(host))
    }

    /// Segments with a reference table. A segment gets its table when one of its blocks is shared.
    fn shared_segments(&self) -> HashSet<VsegId> {
        self.segments.with_references().into_iter().collect()
    }

    /// True if the counters may exceed the counts of a tree traversal that skipped `lost`
    /// unreadable nodes.
    fn may_exceed(&self, lost: u64, roots: &Roots) -> bool {
        lost > 0 || self.damaged_since().is_some() || roots.has_lost()
    }

    /// Visits every pointer of every tree once, even if several versions of a volume share the
    /// pointer. Returns the number of unreadable nodes.
    pub(crate) async fn walk_all(
        &self,
        roots: &Roots,
        visit: &mut dyn FnMut(BlockPtr),
    ) -> Result<u64, PoolError> {
        let mut lost = 0;
        let own = {
            let committed = self.committed.lock();
            [committed.segments, committed.datasets, committed.remaps, committed.references]
        };
        for root in own {
            lost += Tree::new(self, root).walk(&SharedBirths::default(), 0, visit).await?;
        }
        Ok(lost + self.walk_datasets(roots, visit).await?)
    }

    /// Visits pointers as [`Self::walk_all`] does, but only in the trees of datasets.
    pub(crate) async fn walk_datasets(
        &self,
        roots: &Roots,
        visit: &mut dyn FnMut(BlockPtr),
    ) -> Result<u64, PoolError> {
        let (mut lost, mut partial) = (0, HashSet::default());
        for chain in roots.chains() {
            for index in 0..chain.versions.len() {
                lost += self.walk_version(chain, index, Some(&mut partial), visit).await?;
            }
        }
        Ok(lost)
    }

    /// Finds two pointers to overlapping addresses that refer to different blocks, or one pointer
    /// without an address (returned as both).
    ///
    /// `roots`: the roots of all datasets. Returns `None` if the trees have no such pointers.
    #[boxed(?Send)]
    pub async fn check_places(
        &self,
        roots: &Roots,
    ) -> Result<Option<(BlockPtr, BlockPtr)>, PoolError> {
        let mut placed = Vec::new();
        let mut nowhere = None;
        let mut unread = Vec::new();
        let mut visit = |ptr: BlockPtr| match self.segments.locate(&ptr) {
            Ok(Some(place)) => placed.push((place.vdev, place.at, ptr)),
            Ok(None) if self.is_in_lost_segment(&ptr) => {}
            Ok(None) => nowhere = Some(ptr),
            Err(_) => unread.push(ptr),
        };
        let _lost = self.walk_all(roots, &mut visit).await?;
        unread.sort_unstable_by_key(|ptr| ptr.vseg);
        for ptr in unread {
            match self.translated(|segments| segments.locate(&ptr)).await? {
                Some(place) => placed.push((place.vdev, place.at, ptr)),
                None if self.is_in_lost_segment(&ptr) => {}
                None => nowhere = Some(ptr),
            }
        }
        if let Some(ptr) = nowhere {
            return Ok(Some((ptr, ptr)));
        }
        placed.sort_unstable_by_key(|(vdev, at, _)| (*vdev, *at));
        let shared = self.shared_segments();
        // Treat all references to a shared block as one block; `check_references` verifies their
        // number.
        placed.dedup_by(|(_, _, b), (_, _, a)| shared.contains(&a.vseg) && is_same_block(a, b));
        let overlap = placed.windows(2).find(|pair| {
            let ((va, a, first), (vb, b, _)) = (&pair[0], &pair[1]);
            va == vb && a + first.stored_bytes() as u64 > *b
        });
        Ok(overlap.map(|pair| (pair[0].2, pair[1].2)))
    }

    /// Compares the reference counts with the pointers to the blocks.
    ///
    /// `roots`: the roots of all datasets. Returns the differences; the result is empty if all
    /// counts are right.
    #[boxed(?Send)]
    pub async fn check_references(&self, roots: &Roots) -> Result<Vec<WrongCount>, PoolError> {
        let (mut wrong, may_exceed) = self.count_references(roots).await?;
        wrong.retain(|wrong| !(may_exceed && wrong.exceeds()));
        Ok(wrong)
    }

    /// Compares counts as [`Self::check_references`] does, but also returns the differences that
    /// known damage may explain, and whether such damage exists.
    pub(crate) async fn count_references(
        &self,
        roots: &Roots,
    ) -> Result<(Vec<WrongCount>, bool), PoolError> {
        let shared = self.shared_segments();
        let mut found = BTreeMap::<VsegId, Vec<BlockPtr>>::new();
        found.extend(shared.iter().map(|vseg| (*vseg, Vec::new())));
        let mut visit = |ptr: BlockPtr| {
            if shared.contains(&ptr.vseg) {
                found.entry(ptr.vseg).or_default().push(ptr);
            }
        };
        let lost = self.walk_all(roots, &mut visit).await?;
        let may_exceed = self.may_exceed(lost, roots);
        let (mut wrong, mut saved, mut is_unknown) = (Vec::new(), 0, false);
        for (vseg, ptrs) in found {
            let table = self.translated(|segments| segments.references_of(vseg)).await?;
            if table.as_ref().is_some_and(|table| table.is_unknown()) {
                // The reference counts of this segment were lost, so they cannot be compared. The
                // pool frees no block of such a segment.
                is_unknown = true;
                continue;
            }
            saved += compare(vseg, table.as_deref(), ptrs, &mut wrong);
        }
        let counted = self.space().saved_bytes;
        if counted != saved && !is_unknown {
            wrong.push(WrongCount::Saved { counted, found: saved });
        }
        Ok((wrong, may_exceed))
    }
}

/// True if two pointers name one address, with equal size, codec and checksum.
fn is_same_block(a: &BlockPtr, b: &BlockPtr) -> bool {
    let what = |ptr: &BlockPtr| (ptr.address(), ptr.stored_units, ptr.codec, ptr.checksum);
    (a.kind, a.record) == (b.kind, b.record) && what(a) == what(b)
}

/// Compares the reference counts of one segment with the pointers that the traversal found. Returns
/// the bytes that sharing saves.
fn compare(
    vseg: VsegId,
    table: Option<&ReferenceTable>,
    mut ptrs: Vec<BlockPtr>,
    wrong: &mut Vec<WrongCount>,
) -> u64 {
    let mut differ = |units: u32, counted: u64, found: u64| {
        let offset = u64::from(units) * PACK_BYTES as u64;
        wrong.push(WrongCount::References { vseg, offset, counted, found });
    };
    let mut saved = 0;
    ptrs.sort_unstable_by_key(|ptr| ptr.offset_units);
    let mut seen = HashSet::default();
    for same in ptrs.chunk_by(|a, b| a.offset_units == b.offset_units) {
        let (units, found) = (same[0].offset_units, same.len() as u64);
        let counted = table.and_then(|table| table.count(units));
        seen.insert(units);
        saved += (found - 1) * same[0].stored_bytes() as u64;
        if counted.map_or(1, u64::from) != found {
            differ(units, counted.map_or(0, u64::from), found);
        }
    }
    for (units, counted) in table.into_iter().flat_map(ReferenceTable::entries) {
        if !seen.contains(&units) {
            differ(units, u64::from(counted), 0);
        }
    }
    saved
}
