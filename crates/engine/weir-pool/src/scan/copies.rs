//! Scans of mirrors: reads the live blocks of a segment on every leg, verifies them, and has bad
//! copies rewritten.
//!
//! Not here: choice and order of segments (`segment_scan`), writing the sectors of bad copies
//! (`repair`), raidz rows (`raidz_rows`), client reads, which stop at the first good copy (`vdev`).
//!
//! Invariant: the segment is pinned throughout, so that no repair overwrites newer data.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use futures_util::StreamExt as _;
use futures_util::stream::{self, FuturesUnordered};
use weir_base::ErrorKind;
use weir_block::IoBuf;
use weir_codec::checksum::xxh3_128;
use weir_format::layout::PACK_BYTES;
use weir_format::{SegmentClass, Summary};

use crate::disks::leg::Leg;
use crate::disks::scan_kind::ScanKind;
use crate::disks::vdev::Vdev;
use crate::planted_bugs::PlantedBug;
use crate::read::records::{RUN_BYTES_MAX, RUN_GAP_BYTES_MAX};
use crate::scan::part::{Checked, Part, Scope, Unread};
use crate::scan::repair::{Proved, Repaired, Run, Span};
use crate::state::pool::Pool;
use crate::state::scans::ScanPace;
use crate::tree::live::{Live, Proof};

/// True if the bytes match their proof.
pub(crate) fn proves(proof: Proof, bytes: &[u8]) -> bool {
    match proof {
        Proof::Checksum(checksum) => xxh3_128(bytes) == checksum,
        Proof::Half(checksum) => xxh3_128(bytes) as u64 == checksum,
        Proof::Summary(vseg, named) => Summary::decode(bytes, vseg, named).is_ok(),
    }
}

impl Vdev {
    /// Approximate memory that the scan needs to check a run of blocks.
    fn bytes_to_check(&self, scope: &Scope<'_>, run: &Part<'_>) -> usize {
        if self.has_rows() {
            self.bytes_of_rows(run)
        } else {
            run.len() * (scope.good.len() + scope.behind.len())
        }
    }

    async fn check(&self, scope: &Scope<'_>, run: Part<'_>) -> Checked {
        if self.has_rows() {
            self.check_rows(scope, run).await
        } else {
            self.check_run(scope, run).await
        }
    }

    async fn read_leg(&self, leg: &Leg, offset: u64, len: usize) -> Option<Span> {
        let device = leg.usable()?;
        let (at, within, rounded) = self.round_out(offset, len);
        let (done, buf) = device.read_at(self.base + at, IoBuf::for_read(rounded)).await;
        done.map_err(|error| leg.count_read_error(&error)).ok()?;
        Some(Span { buf, within })
    }

