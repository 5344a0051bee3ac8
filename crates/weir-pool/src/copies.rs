//! What lives of a segment, on every leg: read, verified, and what is bad rewritten from what is
//! good.
//!
//! Not here: which segments and when (scan); whole rows of raidz (vdev/check); a client's read,
//! which stops at the first good copy (vdev).
//!
//! Invariants:
//! - a copy is written only with bytes that were proved right, and read back after;
//! - what is beside a block in its sectors keeps the leg's own bytes;
//! - the segment is pinned throughout, so that no repair meets newer data.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use weir_base::ErrorKind;
use weir_codec::checksum::xxh3_128;
use weir_device::{Durability, IoBuf};
use weir_format::Summary;

use crate::live::{Live, Proof};
use crate::planted::PlantedBug;
use crate::pool::Pool;
use crate::read::{RUN_BYTES_MAX, RUN_GAP_BYTES_MAX};
use crate::scan::ScanKind;
use crate::vdev::{Leg, Vdev};

/// What a look at the copies of some blocks gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Stored bytes of the blocks.
    pub(crate) bytes: u64,
    /// Bytes written to legs whose copy was bad or missing.
    pub(crate) repaired_bytes: u64,
    /// Copies that could not be rewritten, or read back wrong.
    pub(crate) unrepaired: u64,
    /// Blocks without any good copy.
    pub(crate) damaged: u64,
}

impl Checked {
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.repaired_bytes += other.repaired_bytes;
        self.unrepaired += other.unrepaired;
        self.damaged += other.damaged;
    }
}

/// What a scan looks at together.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    /// All that lives of a segment, by place.
    pub(crate) all: &'a [Live],
    /// From here on ...
    pub(crate) from: usize,
    /// ... to before here.
    pub(crate) to: usize,
    /// Start of the segment in the vdev's segment area.
    pub(crate) start: u64,
}

impl<'a> Part<'a> {
    pub(crate) fn items(&self) -> &'a [Live] {
        &self.all[self.from..self.to]
    }

    /// The same with fewer items.
    pub(crate) fn of(self, range: Range<usize>) -> Self {
        Self { from: range.start, to: range.end, ..self }
    }

    /// Cut where `splits`, asked for two neighbours and the first of the piece, says so.
    pub(crate) fn split(self, splits: impl Fn(&Live, &Live, &Live) -> bool) -> Vec<Self> {
        let (mut pieces, mut first) = (Vec::new(), self.from);
        for next in self.from + 1..=self.to {
            let cut =
                next == self.to || splits(&self.all[first], &self.all[next - 1], &self.all[next]);
            if cut {
                pieces.push(self.of(first..next));
                first = next;
            }
        }
        pieces
    }
}

/// Which legs a scan is about.
pub(crate) struct Scope<'a> {
    pub(crate) kind: ScanKind,
    /// Legs in use that miss nothing.
    pub(crate) good: Vec<&'a Leg>,
    /// Legs in use that may lack this segment and are to be written.
    pub(crate) behind: Vec<&'a Leg>,
}

/// Whether bytes are what they should be.
pub(crate) fn proves(proof: Proof, bytes: &[u8]) -> bool {
    match proof {
        Proof::Checksum(checksum) => xxh3_128(bytes) == checksum,
        Proof::Summary(vseg) => Summary::decode(bytes, vseg).is_ok(),
    }
}

/// Bytes of one leg, rounded out to sectors.
struct Span {
    buf: IoBuf,
    within: usize,
}

type Patch = (Range<usize>, Vec<u8>);

impl Vdev {
    async fn read_leg(&self, leg: &Leg, offset: u64, len: usize) -> Option<Span> {
        let device = leg.usable()?;
        let (at, within, rounded) = self.round_out(offset, len);
        let (done, buf) = device.read_at(self.base + at, IoBuf::zeroed(rounded)).await;
        done.map_err(|error| leg.count_read_error(&error)).ok()?;
        Some(Span { buf, within })
    }

    /// Writes `patches` (place from `offset` on, bytes) into a leg's span; the rest of it stays as
    /// it is there. True when they were read back right.
    async fn patch(&self, leg: &Leg, offset: u64, len: usize, patches: &[Patch]) -> bool {
        let Some(device) = leg.usable() else { return false };
        let (at, within, rounded) = self.round_out(offset, len);
        let _repairs = self.repairs.lock().await;
        // Sectors that cannot be read come back as zeros: nothing of them can be kept.
        let (_, mut span) = device.read_at(self.base + at, IoBuf::zeroed(rounded)).await;
        for (range, bytes) in patches {
            span[within + range.start..within + range.end].copy_from_slice(bytes);
        }
        let write = device.write_at(self.base + at, Arc::new(span), 0..rounded, Durability::Cached);
        if let Err(error) = write.await {
            leg.fault(&error);
            return false;
        }
        let Some(back) = self.read_leg(leg, offset, len).await else { return false };
        patches.iter().all(|(range, bytes)| {
            back.buf[back.within + range.start..back.within + range.end] == bytes[..]
        })
    }

