//! Recount: corrects the live-byte counters of segments after tree nodes were lost. The excess of a
//! counter over the live blocks of its segment is the size of the blocks below lost nodes.
//!
//! Not here: start and pace of recounts (weir-dataset), the search for live blocks (`live`).
//!
//! Invariants:
//! - only a damaged pool is recounted, and counters are only lowered: in any other pool a counter
//!   that disagrees is a fault, and the segment is left unchanged;
//! - a segment is recounted only if every owner of its blocks could be checked, and while no
//!   write-out changed it;
//! - the next write-out subtracts the excess before any other change, so a crash leaves the old or
//!   the corrected counter; an excess that was found in an older txg is discarded.

use std::collections::BTreeSet;

use async_recursion::async_recursion as boxed;
use weir_base::{Txg, VsegId};
use weir_format::layout::PACK_BYTES;
use weir_format::{RemapTable, SegmentClass, SegmentState};

use crate::error::PoolError;
use crate::state::lost_nodes::{Leak, WrongCount};
use crate::state::pool::Pool;
use crate::tree::snapshot_chain::Roots;

/// Numbers of the segments that a recount checks.
pub struct RecountPlan {
    placed: std::vec::IntoIter<VsegId>,
    moved: std::vec::IntoIter<VsegId>,
}

impl Iterator for RecountPlan {
    type Item = VsegId;

    fn next(&mut self) -> Option<VsegId> {
        self.placed.next().or_else(|| self.moved.next())
    }
}

impl Pool {
    /// Lists every segment that stores blocks of datasets, or that pointers to such blocks name.
    pub fn plan_recount(&self) -> RecountPlan {
        let placed = self.segments.in_place_order().into_iter();
        let counts = placed.filter(|(_, entry)| {
            let lives = matches!(entry.state, SegmentState::Open | SegmentState::Sealed);
            lives && entry.class != SegmentClass::Root
        });
        let placed: Vec<VsegId> = counts.map(|(vseg, _)| vseg).collect();
        RecountPlan { placed: placed.into_iter(), moved: self.segments.moved().into_iter() }
    }

    /// Finds the excess of a segment's counter over its live blocks, for the next commit to
    /// subtract. Returns false if some block may be live and its owner could not be checked.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn recount_segment(
        &self,
        vseg: VsegId,
        roots: &(dyn Fn() -> Roots + Sync),
    ) -> Result<bool, PoolError> {
        let Some(entry) = self.segments.entry(vseg) else { return Ok(true) };
        let done = if matches!(entry.state, SegmentState::Evacuating | SegmentState::Remapped) {
            self.recount_moved(vseg, roots).await
        } else {
            Ok(self.live_in(vseg, roots).await?.lost == 0)
        };
        self.check_alive()?;
        // If some of the metadata needed for the count is unreadable, the counter stays unchanged.
        Ok(done.unwrap_or(false))
    }

    /// Recounts a cleaned segment, whose blocks were moved to other segments.
    async fn recount_moved(
        &self,
        vseg: VsegId,
        roots: &(dyn Fn() -> Roots + Sync),
    ) -> Result<bool, PoolError> {
        let before = self.quiet_count(vseg);
        let table = self.translated(|segments| segments.table::<RemapTable>(vseg)).await?;
        let hosts: BTreeSet<VsegId> =
            table.iter().flat_map(|table| table.runs()).map(|run| run.host).collect();
        let (roots, mut bytes) = (roots(), 0);
        if hosts.iter().any(|host| self.segments.is_lost(*host)) {
            // A later import may read the lost entry of the host segment, and find the moved blocks
            // there.
            return Ok(false);
        }
        for host in hosts {
            let Some(entry) = self.segments.entry(host) else { continue };
            let (mut entries, _) = self.read_summaries(host, entry.summary).await?;
            entries.retain(|entry| entry.vseg == vseg);
            let found = self.find_live(&roots, host, entries).await;
            if !found.failed.is_empty() || found.uncounted {
                return Ok(false);
            }
            bytes += found.bytes();
        }
        match (before, self.quiet_count(vseg)) {
            (Some((txg, counted)), now) if now == before => {
                Ok(self.agrees(vseg, counted, bytes, txg))
            }
            _ => Ok(false),
        }
    }

    /// Counter of a segment and the commit to which the value belongs; `None` during a write-out.
    fn quiet_count(&self, vseg: VsegId) -> Option<(Txg, u64)> {
        let resting = self.streams.lock().is_some();
        let entry = self.segments.entry(vseg).filter(|_| resting)?;
        Some((self.committed_txg(), u64::from(entry.live_bytes)))
    }

    /// Compares the live bytes found in a segment with its counter as of commit `seen`. In a
    /// damaged pool, the next commit subtracts the excess of the counter. Returns false for any
    /// other difference, which is a fault.
    pub(crate) fn agrees(&self, vseg: VsegId, counted: u64, found: u64, seen: Txg) -> bool {
        if counted == found {
            return true;
        }
        if found < counted && self.damaged_since().is_some() {
            let bytes = counted - found;
            let mut leaks = self.lost_nodes.leaks.lock();
            leaks.retain(|other| other.seen == seen && other.vseg != vseg);
            leaks.push(Leak { vseg, bytes, seen });
            return true;
        }
        let error = self.bad_segment("live_bytes", found);
        tracing::error!(vseg = vseg.0, %error, "segment's counter is wrong");
        false
    }

    /// Lowers reference counts that exceed the pointers found; the next commit stores the lowered
    /// counts. Returns true if all counts were right. Blocks without a reference are left to the
    /// next recount.
    ///
    /// `roots`: the roots of all datasets. No write-out may run.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn recount_references(&self, roots: &Roots) -> Result<bool, PoolError> {
        if roots.has_lost() {
            // Lower no count: the traversal may miss blocks that a clone shares with a lost origin.
            return Ok(false);
        }
        let (wrong, _) = self.count_references(roots).await?;
        if !wrong.iter().all(WrongCount::exceeds) {
            return Ok(false);
        }
        for wrong in &wrong {
            match *wrong {
                WrongCount::Saved { found, .. } => self.segments.inner.lock().saved_bytes = found,
                WrongCount::References { vseg, offset, found, .. } => {
                    let offset_units = (offset / PACK_BYTES as u64) as u32;
                    let found = u32::try_from(found).expect("less than a count of the table");
                    // Load the table; a recently used table stays in RAM.
                    self.translated(|segments| segments.references_of(vseg)).await?;
                    // Set the count in one step: lowering a crafted count in steps of one takes a
                    // minute.
                    self.segments.inner.lock().lower(vseg, offset_units, found);
                }
            }
        }
        Ok(wrong.is_empty())
    }

    /// Subtracts the leaked bytes that recounts found since the last commit.
    pub(crate) fn take_excess(&self, txg: Txg) {
        for Leak { vseg, bytes, seen } in std::mem::take(&mut *self.lost_nodes.leaks.lock()) {
            if seen.next() == txg && self.segments.take_excess(vseg, bytes, txg) {
                tracing::info!(vseg = vseg.0, bytes, "space of damaged blocks was reclaimed");
            }
        }
    }
}
