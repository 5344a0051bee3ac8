//! Intent log replay: reads the chain of batches that an uberblock names, and decides whether the
//! chain ends at the last acknowledged batch.
//!
//! Not here: writing batches (`intent_log`), applying the changes in them (weir-dataset).
//!
//! Invariants:
//! - a batch is replayed if each of its sectors is intact on some leg;
//! - if a leg in use lacks a sector of a batch, a crash tore the batch before it was acknowledged:
//!   a batch is acknowledged only when it is durable on every leg in use;
//! - any other incomplete batch is damaged, and the import is refused without `force`. Signs of
//!   damage: an unreadable sector at the place of the next batch, or a sector there that no log
//!   write produced; a sector of a later batch; a batch with invalid records.

use weir_base::Guid;
use weir_format::layout::LABEL_BYTES;
use weir_format::log::{
    ALIGN_BYTES, Batch, BatchHeader, BatchId, Part, SECTOR_BYTES, SectorPlace, decode_batch,
    decode_header, named_batch, sectors_at, stamped_batch,
};

use crate::disks::vdev::Vdev;
use crate::error::PoolError;
use crate::log::intent_log::LogStart;

/// Bytes that each step of the search for later batches reads. A later batch proves that an
/// incomplete batch before it is damaged.
const SCAN_BYTES: usize = 1 << 20;

/// Upper bound of the batch length. A batch contains up to 4 MiB of changes; the last change is one
/// client request, which may exceed the 4 MiB by 32 MiB. A batch starts at offset 0 only if it does
/// not fit before the end of the log region, so only if less than this bound is left there.
const BATCH_BYTES_MAX: u64 = 64 << 20;

/// Content at an offset where the next batch may be.
enum Place {
    Batch(Batch),
    /// No batch, or a batch that a crash tore.
    End,
    Damaged,
}

/// Reads the chain of batches that an uberblock names.
pub(crate) struct Replay<'a> {
    vdev: &'a Vdev,
    pool: Guid,
    pool_name: &'a str,
    region_bytes: u64,
    next: LogStart,
}

impl<'a> Replay<'a> {
    pub(crate) fn new(
        vdev: &'a Vdev,
        pool: Guid,
        pool_name: &'a str,
        region_bytes: u64,
        start: LogStart,
    ) -> Self {
        Self { vdev, pool, pool_name, region_bytes, next: start }
    }

    /// Next batch, or `None` at the end of the chain.
    ///
    /// # Errors
    /// `LogDamaged`: the chain ends before a batch that is known to have been written completely.
    pub(crate) async fn next(&mut self, force: bool) -> Result<Option<Batch>, PoolError> {
        let mut damaged = false;
        for (offset, expected) in self.places() {
            match self.read_place(offset).await {
                Place::Batch(batch) => {
                    self.next.batch = self.next.batch.saturating_add(1);
                    self.next.offset = offset + u64::from(batch.header().batch_bytes);
                    return Ok(Some(batch));
                }
                Place::End => {}
                Place::Damaged => damaged |= expected,
            }
        }
        if damaged {
            // If the disks do not respond, return their error: an unresponsive disk is no damage of
            // the log.
            self.vdev.read_any(0, ALIGN_BYTES, Some).await?;
        }
        if damaged || self.later_batch_found().await {
            let (pool, batch) = (self.pool_name.to_owned(), self.next.batch);
            let error = PoolError::LogDamaged { pool, batch };
            if !force {
                return Err(error);
            }
            tracing::error!(%error, "imported without the rest of the intent log");
        }
        Ok(None)
    }

    /// Offsets at which the next batch may begin: 0, if it did not fit after the last batch, and
    /// the end of the last batch. The flag is true if damage at the offset may be damage of the
    /// next batch. Offset 0 comes first: a batch there may extend over the other offset and have
    /// client data where a header would be.
    fn places(&self) -> impl Iterator<Item = (u64, bool)> + use<> {
        let LogStart { offset, .. } = self.next;
        let room = self.region_bytes.saturating_sub(offset);
        let here = (room >= ALIGN_BYTES as u64).then_some((offset, true));
        let start = (offset > 0).then_some((0, room < BATCH_BYTES_MAX));
        start.into_iter().chain(here)
    }

    fn id(&self) -> BatchId {
        BatchId { pool: self.pool, epoch: self.next.epoch, batch: self.next.batch }
    }

