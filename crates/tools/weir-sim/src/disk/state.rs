//! State of a simulated disk: its contents and the effects of operations.
//!
//! [`super::SimDisk`] has the futures and wakers, the simulated world has the clock.
//!
//! Invariants:
//! - `cache` is in completion order, and `visible` is `media` overlaid with `cache`, except where a
//!   fault made the disk drop writes;
//! - completion times come from a separate random stream, so that an enabled fault changes results
//!   but no times.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use weir_base::BLOCK_BYTES;
use weir_block::IoBuf;
use weir_device::DeviceOp;

use super::{DiskCounters, Request, Slot, Submission};
use crate::cut::{Chooser, Fate, Unflushed};
use crate::fault::{Fault, Faults};
use crate::media::{BlockBytes, Latency, MediaImage, Piece, SECTOR_BYTES, sector_mask, span};
use crate::rng::Rng;

/// Byte that fills the buffer after a failed read, so that a check detects a caller that uses the
/// data.
const POISON: u8 = 0xee;

pub(crate) struct State {
    /// Content that certainly survives a power cut.
    pub(super) media: MediaImage,
    /// Content that reads return.
    pub(super) visible: MediaImage,
    cache: Vec<Cached>,
    pub(super) in_flight: BTreeMap<u64, InFlight>,
    /// Number of completed writes.
    pub(super) completions: u64,
    pub(super) faults: Faults,
    pub(super) latency: Latency,
    pub(super) usable_bytes: u64,
    pub(super) dead: bool,
    pub(super) counters: DiskCounters,
    schedule: Rng,
    chaos: Rng,
}

/// A completed write that is not flushed.
struct Cached {
    completion: u64,
    pieces: Vec<Piece>,
}

pub(super) struct InFlight {
    slot: Arc<Slot>,
    op: DeviceOp,
    offset: u64,
    len_bytes: u64,
    fault: Option<Fault>,
    work: Work,
}

enum Work {
    /// A read. `sampled`: `Some` if the issue of the read already filled `buf`; the bool is true if
    /// the range was readable then.
    Read {
        buf: IoBuf,
        sampled: Option<bool>,
    },
    Write {
        pieces: Vec<Piece>,
        durable: bool,
    },
    Flush {
        covers: u64,
    },
    Discard,
}

/// Result of a completed operation.
pub(super) struct Outcome {
    pub(super) slot: Arc<Slot>,
    pub(super) op: DeviceOp,
    pub(super) offset: u64,
    pub(super) failure: Option<io::Error>,
    pub(super) buf: Option<IoBuf>,
}

impl State {
    pub(super) fn new(media: MediaImage, rng: &Rng, index: u64) -> Self {
        Self {
            visible: media.clone(),
            cache: Vec::new(),
            in_flight: BTreeMap::new(),
            completions: 0,
            faults: Faults::default(),
            latency: media.options().latency,
            usable_bytes: media.options().len_bytes,
            dead: false,
            counters: DiskCounters::default(),
            schedule: rng.stream("disk schedule", index),
            chaos: rng.stream("disk chaos", index),
            media,
        }
    }

    pub(super) fn issue(&mut self, id: u64, submission: Submission) -> (Duration, Option<Fault>) {
        let Submission { request, slot, .. } = submission;
        let op = request.op();
        let (offset, len_bytes) = request.place();
        let fault = self.draw_fault(&request);
        let work = match request {
            Request::Read { mut buf, .. } => {
                self.spoil(fault, offset, len_bytes);
                // A read returns the content of the disk either at its issue or at its completion.
                let sampled = self.schedule.coin().then(|| self.sample(offset, &mut buf));
                Work::Read { buf, sampled }
            }
            Request::Write { data, range, durable, .. } => {
                let pieces = self.pieces(fault, offset, &data[range]);
                Work::Write { pieces, durable }
            }
            Request::Flush { covers } => Work::Flush { covers },
            Request::Discard { .. } => Work::Discard,
        };
        self.counters.ops += 1;
        self.counters.faults += u64::from(fault.is_some());
        self.in_flight.insert(id, InFlight { slot, op, offset, len_bytes, fault, work });
        (self.delay(), fault)
    }