    /// Looks at neighbours on every leg of a mirror.
    async fn check_run(&self, scope: &Scope<'_>, run: Part<'_>) -> Checked {
        let mut checked = Checked::default();
        let legs: Vec<&Leg> = match scope.kind {
            ScanKind::Scrub => scope.good.clone(),
            ScanKind::Resilver => scope.good.iter().take(1).chain(&scope.behind).copied().collect(),
        };
        let (first, last) = (&run.items()[0], &run.items()[run.items().len() - 1]);
        let (at, len) = (run.start + first.at, (last.end() - first.at) as usize);
        let spans = join_all(legs.iter().map(|leg| self.read_leg(leg, at, len))).await;
        if run.items().len() > 1 && spans.iter().any(Option::is_none) {
            // One sector that cannot be read must not cost the copies of its neighbours.
            for index in run.from..run.to {
                checked.add(Box::pin(self.check_run(scope, run.of(index..index + 1))).await);
            }
            return checked;
        }
        let mut patches: Vec<Vec<Patch>> = vec![Vec::new(); legs.len()];
        for live in run.items() {
            let range = (live.at - first.at) as usize..(live.end() - first.at) as usize;
            let copy = |span: &Option<Span>| -> Option<Vec<u8>> {
                let Span { buf, within } = span.as_ref()?;
                let bytes = &buf[within + range.start..within + range.end];
                proves(live.proof, bytes).then(|| bytes.to_vec())
            };
            let is_good: Vec<bool> = spans.iter().map(|span| copy(span).is_some()).collect();
            if is_good.iter().all(|good| *good) {
                continue;
            }
            let good = match spans.iter().find_map(copy) {
                Some(good) => Some(good),
                None => self.read_any_copy(run.start, live).await,
            };
            let Some(good) = good else {
                checked.damaged += 1;
                continue;
            };
            for index in (0..legs.len()).filter(|index| !is_good[*index]) {
                if legs[index].is_up_to_date() && spans[index].is_some() {
                    legs[index].checksum_errors.fetch_add(1, Ordering::Relaxed);
                }
                patches[index].push((range.clone(), good.clone()));
            }
        }
        for (leg, patches) in legs.iter().zip(patches).filter(|(_, patches)| !patches.is_empty()) {
            if self.patch(leg, at, len, &patches).await {
                let bytes: usize = patches.iter().map(|(range, _)| range.len()).sum();
                checked.repaired_bytes += bytes as u64;
                if scope.kind == ScanKind::Scrub {
                    tracing::warn!(disk = %leg.path, offset = at, "bad copy repaired");
                }
            } else {
                checked.unrepaired += patches.len() as u64;
            }
        }
        checked
    }

    /// The right bytes from any leg, those that were not looked at included.
    pub(crate) async fn read_any_copy(&self, start: u64, live: &Live) -> Option<Vec<u8>> {
        let verify = |bytes: &[u8]| proves(live.proof, bytes);
        match self.read_verified(self.next_leg(), start + live.at, live.len, verify).await {
            Ok((buf, within)) => Some(buf[within..within + live.len].to_vec()),
            Err(error) => {
                if error.kind() == ErrorKind::Data {
                    tracing::error!(%error, "no good copy of a block is left");
                }
                None
            }
        }
    }
}

/// Neighbours of a mirror that are not read together.
fn far_apart(first: &Live, before: &Live, next: &Live) -> bool {
    next.at > before.end() + RUN_GAP_BYTES_MAX || next.end() - first.at > RUN_BYTES_MAX
}

impl Pool {
    /// Looks at every copy of some of what lives in a segment that `kind` is about, `in_flight`
    /// device reads at a time. `None` when the segment is no more.
    pub(crate) async fn check_part(
        &self,
        vseg: weir_base::VsegId,
        (all, range): (&[Live], Range<usize>),
        kind: ScanKind,
        in_flight: usize,
    ) -> Option<Checked> {
        let pinned = self.segments.pin(vseg)?;
        let vdev = &self.vdevs[usize::from(pinned.vdev)];
        let part = Part { all, from: range.start, to: range.end, start: pinned.at };
        let bytes = part.items().iter().map(|live| live.len as u64).sum();
        let mut total = Checked { bytes, ..Checked::default() };
        let lacks = |leg: &&Leg| leg.is_behind(pinned.last_txg);
        let behind: Vec<&Leg> = match kind {
            ScanKind::Scrub => Vec::new(),
            ScanKind::Resilver => vdev.legs.iter().filter(lacks).collect(),
        };
        if kind == ScanKind::Resilver && behind.is_empty() {
            return Some(Checked::default());
        }
        let good: Vec<&Leg> = vdev.legs.iter().filter(|leg| leg.is_up_to_date()).collect();
        if good.is_empty() {
            return Some(Checked { damaged: part.items().len() as u64, ..total });
        }
        let scope = &Scope { kind, good, behind };
        let skipped = |run: &Part<'_>| {
            self.bug == PlantedBug::ResilverSkipsRange
                && kind == ScanKind::Resilver
                && run.items()[0].at >> 14 & 1 == 1
        };
        let runs = match vdev.row_split() {
            Some(splits) => part.split(splits),
            None => part.split(far_apart),
        };
        let runs = runs.into_iter().filter(|run| !skipped(run));
        let mut checks = futures_util::stream::iter(runs.map(|run| async move {
            if vdev.has_rows() {
                vdev.check_rows(scope, run).await
            } else {
                vdev.check_run(scope, run).await
            }
        }))
        .buffer_unordered(in_flight);
        while let Some(checked) = checks.next().await {
            total.add(checked);
        }
        Some(total)
    }
}