    async fn read_place(&self, offset: u64) -> Place {
        let mut first = Merged::new(self.id(), offset, ALIGN_BYTES);
        first.read_all(self.vdev, ALIGN_BYTES).await;
        let header = match first.parts.first() {
            Some(Part::Whole) => decode_header(&first.bytes),
            // The batch begins at another offset and extends over this offset.
            _ if first.within => return Place::End,
            _ => return first.end(),
        };
        let fits = |header: &BatchHeader| {
            let end = offset.checked_add(u64::from(header.batch_bytes));
            header.id() == self.id() && end.is_some_and(|end| end <= self.region_bytes)
        };
        let Some(header) = header.ok().filter(fits) else {
            return Place::Damaged;
        };
        let mut all = Merged::new(self.id(), offset, header.batch_bytes as usize);
        all.read_all(self.vdev, header.batch_bytes as usize).await;
        if !all.is_whole() {
            return all.end();
        }
        decode_batch(&all.bytes, offset).map_or(Place::Damaged, Place::Batch)
    }

    /// True if the log region has a sector of a later batch, which proves that this batch was
    /// acknowledged.
    async fn later_batch_found(&self) -> bool {
        let mut offset = 0;
        while offset < self.region_bytes {
            let len = SCAN_BYTES.min((self.region_bytes - offset) as usize);
            let mut found = false;
            let mut unread = false;
            self.vdev
                .read_each(LABEL_BYTES + offset, len, |bytes| match bytes {
                    Some(bytes) => found |= self.has_later(bytes, offset),
                    None => unread = true,
                })
                .await;
            if unread {
                for unit in (offset..offset + len as u64).step_by(ALIGN_BYTES) {
                    let look = |bytes: Option<&[u8]>| {
                        found |= bytes.is_some_and(|bytes| self.has_later(bytes, unit));
                    };
                    self.vdev.read_each(LABEL_BYTES + unit, ALIGN_BYTES, look).await;
                }
            }
            if found {
                return true;
            }
            offset += len as u64;
        }
        false
    }

    fn has_later(&self, bytes: &[u8], offset: u64) -> bool {
        let (sectors, _) = bytes.as_chunks::<SECTOR_BYTES>();
        sectors_at(offset).zip(sectors).any(|(number, sector)| {
            let later = |(epoch, batch)| epoch == self.next.epoch && batch > self.next.batch;
            named_batch(sector).is_some_and(later)
                && stamped_batch(self.pool, sector, number).is_some()
        })
    }
}

/// One batch, merged from the copies of all legs.
struct Merged {
    id: BatchId,
    offset: u64,
    bytes: Vec<u8>,
    /// Best state of each sector on any leg.
    parts: Vec<Part>,
    /// True if a leg lacks a sector of the batch, so that the batch was never durable on that leg.
    lacking: bool,
    /// True if, on a leg, the sector at the start of the batch is a later sector of the same batch,
    /// so that the batch begins at another offset.
    within: bool,
}

impl Merged {
    fn new(id: BatchId, offset: u64, len: usize) -> Self {
        let parts = vec![Part::Damaged; len / SECTOR_BYTES];
        Self { id, offset, bytes: vec![0; len], parts, lacking: false, within: false }
    }

    /// Takes the intact sectors of every leg. If some are still missing, reads one sector at a
    /// time, because an unreadable sector fails the read of all its neighbours.
    async fn read_all(&mut self, vdev: &Vdev, step: usize) {
        self.read(vdev, step).await;
        if !self.is_whole() && !self.lacking {
            self.read(vdev, vdev.sector_bytes() as usize).await;
        }
    }

    /// Takes the intact sectors of every leg, reading `step` bytes at a time.
    async fn read(&mut self, vdev: &Vdev, step: usize) {
        for start in (0..self.bytes.len()).step_by(step) {
            let at = self.offset + start as u64;
            vdev.read_each(LABEL_BYTES + at, step, |bytes| {
                if let Some(bytes) = bytes {
                    self.take(start, bytes);
                }
            })
            .await;
        }
    }

    fn take(&mut self, start: usize, copy: &[u8]) {
        let first = start / SECTOR_BYTES;
        let numbers = sectors_at(self.offset + start as u64);
        let (sectors, _) = copy.as_chunks::<SECTOR_BYTES>();
        for ((index, number), sector) in (first..).zip(numbers).zip(sectors) {
            let is_first = index == 0;
            self.within |= is_first
                && self.id.part(sector, SectorPlace { number, is_first: false }) == Part::Whole;
            match self.id.part(sector, SectorPlace { number, is_first }) {
                Part::Whole => {
                    let at = index * SECTOR_BYTES;
                    self.bytes[at..at + SECTOR_BYTES].copy_from_slice(sector);
                    self.parts[index] = Part::Whole;
                }
                Part::Absent => self.lacking = true,
                Part::Damaged => {}
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.parts.iter().all(|part| *part == Part::Whole)
    }

    /// Classifies an incomplete batch: torn by a crash (the chain ends there), or damaged.
    fn end(&self) -> Place {
        if self.lacking { Place::End } else { Place::Damaged }
    }
}