    pub(super) fn complete(&mut self, id: u64) -> Outcome {
        let flying = self.in_flight.remove(&id).expect("an operation completes once");
        let InFlight { slot, op, offset, len_bytes, fault, work } = flying;
        let mut failure = self.refusal(offset, len_bytes);
        let mut read_into = None;
        match work {
            Work::Read { mut buf, sampled } => {
                if failure.is_none() && !sampled.unwrap_or_else(|| self.sample(offset, &mut buf)) {
                    failure = Some(eio());
                }
                if failure.is_some() {
                    buf.fill(POISON);
                } else if fault == Some(Fault::Misread) {
                    let at = self.chaos.below(buf.len() as u64) as usize;
                    buf[at] ^= 1 << self.chaos.below(8);
                }
                read_into = Some(buf);
            }
            Work::Write { pieces, durable } => {
                if failure.is_some() || fault == Some(Fault::WriteError) {
                    self.write_some(pieces);
                    failure.get_or_insert_with(eio);
                } else if durable && fault != Some(Fault::LyingFlush) {
                    self.write_through(&pieces);
                } else {
                    self.write_cached(pieces);
                }
            }
            Work::Flush { covers } if failure.is_none() => match fault {
                Some(Fault::FlushError) => {
                    self.flush_and_forget(covers);
                    failure = Some(eio());
                }
                Some(Fault::LyingFlush) => {}
                _ => self.flush(covers),
            },
            Work::Discard if failure.is_none() => self.discard(offset..offset + len_bytes),
            Work::Flush { .. } | Work::Discard => {}
        }
        self.counters.failed += u64::from(failure.is_some());
        Outcome { slot, op, offset, failure, buf: read_into }
    }

    pub(super) fn op_in_flight(&self, id: u64) -> DeviceOp {
        self.in_flight[&id].op
    }

    pub(crate) fn unflushed(&self) -> Unflushed {
        let atomic = self.media.options().atomic_bytes;
        let cached = self.cache.iter().map(|cached| &cached.pieces);
        let flying = self.writes_in_flight();
        let mut total = Unflushed::default();
        for pieces in cached.chain(flying).filter(|pieces| !pieces.is_empty()) {
            total.writes += 1;
            total.sectors += pieces.iter().map(|p| p.units(atomic).count() as u64).sum::<u64>();
        }
        total
    }

    /// Media content after a power cut at this instant.
    pub(crate) fn cut(&self, chooser: &mut Chooser) -> MediaImage {
        let mut image = self.media.clone();
        for flying in self.in_flight.values() {
            if matches!(flying.work, Work::Discard) && chooser.discard_done() {
                let end = (flying.offset + flying.len_bytes).min(self.usable_bytes);
                fill_range(&mut image, flying.offset.min(end)..end, None);
            }
        }
        for cached in &self.cache {
            keep(&mut image, &cached.pieces, chooser);
        }
        let mut flying: Vec<_> = self.writes_in_flight().collect();
        chooser.order(&mut flying);
        for pieces in flying.into_iter().filter(|pieces| !pieces.is_empty()) {
            keep(&mut image, pieces, chooser);
        }
        image.options_mut().len_bytes = self.usable_bytes;
        image
    }

    pub(super) fn flip_bit(&mut self, offset: u64, bit: u32) {
        self.media.flip_bit(offset, bit);
        let sector = offset - offset % SECTOR_BYTES as u64;
        let range = sector..sector + SECTOR_BYTES as u64;
        let (block, mask) = (offset / BLOCK_BYTES as u64, sector_mask(&range, offset));
        let hidden = self.cached_pieces().any(|p| p.block == block && p.mask & mask != 0);
        if !hidden {
            self.visible.flip_bit(offset, bit);
        }
    }

    /// Overwrites a range of media and cache without an operation.
    pub(super) fn overwrite(&mut self, offset: u64, bytes: &[u8]) {
        self.drop_cached(&(offset..offset + bytes.len() as u64));
        self.media.write(offset, bytes);
        self.visible.write(offset, bytes);
    }

