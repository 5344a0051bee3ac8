//! All copies of given blocks at once: read, verified, and the bad ones rewritten from good ones.
//!
//! Not here: which blocks and when (scan); a client's read, which stops at the first good copy
//! (vdev).
//!
//! Invariants:
//! - a copy is written only with bytes that hashed to the pointer's checksum, and read back after;
//! - what is beside a block in its sectors keeps the leg's own bytes;
//! - the segment is pinned throughout, so that no repair meets newer data.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use weir_base::{ErrorKind, Txg};
use weir_device::{Durability, IoBuf};
use weir_format::BlockPtr;

use crate::planted::PlantedBug;
use crate::pool::Pool;
use crate::read::split_run;
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
    /// A segment is no more: the root these pointers came from is out of date.
    pub(crate) outlived: bool,
}

impl Checked {
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.repaired_bytes += other.repaired_bytes;
        self.unrepaired += other.unrepaired;
        self.damaged += other.damaged;
        self.outlived |= other.outlived;
    }
}

/// Bytes of one leg, rounded out to sectors.
struct Span {
    buf: IoBuf,
    within: usize,
}

/// One run of blocks on one vdev.
struct Run<'a> {
    vdev: &'a Vdev,
    ptrs: &'a [BlockPtr],
    /// Start on the disks.
    at: u64,
    len: usize,
}

impl Run<'_> {
    /// Place of a block from the run's start.
    fn range(&self, ptr: &BlockPtr) -> Range<usize> {
        let start = (ptr.offset_bytes() - self.ptrs[0].offset_bytes()) as usize;
        start..start + ptr.stored_bytes()
    }
}

impl Vdev {
    async fn read_leg(&self, leg: &Leg, disk_offset: u64, len: usize) -> Option<Span> {
        let device = leg.usable()?;
        let (at, within, rounded) = self.round_out(disk_offset, len);
        let (done, buf) = device.read_at(at, IoBuf::zeroed(rounded)).await;
        done.map_err(|error| leg.count_read_error(&error)).ok()?;
        Some(Span { buf, within })
    }

    /// Writes `patches` (place from `disk_offset` on, bytes) into a leg's span; the rest of it
    /// stays as it is there. True when they were read back right.
    async fn patch(
        &self,
        leg: &Leg,
        disk_offset: u64,
        len: usize,
        patches: &[(Range<usize>, Vec<u8>)],
    ) -> bool {
        let Some(device) = leg.usable() else { return false };
        let (at, within, rounded) = self.round_out(disk_offset, len);
        let _repairs = self.repairs.lock().await;
        // Sectors that cannot be read come back as zeros: nothing of them can be kept.
        let (_, mut span) = device.read_at(at, IoBuf::zeroed(rounded)).await;
        for (range, bytes) in patches {
            span[within + range.start..within + range.end].copy_from_slice(bytes);
        }
        if let Err(error) =
            device.write_at(at, Arc::new(span), 0..rounded, Durability::Cached).await
        {
            leg.fault(&error);
            return false;
        }
        let Some(back) = self.read_leg(leg, disk_offset, len).await else { return false };
        patches.iter().all(|(range, bytes)| {
            back.buf[back.within + range.start..back.within + range.end] == bytes[..]
        })
    }
}

impl Pool {
    /// Looks at every copy of these blocks that `kind` is about, `in_flight` runs at a time.
    pub(crate) async fn check_copies(
        &self,
        mut ptrs: Vec<BlockPtr>,
        kind: ScanKind,
        in_flight: usize,
    ) -> Checked {
        ptrs.sort_unstable_by_key(BlockPtr::address);
        let all: Vec<usize> = (0..ptrs.len()).collect();
        let runs = all
            .chunk_by(|a, b| Self::adjoin(&ptrs[*a], &ptrs[*b]))
            .flat_map(|run| split_run(run, &ptrs))
            .map(|run| self.check_run(&ptrs[run[0]..=run[run.len() - 1]], kind));
        let mut checked = futures_util::stream::iter(runs).buffer_unordered(in_flight);
        let mut total = Checked::default();
        while let Some(run) = checked.next().await {
            total.add(run);
        }
        total
    }

