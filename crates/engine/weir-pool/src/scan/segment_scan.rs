//! Scans: verify every copy of the live blocks (scrub), or write missed data to legs (resilver),
//! segment by segment, in disk order.
//!
//! Not here: pace and commits around a scan (weir-dataset), the search for live blocks (`live`),
//! checking some blocks on every leg (`copies`).
//!
//! Invariant: a leg is marked up to date only if it was in use during the whole resilver.
//!
//! Crash safety: no disk stores a scan. The server stores status and position of the newest scan,
//! and a scrub resumes at that position. The uberblock lists a leg under resilver as stale until
//! [`Pool::finish_resilver`] and the next commit, so the leg is still stale after a crash.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use weir_base::hash::HashMap;
use weir_base::{Guid, VsegId};
use weir_format::{BlockPtr, SegmentClass, SegmentEntry};

use crate::disks::leg::Leg;
use crate::disks::scan_kind::ScanKind;
use crate::error::PoolError;
use crate::scan::part::Checked;
use crate::state::pool::Pool;
use crate::state::scans::{ScanPace, ScanPlace, ScanState, ScanStatus};
use crate::tree::live::{Live, LiveSet};
use crate::tree::snapshot_chain::Roots;

/// Segments that a scan has to check, by address.
///
/// A scan covers the segments that exist when it begins. These segments suffice, because later
/// writes and moves go to every leg in use, and a segment that no longer exists when the scan
/// reaches it holds no live data. The last txg that wrote to a segment shows which legs lack it: a
/// resilver reads only segments that some leg lacks.
pub struct ScanPlan {
    segments: std::vec::IntoIter<(VsegId, ScanPlace)>,
    /// Live blocks of root segments.
    roots: HashMap<VsegId, LiveSet>,
}

impl Iterator for ScanPlan {
    type Item = PlannedSegment;

    fn next(&mut self) -> Option<PlannedSegment> {
        let (vseg, place) = self.segments.next()?;
        Some(PlannedSegment { vseg, place, of_roots: self.roots.remove(&vseg) })
    }
}

/// Segment that a scan has to check.
pub struct PlannedSegment {
    vseg: VsegId,
    place: ScanPlace,
    /// Live blocks of the segment, if it is a root segment.
    of_roots: Option<LiveSet>,
}

impl PlannedSegment {
    /// Position of the segment in the order of the scan.
    pub fn place(&self) -> ScanPlace {
        self.place
    }
}

/// Segment that a scan is checking.
pub struct SegmentScan {
    vseg: VsegId,
    live: Vec<Live>,
    done: usize,
    /// True if some live blocks could not be found, so that other bytes of a row may be live as
    /// well.
    partly_known: bool,
    /// Number of wrong parity strips that only the second pass may rewrite.
    postponed: u64,
    /// True in the second pass.
    settles: bool,
}

impl SegmentScan {
    /// True if the scan has checked all live blocks of the segment.
    pub fn is_done(&self) -> bool {
        self.done >= self.live.len()
    }

    /// True if the scan of this segment needs a second pass after a commit.
    pub fn wants_second_look(&self) -> bool {
        self.is_done() && self.postponed > 0 && !self.settles && !self.partly_known
    }

    /// Begins the second pass, which rewrites wrong parity. A commit that began after the first
    /// pass of the segment must have ended, because the first pass did not verify blocks freed
    /// before that commit, and a power cut before the end of the commit makes these blocks live
    /// again.
    pub fn begin_second_pass(&mut self) {
        assert!(self.wants_second_look(), "there is something to settle");
        (self.done, self.settles, self.postponed) = (0, true, 0);
    }
}

impl Pool {
    /// Status of the running scan, or of the last one.
    pub fn scan_status(&self) -> Option<ScanStatus> {
        self.scans.status(self.clock())
    }

    /// True if a leg in use waits for a resilver.
    pub fn wants_resilver(&self) -> bool {
        self.resilver_legs().next().is_some()
    }