    fn draw_fault(&mut self, request: &Request) -> Option<Fault> {
        let candidates: &[Fault] = match request {
            Request::Read { .. } => &[Fault::BitRot, Fault::LatentRead, Fault::Misread],
            Request::Write { durable: false, .. } => {
                &[Fault::WriteError, Fault::LostWrite, Fault::MisdirectedWrite]
            }
            Request::Write { durable: true, .. } => {
                &[Fault::WriteError, Fault::LostWrite, Fault::MisdirectedWrite, Fault::LyingFlush]
            }
            Request::Flush { .. } => &[Fault::FlushError, Fault::LyingFlush],
            Request::Discard { .. } => &[],
        };
        candidates.iter().copied().find(|fault| self.faults.strikes(*fault, &mut self.chaos))
    }

    fn delay(&mut self) -> Duration {
        let Latency { min, max } = self.latency;
        let spread = max.saturating_sub(min).as_nanos() as u64;
        let usual = min + Duration::from_nanos(self.schedule.below(spread + 1));
        if self.schedule.below(8) == 0 { usual * self.schedule.within(1..8) as u32 } else { usual }
    }

    fn refusal(&self, offset: u64, len_bytes: u64) -> Option<io::Error> {
        if self.dead {
            Some(eio())
        } else if self.beyond_end(offset, len_bytes) {
            Some(io::ErrorKind::UnexpectedEof.into())
        } else {
            None
        }
    }

    fn beyond_end(&self, offset: u64, len_bytes: u64) -> bool {
        offset.checked_add(len_bytes).is_none_or(|end| end > self.usable_bytes)
    }

    /// Damages the media in the range of a read, before the disk executes the read.
    fn spoil(&mut self, fault: Option<Fault>, offset: u64, len_bytes: u64) {
        if matches!(fault, None | Some(Fault::Misread)) || self.beyond_end(offset, len_bytes) {
            return;
        }
        let at = offset + self.chaos.below(len_bytes);
        if fault == Some(Fault::BitRot) {
            let bit = self.chaos.below(8) as u32;
            self.flip_bit(at, bit);
        } else {
            self.media.set_unreadable(at..at + 1);
            self.visible.set_unreadable(at..at + 1);
        }
    }

    fn sample(&self, offset: u64, buf: &mut IoBuf) -> bool {
        let end = offset.saturating_add(buf.len() as u64);
        if self.visible.is_unreadable(offset..end) {
            return false;
        }
        self.visible.read(offset, buf);
        true
    }

    /// Splits a write into pieces, one for each block. If `fault` is set, it may drop or redirect
    /// the write.
    fn pieces(&mut self, fault: Option<Fault>, offset: u64, data: &[u8]) -> Vec<Piece> {
        let len = data.len() as u64;
        if fault == Some(Fault::LostWrite) || self.dead || self.beyond_end(offset, len) {
            return Vec::new();
        }
        if fault != Some(Fault::MisdirectedWrite) {
            return Piece::split(offset, data);
        }
        let unit = u64::from(self.media.options().sector_bytes);
        Piece::split(self.chaos.below((self.usable_bytes - len) / unit + 1) * unit, data)
    }

    fn write_cached(&mut self, pieces: Vec<Piece>) {
        for piece in &pieces {
            self.visible.put_sectors(piece.block, piece.mask, &piece.bytes);
        }
        self.completions += 1;
        if !pieces.is_empty() {
            self.cache.push(Cached { completion: self.completions, pieces });
        }
    }

