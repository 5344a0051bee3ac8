//! Recounting what lives of segments after damage: what a lost node led to is nowhere written down,
//! so it is found as what a segment counts beyond the blocks that something leads to.
//!
//! Not here: when and at which pace (weir-dataset), what lives of a segment (live).
//!
//! Invariants:
//! - only a pool that was damaged is recounted, and only downwards: in any other a counter that
//!   disagrees is a fault, and the segment is left as it is;
//! - a segment is recounted only if every owner of its blocks could be asked, and while no
//!   write-out changed it;
//! - the next write-out takes the excess before anything else, so that a crash finds either; what
//!   was found in an older txg is not taken.

use std::collections::BTreeSet;

use async_recursion::async_recursion as boxed;
use weir_base::{Txg, VsegId};
use weir_format::layout::PACK_BYTES;
use weir_format::{RemapTable, SegmentClass, SegmentState};

use crate::error::PoolError;
use crate::state::lost_nodes::{Excess, WrongCount};
use crate::state::pool::Pool;
use crate::tree::snapshot_chain::Roots;

/// Segments that a recount looks at, by number.
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
    /// Every segment that holds, or is named by pointers to, blocks of datasets.
    pub fn plan_recount(&self) -> RecountPlan {
        let placed = self.segments.in_place_order().into_iter();
        let counts = placed.filter(|(_, entry)| {
            let lives = matches!(entry.state, SegmentState::Open | SegmentState::Sealed);
            lives && entry.class != SegmentClass::Root
        });
        let placed: Vec<VsegId> = counts.map(|(vseg, _)| vseg).collect();
        RecountPlan { placed: placed.into_iter(), moved: self.segments.moved().into_iter() }
    }

    /// Looks for what a segment counts beyond what lives of it, for the next commit to take away;
    /// false where something that may live could not be asked for.
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
        let done = if matches!(entry.state, SegmentState::Leaving | SegmentState::Remapped) {
            self.recount_moved(vseg, roots).await
        } else {
            Ok(self.live_in(vseg, roots).await?.lost == 0)
        };
        self.check_alive()?;
        // What cannot be read leaves the counter as it is.
        Ok(done.unwrap_or(false))
    }

    /// Recounts a segment whose blocks stand elsewhere.
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
            // A later import may find these blocks.
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

    /// What a segment counts, as of which commit; `None` while a write-out changes it.
    fn quiet_count(&self, vseg: VsegId) -> Option<(Txg, u64)> {
        let resting = self.streams.lock().is_some();
        let entry = self.segments.entry(vseg).filter(|_| resting)?;
        Some((self.committed_txg(), u64::from(entry.live_bytes)))
    }

    /// Whether what was found of a segment agrees with what it counts, as of a commit, or will once
    /// the next one took away what is too much.
    pub(crate) fn agrees(&self, vseg: VsegId, counted: u64, found: u64, seen: Txg) -> bool {
        if counted == found {
            return true;
        }
        if found < counted && self.damaged_since().is_some() {
            let bytes = counted - found;
            let mut excess = self.lost_nodes.excess.lock();
            excess.retain(|other| other.seen == seen && other.vseg != vseg);
            excess.push(Excess { vseg, bytes, seen });
            return true;
        }
        let error = self.bad_segment("live_bytes", found);
        tracing::error!(vseg = vseg.0, %error, "segment's counter disagrees");
        false
    }

    /// Corrects counts of references that exceed the pointers found, for the next commit to store;
    /// true if all are right now. What loses its last one is for the next recount to find.
    ///
    /// `roots`: all datasets, with no write-out under way.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn recount_references(&self, roots: &Roots) -> Result<bool, PoolError> {
        if roots.has_lost() {
            // What is not walked may be what a clone shares with an origin that was lost.
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
                    // Stays in RAM from here on: it was asked for just now.
                    self.translated(|segments| segments.references_of(vseg)).await?;
                    // At once: a forged count takes a minute to count down one by one.
                    self.segments.inner.lock().lower(vseg, offset_units, found);
                }
            }
        }
        Ok(wrong.is_empty())
    }

    /// Takes away what was found too much since the last commit.
    pub(crate) fn take_excess(&self, txg: Txg) {
        for Excess { vseg, bytes, seen } in std::mem::take(&mut *self.lost_nodes.excess.lock()) {
            if seen.next() == txg && self.segments.take_excess(vseg, bytes, txg) {
                tracing::info!(vseg = vseg.0, bytes, "space of what was damaged is back");
            }
        }
    }
}