    async fn check_run(&self, ptrs: &[BlockPtr], kind: ScanKind) -> Checked {
        let (first, last) = (&ptrs[0], &ptrs[ptrs.len() - 1]);
        let Some(pinned) = self.segments.pin(first.vseg) else {
            return Checked { outlived: true, ..Checked::default() };
        };
        let vdev = &self.vdevs[usize::from(pinned.vdev)];
        let at = vdev.base + pinned.start + first.offset_bytes();
        let len = last.offset_bytes() + last.stored_bytes() as u64 - first.offset_bytes();
        let run = Run { vdev, ptrs, at, len: len as usize };
        let bytes = ptrs.iter().map(|ptr| ptr.stored_bytes() as u64).sum();
        let mut checked = Checked { bytes, ..Checked::default() };
        let legs: Vec<&Leg> = match kind {
            ScanKind::Scrub => vdev.legs.iter().filter(|leg| leg.is_up_to_date()).collect(),
            ScanKind::Resilver => {
                let behind = |leg: &&Leg| self.is_behind(leg, pinned.last_txg, first);
                let behind: Vec<&Leg> = vdev.legs.iter().filter(behind).collect();
                if behind.is_empty() {
                    checked.bytes = 0;
                    return checked;
                }
                let good = vdev.legs.iter().find(|leg| leg.is_up_to_date());
                good.into_iter().chain(behind).collect()
            }
        };
        if legs.is_empty() {
            checked.damaged = ptrs.len() as u64;
            return checked;
        }
        checked.add(self.check_legs(&run, &legs, kind).await);
        checked
    }

    /// Whether a leg in use may lack a segment that was last written in `last_txg`.
    fn is_behind(&self, leg: &Leg, last_txg: Txg, first: &BlockPtr) -> bool {
        let skipped =
            self.bug == PlantedBug::ResilverSkipsRange && first.offset_bytes() >> 14 & 1 == 1;
        leg.usable().is_some() && leg.stale_after().is_some_and(|txg| last_txg > txg) && !skipped
    }

    async fn check_legs(&self, run: &Run<'_>, legs: &[&Leg], kind: ScanKind) -> Checked {
        let mut checked = Checked::default();
        let reads = legs.iter().map(|leg| run.vdev.read_leg(leg, run.at, run.len));
        let spans = join_all(reads).await;
        if run.ptrs.len() > 1 && spans.iter().any(Option::is_none) {
            // One sector that cannot be read must not cost the copies of its neighbours.
            for (index, ptr) in run.ptrs.iter().enumerate() {
                let range = run.range(ptr);
                let ptrs = &run.ptrs[index..=index];
                let at = run.at + range.start as u64;
                let single = Run { vdev: run.vdev, ptrs, at, len: range.len() };
                checked.add(Box::pin(self.check_legs(&single, legs, kind)).await);
            }
            return checked;
        }
        let copy = |index: usize, ptr: &BlockPtr| -> Option<&[u8]> {
            let (range, Span { buf, within }) = (run.range(ptr), spans[index].as_ref()?);
            let bytes = &buf[within + range.start..within + range.end];
            self.verify(ptr, bytes).then_some(bytes)
        };
        let mut patches: Vec<Vec<(Range<usize>, Vec<u8>)>> = vec![Vec::new(); legs.len()];
        for ptr in run.ptrs {
            let copies: Vec<Option<&[u8]>> = (0..legs.len()).map(|leg| copy(leg, ptr)).collect();
            if copies.iter().all(Option::is_some) {
                continue;
            }
            let good = match copies.iter().flatten().next() {
                Some(good) => good.to_vec(),
                None => match self.read_any_copy(run, ptr).await {
                    Some(good) => good,
                    None => {
                        checked.damaged += 1;
                        continue;
                    }
                },
            };
            for (index, _) in copies.iter().enumerate().filter(|(_, copy)| copy.is_none()) {
                if legs[index].is_up_to_date() && spans[index].is_some() {
                    legs[index].checksum_errors.fetch_add(1, Ordering::Relaxed);
                }
                patches[index].push((run.range(ptr), good.clone()));
            }
        }
        for (leg, patches) in legs.iter().zip(patches).filter(|(_, patches)| !patches.is_empty()) {
            if run.vdev.patch(leg, run.at, run.len, &patches).await {
                let bytes: usize = patches.iter().map(|(range, _)| range.len()).sum();
                checked.repaired_bytes += bytes as u64;
                if kind == ScanKind::Scrub {
                    tracing::warn!(disk = %leg.path, offset = run.at, "bad copy repaired");
                }
            } else {
                checked.unrepaired += patches.len() as u64;
            }
        }
        checked
    }

    /// A copy from any leg, those that were not looked at included.
    async fn read_any_copy(&self, run: &Run<'_>, ptr: &BlockPtr) -> Option<Vec<u8>> {
        let (range, vdev) = (run.range(ptr), run.vdev);
        let at = run.at + range.start as u64;
        let verify = |bytes: &[u8]| self.verify(ptr, bytes);
        match vdev.read_verified(vdev.next_leg(), at, range.len(), verify).await {
            Ok((buf, start)) => Some(buf[start..start + range.len()].to_vec()),
            Err(error) => {
                if error.kind() == ErrorKind::Data {
                    tracing::error!(%error, "no good copy of a block is left");
                }
                None
            }
        }
    }
}