    fn write_through(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            self.media.put_sectors(piece.block, piece.mask, &piece.bytes);
            self.visible.put_sectors(piece.block, piece.mask, &piece.bytes);
        }
        self.completions += 1;
        // Drop older cached sectors of this range, so that no flush writes them later.
        let Some(first) = pieces.first().map(|piece| piece.block) else { return };
        self.thin_cache(|block| {
            let index = block.checked_sub(first)?;
            pieces.get(index as usize).map(|piece| piece.mask)
        });
    }

    /// Writes a random subset of the sectors of a failed write.
    fn write_some(&mut self, mut pieces: Vec<Piece>) {
        for piece in &mut pieces {
            piece.mask &= self.chaos.next_u64() as u8;
        }
        pieces.retain(|piece| piece.mask != 0);
        self.write_cached(pieces);
    }

    fn take_covered(&mut self, covers: u64) -> Vec<Cached> {
        let count = self.cache.partition_point(|cached| cached.completion <= covers);
        self.cache.drain(..count).collect()
    }

    fn flush(&mut self, covers: u64) {
        for piece in self.take_covered(covers).iter().flat_map(|cached| &cached.pieces) {
            self.media.put_sectors(piece.block, piece.mask, &piece.bytes);
        }
    }

    /// Fails a flush: each write that the flush covers either reaches the media or is lost, and the
    /// disk marks all these writes clean.
    fn flush_and_forget(&mut self, covers: u64) {
        let mut forgotten = Vec::new();
        for cached in self.take_covered(covers) {
            match self.chaos.below(4) {
                0 | 1 => {
                    for piece in &cached.pieces {
                        self.media.put_sectors(piece.block, piece.mask, &piece.bytes);
                    }
                }
                // The write is lost, and reads return the old content immediately.
                2 => forgotten.extend(cached.pieces.into_iter().map(|piece| piece.block)),
                // The write is lost, but reads return the old content only after the next cut.
                _ => {}
            }
        }
        for block in forgotten {
            self.visible.replace_block(block, self.media.block(block).cloned());
            let newer = self.cache.iter().flat_map(|cached| &cached.pieces);
            for piece in newer.filter(|piece| piece.block == block) {
                self.visible.put_sectors(block, piece.mask, &piece.bytes);
            }
        }
    }

    /// Discards a range. Its content becomes undefined: unchanged, zeros or garbage.
    fn discard(&mut self, range: Range<u64>) {
        let content: Option<Arc<BlockBytes>> = match self.chaos.below(4) {
            0 => return,
            1 => {
                let mut garbage = [0; BLOCK_BYTES];
                self.chaos.fill(&mut garbage);
                Some(Arc::new(garbage))
            }
            _ => None,
        };
        self.drop_cached(&range);
        fill_range(&mut self.media, range.clone(), content.as_ref());
        fill_range(&mut self.visible, range, content.as_ref());
    }

    fn drop_cached(&mut self, range: &Range<u64>) {
        self.thin_cache(|block| Some(sector_mask(range, block * BLOCK_BYTES as u64)));
    }

    /// Removes sectors from the cache, so that they never reach the media.
    fn thin_cache(&mut self, gone: impl Fn(u64) -> Option<u8>) {
        for cached in &mut self.cache {
            for piece in &mut cached.pieces {
                piece.mask &= !gone(piece.block).unwrap_or(0);
            }
            cached.pieces.retain(|piece| piece.mask != 0);
        }
        self.cache.retain(|cached| !cached.pieces.is_empty());
    }

    fn cached_pieces(&self) -> impl Iterator<Item = &Piece> {
        self.cache.iter().flat_map(|cached| &cached.pieces)
    }

    fn writes_in_flight(&self) -> impl Iterator<Item = &Vec<Piece>> {
        self.in_flight.values().filter_map(|flying| match &flying.work {
            Work::Write { pieces, .. } => Some(pieces),
            _ => None,
        })
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(5) // EIO, the same number on every Unix
}

/// Applies the plan of the cut to each unit of one write.
fn keep(image: &mut MediaImage, pieces: &[Piece], chooser: &mut Chooser) {
    let atomic = image.options().atomic_bytes;
    let may_tear = image.options().torn_sectors;
    chooser.begin_write();
    for piece in pieces {
        let mut whole = 0;
        for unit in piece.units(atomic) {
            let bytes = span(unit);
            match chooser.unit(bytes.len(), may_tear) {
                Fate::Whole => whole |= unit,
                Fate::Gone => {}
                Fate::Torn(len) => {
                    let torn = bytes.start..bytes.start + len;
                    image.put_bytes(piece.block, torn, &piece.bytes);
                }
            }
        }
        image.put_sectors(piece.block, whole, &piece.bytes);
    }
}

/// Fills whole sectors with the corresponding sectors of `content`, or with zeros.
fn fill_range(image: &mut MediaImage, range: Range<u64>, content: Option<&Arc<BlockBytes>>) {
    let block_bytes = BLOCK_BYTES as u64;
    for block in range.start / block_bytes..range.end.div_ceil(block_bytes) {
        let mask = sector_mask(&range, block * block_bytes);
        match content {
            Some(content) => image.put_sectors(block, mask, content),
            None if mask == u8::MAX => image.clear_block(block),
            None => image.put_sectors(block, mask, &Arc::new([0; BLOCK_BYTES])),
        }
    }
}