    /// Checks neighbouring blocks on every leg of a mirror.
    async fn check_run(&self, scope: &Scope<'_>, run: Part<'_>) -> Checked {
        let mut checked = Checked::default();
        let legs: Vec<&Leg> = match scope.kind {
            ScanKind::Scrub => scope.good.clone(),
            ScanKind::Resilver => scope.good.iter().take(1).chain(&scope.behind).copied().collect(),
        };
        let (at, len) = (run.start + run.items()[0].at, run.len());
        let blank: Vec<bool> = legs.iter().map(|leg| leg.is_blank()).collect();
        let reads = legs.iter().zip(&blank).map(|(leg, blank)| async move {
            if *blank { None } else { self.read_leg(leg, at, len).await }
        });
        let spans: Vec<Option<Span>> =
            stream::iter(reads).buffered(scope.legs_in_flight).collect().await;
        let unread = spans.iter().zip(&blank).any(|(span, blank)| span.is_none() && !blank);
        if run.items().len() > 1 && unread {
            // Read each block alone: one unreadable sector must not hide the good copies of its
            // neighbours.
            for index in run.from..run.to {
                checked.add(Box::pin(self.check_run(scope, run.of(index..index + 1))).await);
            }
            return checked;
        }
        // `good` is ordered by block, then by leg.
        let mut good = Vec::with_capacity(run.items().len() * legs.len());
        for live in run.items() {
            let place = (live.at - run.items()[0].at) as usize;
            let right = |span: &Span| proves(live.proof, span.part(&(place..place + live.len)));
            good.extend(spans.iter().map(|span| span.as_ref().is_some_and(right)));
        }
        if good.iter().all(|good| *good) {
            return checked;
        }
        let mut proved = Proved::new();
        let mut bad = vec![Vec::new(); legs.len()];
        let of_block = good.chunks(legs.len());
        for ((index, live), good) in (run.from..).zip(run.items()).zip(of_block) {
            if good.iter().all(|good| *good) {
                continue;
            }
            if !good.contains(&true) {
                match self.read_or_recall(scope, run.start, live).await {
                    Ok(right) => drop(proved.insert(index, right)),
                    Err(unread) => {
                        checked.lose(index);
                        // A disk that is unavailable now may have a good copy of the block.
                        let lacks =
                            scope.kind == ScanKind::Resilver && unread == Unread::Unavailable;
                        checked.unrepaired += u64::from(lacks);
                        continue;
                    }
                }
            }
            for leg in (0..legs.len()).filter(|leg| !good[*leg]) {
                if legs[leg].is_whole() && spans[leg].is_some() {
                    legs[leg].checksum_errors.count(self.base + run.start + live.at);
                }
                bad[leg].push(index);
            }
        }
        let run = Run { part: run, legs: &legs, spans: &spans, good: &good };
        for (leg, bad) in bad.iter().enumerate().filter(|(_, bad)| !bad.is_empty()) {
            let Repaired { bytes, failed } = self.repair(&run, leg, bad, &mut proved).await;
            checked.repaired_bytes += bytes;
            if bytes > 0 && scope.kind == ScanKind::Scrub {
                tracing::warn!(disk = %legs[leg].path(), offset = at, "bad copy repaired");
            }
            if failed > 0 && legs[leg].still_lacks(scope.kind) {
                checked.unrepaired += failed;
            }
        }
        checked
    }

    /// Reads the right bytes of a block from any leg, else from the cache, else from another
    /// metadata copy.
    pub(crate) async fn read_or_recall(
        &self,
        scope: &Scope<'_>,
        start: u64,
        live: &Live,
    ) -> Result<Vec<u8>, Unread> {
        match self.read_any_copy(start, live).await {
            Err(unread) => match scope.pool.recall(live) {
                Some(right) => Ok(right),
                None => scope.pool.read_root_copy(live).await.ok_or(unread),
            },
            right => right,
        }
    }

    /// Reads the right bytes from any leg, including legs that the scan does not cover.
    pub(crate) async fn read_any_copy(&self, start: u64, live: &Live) -> Result<Vec<u8>, Unread> {
        let verify = |bytes: &[u8]| proves(live.proof, bytes);
        let mut unread = Unread::Damaged;
        for at in [Some(live.at), live.other].into_iter().flatten() {
            match self.read_verified(self.next_leg(), start + at, live.len, verify).await {
                Ok((buf, within)) => return Ok(buf[within..within + live.len].to_vec()),
                Err(error) if error.kind() == ErrorKind::Data => {
                    tracing::error!(%error, "the vdev has no good copy of a block");
                }
                Err(_) => unread = Unread::Unavailable,
            }
        }
        Err(unread)
    }
}

/// True if neighbouring blocks of a mirror are too far apart for one read.
fn far_apart(first: &Live, before: &Live, next: &Live) -> bool {
    next.at > before.end() + RUN_GAP_BYTES_MAX || next.end() - first.at > RUN_BYTES_MAX
}

impl Pool {
    /// Reads the right bytes of a metadata block from any of its copies, including copies in
    /// another segment.
    #[boxed(?Send)]
    async fn read_root_copy(&self, live: &Live) -> Option<Vec<u8>> {
        let (vseg, offset_units) = live.address?;
        self.segments.entry(vseg).filter(|entry| entry.class == SegmentClass::Root)?;
        let place = self.segments.pin(vseg)?;
        let offset = u64::from(offset_units) * PACK_BYTES as u64;
        for (vdev, start) in place.copies().into_iter().flatten() {
            let vdev = &self.vdevs[usize::from(vdev)];
            let verify = |bytes: &[u8]| proves(live.proof, bytes);
            let (first, at) = (vdev.next_leg(), start + offset);
            if let Ok((buf, within)) = vdev.read_verified(first, at, live.len, verify).await {
                return Some(buf[within..within + live.len].to_vec());
            }
        }
        None
    }