    fn resilver_legs(&self) -> impl Iterator<Item = &Leg> {
        let legs = self.vdevs.in_service().flat_map(|vdev| &vdev.legs);
        legs.filter(|leg| leg.usable().is_some() && leg.stale_after().is_some())
    }

    /// Legs of a resilver that begins now; the caller passes them to [`Self::finish_resilver`].
    pub fn begin_resilver(&self) -> Vec<(Guid, u64)> {
        self.resilver_legs().map(|leg| (leg.guid, leg.absences())).collect()
    }

    /// Flushes the writes of a resilver, and lets the next uberblock list its legs as up to date if
    /// these legs were in use during the whole resilver.
    ///
    /// # Durability
    /// The legs count as up to date, also after a crash, once the next commit returns; until then
    /// they are stale.
    #[boxed(?Send)]
    pub async fn finish_resilver(&self, legs: &[(Guid, u64)]) -> Result<(), PoolError> {
        self.flush_all().await?;
        for leg in self.vdevs.legs() {
            if let Some((_, absences)) = legs.iter().find(|(guid, _)| *guid == leg.guid) {
                leg.set_copied(*absences);
            }
        }
        Ok(())
    }

    /// Sets the scan status to a new scan.
    pub fn begin_scan(&self, kind: ScanKind) {
        let total_bytes = match kind {
            ScanKind::Scrub => self.space().live_bytes,
            ScanKind::Resilver => self.bytes_missed(),
        };
        let status = ScanStatus {
            kind,
            state: ScanState::Running,
            started_unix_ms: self.clock.unix_ms(),
            ended_unix_ms: None,
            ran: Duration::ZERO,
            total_bytes,
            examined_bytes: 0,
            repaired_bytes: 0,
            unrepaired: 0,
            damaged: 0,
        };
        if kind == ScanKind::Scrub {
            self.begin_damage_scrub();
        }
        *self.scans.0.lock() = Some((status, self.clock.monotonic()));
    }

    /// Sets the scan status to a scan of an earlier import epoch, unless a newer scan exists.
    pub fn restore_scan(&self, status: ScanStatus) {
        self.scans.0.lock().get_or_insert((status, self.clock.monotonic()));
    }

    /// Sets the scan status to a resumed scrub, with its counts from an earlier import epoch.
    pub fn resume_scrub(&self, status: ScanStatus) {
        self.begin_damage_scrub();
        let status = ScanStatus { state: ScanState::Running, ended_unix_ms: None, ..status };
        *self.scans.0.lock() = Some((status, self.clock.monotonic()));
    }

    fn bytes_missed(&self) -> u64 {
        let missed = |vdev: u16, last_txg| {
            self.vdevs[usize::from(vdev)].legs.iter().any(|leg| leg.is_behind(last_txg))
        };
        self.segments.live_bytes_where(missed)
    }

    /// Changes the state in the scan status.
    pub fn set_scan_state(&self, state: ScanState) {
        let now = self.clock.monotonic();
        if let Some((status, since)) = &mut *self.scans.0.lock() {
            if status.state == ScanState::Running {
                status.ran += now.saturating_sub(*since);
            }
            *since = now;
            status.state = state;
            let ended = matches!(state, ScanState::Finished | ScanState::Stopped);
            status.ended_unix_ms = ended.then(|| self.clock.unix_ms());
        }
    }

    /// Plans the segments that a scan has to read, starting at position `from`. Segments written
    /// later are not needed, because later writes go to every leg in use.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn plan_scan(&self, kind: ScanKind, from: ScanPlace) -> Result<ScanPlan, PoolError> {
        let roots = loop {
            match self.live_roots().await {
                Ok(roots) => break roots,
                Err(PoolError::NoSegment { .. }) => {
                    self.check_alive()?;
                    tracing::debug!("scan takes a newer root");
                }
                Err(error) => return Err(error),
            }
        };
        let wanted = |entry: &SegmentEntry| {
            let vdev = &self.vdevs[usize::from(entry.vdev)];
            kind == ScanKind::Scrub || vdev.legs.iter().any(|leg| leg.is_behind(entry.last_txg))
        };
        let segments = self.segments.in_place_order().into_iter();
        let segments = segments
            .filter(|(_, entry)| wanted(entry))
            .map(|(vseg, entry)| (vseg, ScanPlace { segment: entry.pseg.0, vdev: entry.vdev }));
        let segments = segments.filter(|(_, place)| *place >= from);
        Ok(ScanPlan { segments: segments.collect::<Vec<_>>().into_iter(), roots })
    }

    /// Finds the live blocks of a segment. A call may precede [`Self::scan_step`] by a long time:
    /// blocks that are freed later stay in place, and later writes go to every leg.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn find_segment(
        &self,
        planned: PlannedSegment,
        roots: &(dyn Fn() -> Roots + Sync),
    ) -> Result<SegmentScan, PoolError> {
        let PlannedSegment { vseg, of_roots, .. } = planned;
        let is_root = self.segments.entry(vseg).is_some_and(|e| e.class == SegmentClass::Root);
        let LiveSet { live, lost, is_partial } =
            if is_root { of_roots.unwrap_or_default() } else { self.live_in(vseg, roots).await? };
        // A leg that missed writes also lacks the live blocks that were not found: count the
        // segment as not repaired.
        let resilvers = self.scan_status().is_some_and(|scan| scan.kind == ScanKind::Resilver);
        let unrepaired = u64::from(is_partial && resilvers);
        self.count_scanned(&Checked { damaged: lost, unrepaired, ..Checked::default() });
        let partly_known = lost > 0;
        Ok(SegmentScan { vseg, live, done: 0, partly_known, postponed: 0, settles: false })
    }

    /// Checks more blocks of a segment, as many as `pace` permits.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn scan_step(
        &self,
        kind: ScanKind,
        segment: &mut SegmentScan,
        pace: &ScanPace<'_>,
    ) -> Result<(), PoolError> {
        let end = segment.live.len().min(segment.done.saturating_add(pace.blocks));
        let live = (&segment.live[..], segment.done..end);
        let kind_of_look = (kind, segment.settles);
        let checked = self.check_part(segment.vseg, live, kind_of_look, pace).await;
        self.check_alive()?;
        match checked {
            Some((checked, end)) => {
                segment.done = end;
                segment.postponed += checked.postponed;
                for lost in checked.lost.iter().map(|index| &segment.live[*index]) {
                    if let Some((vseg, offset_units)) = lost.address {
                        self.distrust(BlockPtr { vseg, offset_units, ..BlockPtr::HOLE }.address());
                    }
                    self.note_lost(&lost.of);
                }
                // The first pass has already counted these blocks.
                let checked = if segment.settles {
                    Checked { bytes: 0, damaged: 0, ..checked }
                } else {
                    checked
                };
                self.count_scanned(&checked);
                if segment.is_done() && segment.partly_known {
                    self.count_unrepaired(segment);
                }
            }
            // The segment no longer holds live data, so its scan is complete.
            None => segment.done = segment.live.len(),
        }
        Ok(())
    }

    /// Counts the wrong parity that the first pass of a segment left, if no second pass follows.
    pub fn count_unrepaired(&self, segment: &SegmentScan) {
        let unrepaired = segment.postponed;
        self.count_scanned(&Checked { unrepaired, ..Checked::default() });
    }

    fn count_scanned(&self, checked: &Checked) {
        if let Some((status, _)) = &mut *self.scans.0.lock() {
            status.examined_bytes += checked.bytes;
            status.repaired_bytes += checked.repaired_bytes;
            status.unrepaired += checked.unrepaired;
            status.damaged += checked.damaged;
        }
    }

    /// Rewrites damaged config copies of the labels of every leg in use. The next commit zeroes
    /// damaged ring slots.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn scan_labels(&self) -> Result<(), PoolError> {
        self.check_lengths();
        let _labels = self.labels.lock().await;
        for (disk, repaired_bytes) in self.write_changed_labels().await {
            self.count_scanned(&Checked { repaired_bytes, ..Checked::default() });
            tracing::warn!(disk, "damaged label repaired");
        }
        self.scan_rings().await;
        self.check_alive()
    }
}