    /// Checks some live blocks of a segment on the legs that `kind` covers. Returns the result and
    /// the index of the first block not checked; `None` if the segment no longer exists.
    #[boxed(?Send)]
    pub(crate) async fn check_part(
        &self,
        vseg: weir_base::VsegId,
        (all, range): (&[Live], Range<usize>),
        (kind, settles): (ScanKind, bool),
        pace: &ScanPace<'_>,
    ) -> Option<(Checked, usize)> {
        let pinned = self.segments.pin(vseg)?;
        let vdev = &self.vdevs[usize::from(pinned.vdev)];
        let part = Part { all, from: range.start, to: range.end, start: pinned.at };
        let lacks = |leg: &&Leg| leg.is_behind(pinned.last_txg);
        let mut behind: Vec<&Leg> = match kind {
            ScanKind::Scrub => Vec::new(),
            ScanKind::Resilver => vdev.legs.iter().filter(lacks).collect(),
        };
        if kind == ScanKind::Resilver && behind.is_empty() {
            return Some((Checked::default(), part.to));
        }
        // A resilver also verifies an unconfirmed leg that may lack this segment: on a mirror as
        // one of the legs to write, on raidz as one of the legs whose strips are checked against
        // each other.
        let written = kind == ScanKind::Resilver && !vdev.has_rows();
        let is_good = |leg: &&Leg| leg.is_whole() && !(written && lacks(leg));
        let good: Vec<&Leg> = vdev.legs.iter().filter(is_good).collect();
        if vdev.has_rows() {
            behind.retain(|leg| !leg.is_unconfirmed());
        }
        if good.is_empty() && !behind.iter().any(|leg| leg.is_whole()) {
            let damaged = part.items().len() as u64;
            let unrepaired = if kind == ScanKind::Resilver { damaged } else { 0 };
            let bytes = part.live_bytes();
            let checked = Checked { bytes, unrepaired, damaged, ..Checked::default() };
            return Some((checked, part.to));
        }
        let pool = self;
        let scope =
            &Scope { pool, kind, good, behind, settles, legs_in_flight: pace.legs_in_flight };
        Some(self.check_runs(vdev, scope, part, pace).await)
    }

    /// Checks the blocks of a part in runs, several runs concurrently.
    async fn check_runs(
        &self,
        vdev: &Vdev,
        scope: &Scope<'_>,
        part: Part<'_>,
        pace: &ScanPace<'_>,
    ) -> (Checked, usize) {
        let skipped = |run: &Part<'_>| {
            self.bug == PlantedBug::ResilverSkipsRange
                && scope.kind == ScanKind::Resilver
                && run.items()[0].at >> 14 & 1 == 1
        };
        let runs = match vdev.row_split() {
            Some(splits) => part.split(splits),
            None => part.split(far_apart),
        };
        let (mut total, mut end) = (Checked::default(), part.to);
        let (mut under_way, mut in_flight) = (FuturesUnordered::new(), 0);
        for run in runs {
            let bytes = vdev.bytes_to_check(scope, &run);
            let fits = |runs: usize, in_flight: usize| {
                let room = in_flight + bytes <= pace.bytes_in_flight;
                runs == 0 || (room && runs < pace.runs_in_flight)
            };
            while !fits(under_way.len(), in_flight) {
                let (checked, bytes) = under_way.next().await.expect("one is under way");
                in_flight -= bytes;
                total.add(checked);
            }
            if run.from > part.from && !(pace.go_on)() {
                end = run.from;
                break;
            }
            total.bytes += run.live_bytes();
            if !skipped(&run) {
                in_flight += bytes;
                under_way.push(async move { (vdev.check(scope, run).await, bytes) });
            }
        }
        while let Some((checked, _)) = under_way.next().await {
            total.add(checked);
        }
        (total, end)
    }
}
