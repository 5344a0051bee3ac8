//! Vdevs (disk, mirror, raidz): writes go to all legs, reads use any leg with the right bytes.
//!
//! Not here: the layout within a vdev (segments, labels, intent log).
//!
//! Invariants:
//! - a write or flush returns `Ok` only if it succeeded on every leg in use, and on enough legs to
//!   read all data back;
//! - I23: a failed write or flush faults the leg, and the pool stops using this leg: its content
//!   after its last good flush is unknown;
//! - the checksum in the pointer decides whether a read is right, not the status from the disk;
//! - a leg that missed writes stays stale, through faults and absence, until a resilver has copied
//!   all of them and an uberblock that lists the leg as up to date is durable.

use crate::disks::leg::{Doubt, Leg};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use async_recursion::async_recursion as boxed;
use futures_util::future::join_all;
use parking_lot::RwLock;
use weir_base::{Clock, Guid};
use weir_block::IoBuf;
use weir_device::Durability;
use weir_format::{Label, LegConfig, VdevConfig, VdevKind, VdevRole};

use crate::disks::hedge::{Copies, Copy};
use crate::error::PoolError;
use crate::options::PoolOptions;
use crate::planted_bugs::PlantedBug;

pub(crate) use crate::disks::legs::Legs;
use crate::disks::repairs::Repairs;
use crate::disks::rows::Rows;

/// One vdev.
///
/// Every leg has the same labels and intent log, whatever the kind of the vdev. Only the segment
/// area has rows and strips. Offsets in the segment area count data bytes, so higher layers need
/// not know the leg of a byte.
pub(crate) struct Vdev {
    pub(crate) index: u16,
    kind: VdevKind,
    role: RwLock<VdevRole>,
    pub(crate) legs: Legs,
    /// True if the intent log must not move to this vdev: no label names the vdev durably yet, or
    /// the vdev is being removed.
    closed_to_log: AtomicBool,
    /// Used bytes of each leg, labels included. The number grows when the pool expands to larger
    /// disks.
    disk_bytes: AtomicU64,
    /// Data bytes of a row: the unit of every append.
    pub(crate) row_bytes: u64,
    /// Offset of the segment area on every leg.
    pub(crate) base: u64,
    /// Row geometry of a raidz vdev.
    pub(crate) rows: Option<Rows>,
    /// Largest sector size of the legs.
    sector_bytes: AtomicU64,
    next_read: AtomicUsize,
    pub(crate) repairs: Repairs,
    pool: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(crate) bug: PlantedBug,
}

impl Vdev {
    /// Builds vdev number `index` of a label from these legs.
    pub(crate) fn new(label: &Label, index: usize, legs: Vec<Leg>, options: &PoolOptions) -> Self {
        let config = &label.vdevs[index];
        let (data, parity) = (config.data_strips(), config.kind.parity());
        let strip_bytes = u64::from(label.strip_bytes);
        let sector_bytes = legs
            .iter()
            .filter_map(Leg::device)
            .map(|device| u64::from(device.geometry().sector_bytes))
            .max()
            .unwrap_or(512);
        Self {
            index: index as u16,
            kind: config.kind,
            role: RwLock::new(config.role),
            closed_to_log: AtomicBool::new(false),
            legs: Legs::new(legs),
            disk_bytes: AtomicU64::new(config.disk_bytes),
            row_bytes: label.row_bytes(config),
            base: weir_format::layout::segments_offset(label.log_bytes),
            rows: (parity > 0).then_some(Rows { data, parity, strip_bytes }),
            sector_bytes: AtomicU64::new(sector_bytes),
            next_read: AtomicUsize::new(0),
            repairs: Repairs::default(),
            pool: label.name.clone(),
            clock: Arc::clone(&options.clock),
            bug: options.bug,
        }
    }

    /// Role of the vdev.
    pub(crate) fn role(&self) -> VdevRole {
        *self.role.read()
    }

    pub(crate) fn set_role(&self, role: VdevRole) {
        *self.role.write() = role;
    }

    /// True if the intent log must not move to this vdev.
    pub(crate) fn is_closed_to_log(&self) -> bool {
        self.closed_to_log.load(Ordering::Acquire)
    }

    pub(crate) fn set_closed_to_log(&self, closed: bool) {
        self.closed_to_log.store(closed, Ordering::Release);
    }

    /// Used bytes of each leg, labels included.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn set_disk_bytes(&self, bytes: u64) {
        self.disk_bytes.store(bytes, Ordering::Release);
    }

    pub(crate) fn sector_bytes(&self) -> u64 {
        self.sector_bytes.load(Ordering::Relaxed)
    }

    /// Raises the sector size to the sector size of a disk that becomes a leg.
    pub(crate) fn raise_sector_bytes(&self, bytes: u32) {
        self.sector_bytes.fetch_max(u64::from(bytes), Ordering::Relaxed);
    }

    pub(super) fn lost(&self) -> PoolError {
        PoolError::VdevLost { pool: self.pool.clone(), vdev: self.index }
    }

    /// Current kind: a second leg turns a disk into a mirror.
    pub(crate) fn kind(&self) -> VdevKind {
        match (self.kind, self.legs.len()) {
            (VdevKind::Disk | VdevKind::Mirror, 0 | 1) => VdevKind::Disk,
            (VdevKind::Disk | VdevKind::Mirror, _) => VdevKind::Mirror,
            (raidz, _) => raidz,
        }
    }

    /// Name as shown to the user, such as `mirror-0`.
    pub(crate) fn name(&self) -> String {
        format!("{}-{}", self.kind().name(), self.index)
    }

    /// True if every leg holds all data, as in a disk or mirror.
    pub(crate) fn mirrors(&self) -> bool {
        self.rows.is_none()
    }

    /// The vdev's entry in the label.
    pub(crate) fn config(&self) -> VdevConfig {
        let role = self.role();
        if role == VdevRole::Removed {
            return VdevConfig::REMOVED;
        }
        let leg = |leg: &Leg| LegConfig { guid: leg.guid, path: leg.path().to_owned() };
        let legs = self.legs.iter().map(leg).collect();
        VdevConfig { kind: self.kind(), role, disk_bytes: self.disk_bytes(), legs }
    }

    /// Waits for an operation on this vdev. Ignores its error if the vdev is a log vdev or was
    /// removed, because a commit needs neither. A later log write detects whether the log vdev can
    /// be written; a removed vdev holds no data.
    pub(crate) async fn unless_dispensable(
        &self,
        done: impl Future<Output = Result<(), PoolError>>,
    ) -> Result<(), PoolError> {
        match done.await {
            Err(_) if matches!(self.role(), VdevRole::Log | VdevRole::Removed) => Ok(()),
            done => done,
        }
    }

    /// Fails if too many legs are stale or out of use for the vdev's data to be read. Never fails
    /// for a log vdev, because the pool works without it.
    pub(crate) fn check_alive(&self) -> Result<(), PoolError> {
        if self.role() == VdevRole::Log || self.is_alive() { Ok(()) } else { Err(self.lost()) }
    }

    /// True if enough legs are in use and complete to read all data.
    pub(crate) fn is_alive(&self) -> bool {
        let good: Vec<bool> = self.legs.iter().map(Leg::is_whole).collect();
        self.enough(&good).is_ok()
    }

    /// For a mirror without a complete leg, returns the leg that was the last to go out of use
    /// while complete. That leg has every acknowledged write.
    pub(crate) fn last_standing(&self) -> Option<Guid> {
        let when = |leg: &&Leg| leg.missing.lock().left;
        let last = self.legs.iter().max_by_key(when).filter(|leg| when(leg) > 0);
        last.filter(|_| self.mirrors() && !self.is_alive()).map(|leg| leg.guid)
    }

    /// Checks that an operation succeeded on as many legs as a row has data strips.
    ///
    /// A stale leg does not count, although the pool writes to it too. With too few other legs the
    /// vdev's data would be unreadable, and no uberblock may record such a state.
    pub(super) fn enough(&self, done: &[bool]) -> Result<(), PoolError> {
        let done = done.iter().filter(|done| **done).count();
        if done >= self.legs_needed() { Ok(()) } else { Err(self.lost()) }
    }

    /// Number of complete legs that suffice to read all data.
    pub(crate) fn legs_needed(&self) -> usize {
        self.rows.map_or(1, |rows| rows.data)
    }

    /// Writes whole rows, `data[range]`, at an offset of the segment area.
    ///
    /// # Durability
    /// None before the next [`Self::flush`]. A leg that fails is faulted; the other legs continue.
    pub(crate) async fn write_rows(
        &self,
        offset: u64,
        data: &Arc<IoBuf>,
        range: Range<usize>,
    ) -> Result<(), PoolError> {
        match &self.rows {
            Some(rows) => self.write_raidz(rows, offset, data, range).await,
            None => self.write(self.base + offset, data, range, Durability::Cached).await,
        }
    }

    /// Writes `data[range]` at a byte offset of the disks, on every leg.
    ///
    /// # Durability
    /// As requested by `durability`. A leg that fails is faulted; the other legs continue.
    pub(crate) async fn write(
        &self,
        disk_offset: u64,
        data: &Arc<IoBuf>,
        range: Range<usize>,
        durability: Durability,
    ) -> Result<(), PoolError> {
        let writes = self.legs.iter().filter_map(|leg| {
            let device = leg.usable()?;
            let (data, range) = (Arc::clone(data), range.clone());
            let place = disk_offset..disk_offset + range.len() as u64;
            Some(async move {
                let done = device.write_at(disk_offset, data, range, durability).await;
                leg.judge_write(done, &place)
            })
        });
        self.enough(&join_all(writes).await)
    }

    /// Makes every completed write durable on every leg in use. A failed flush faults the leg and
    /// is not retried.
    pub(crate) async fn flush(&self) -> Result<(), PoolError> {
        let flushes = self.legs.iter().filter_map(|leg| {
            let device = leg.usable()?;
            Some(async move { leg.judge(device.flush().await) })
        });
        self.enough(&join_all(flushes).await)
    }

    /// Leg that the next read tries first: round-robin.
    pub(crate) fn next_leg(&self) -> usize {
        self.next_read.fetch_add(1, Ordering::Relaxed) % self.legs.len()
    }

    /// Legs in the order in which a read tries them: up to date, unconfirmed, stale. In each of
    /// these groups, recently slow legs come last; the other legs are in round-robin order from
    /// `start`.
    fn read_order(&self, start: usize) -> Vec<&Leg> {
        let mut order: Vec<&Leg> = self.legs.iter().collect();
        let first = start % order.len();
        order.rotate_left(first);
        order.retain(|leg| leg.usable().is_some());
        order.sort_by_cached_key(|leg| (leg.doubt(), leg.is_avoided()));
        order
    }

    /// Copies of whole sectors, leg by leg, in [`Self::read_order`].
    fn copies(&self, first: usize, disk_offset: u64, len: usize) -> Copies<'_> {
        Copies::new(self.read_order(first), disk_offset, len, &*self.clock)
    }

    /// Reads the same whole sectors from every complete leg, or from all legs if none is complete.
    /// `look` gets `None` for a leg that cannot read these sectors.
    ///
    /// The caller compares the copies itself: this function neither counts checksum errors of a leg
    /// nor repairs a copy.
    pub(crate) async fn read_each(
        &self,
        disk_offset: u64,
        len: usize,
        mut look: impl FnMut(Option<&[u8]>),
    ) {
        let mut legs = self.read_order(0);
        if legs.iter().any(|leg| leg.is_whole()) {
            legs.retain(|leg| leg.is_whole());
        }
        let mut copies = Copies::new(legs, disk_offset, len, &*self.clock);
        while let Some(Copy { leg, done, buf, .. }) = copies.next().await {
            match done {
                Ok(()) => look(Some(&buf)),
                Err(error) => {
                    leg.count_read_error(&error);
                    look(None);
                }
            }
        }
    }

    /// Reads the same whole sectors from one leg after another until `accept` takes a copy.
    ///
    /// Callers read structures that carry their own checksum and may be absent. So this function
    /// neither counts checksum errors of a leg nor repairs a copy.
    pub(crate) async fn read_any<T>(
        &self,
        disk_offset: u64,
        len: usize,
        accept: impl FnMut(IoBuf) -> Option<T>,
    ) -> Result<Option<T>, PoolError> {
        self.read_from(self.next_leg(), disk_offset, len, accept).await
    }

    async fn read_from<T>(
        &self,
        first: usize,
        disk_offset: u64,
        len: usize,
        mut accept: impl FnMut(IoBuf) -> Option<T>,
    ) -> Result<Option<T>, PoolError> {
        let mut answered = false;
        let mut copies = self.copies(first, disk_offset, len);
        while let Some(Copy { leg, done, buf, .. }) = copies.next().await {
            match done {
                Ok(()) => answered = true,
                Err(error) => {
                    leg.count_read_error(&error);
                    continue;
                }
            }
            if let Some(taken) = accept(buf) {
                return Ok(Some(taken));
            }
        }
        if answered { Ok(None) } else { Err(self.lost()) }
    }

    /// Reads `len` bytes of the segment area from the leg `first` or a later one, unverified. The
    /// caller verifies each block and reads a bad block with [`Self::read_verified`], starting at
    /// the same leg, so that the bad copy is found again, counted and repaired.
    ///
    /// Returns a buffer rounded out to sectors, and the start of the bytes in it.
    #[boxed(?Send)]
    pub(crate) async fn read_unverified(
        &self,
        first: usize,
        offset: u64,
        len: usize,
    ) -> Result<(IoBuf, usize), PoolError> {
        let (at, within, rounded) = self.round_out(offset, len);
        if let Some(rows) = &self.rows {
            return Ok((self.read_raidz(rows, at, rounded).await?, within));
        }
        let read = self.read_from(first, self.base + at, rounded, Some).await?;
        Ok((read.expect("every copy is taken"), within))
    }

    /// Reads `len` bytes of the segment area. Returns the first copy that `verify` accepts, or the
    /// bytes reconstructed from other strips of their rows. Rewrites the wrong copies and strips.
    ///
    /// # Errors
    /// `Damaged`: legs answered, but none with the right bytes. `VdevLost`: too few legs answered.
    pub(crate) async fn read_verified(
        &self,
        first: usize,
        offset: u64,
        len: usize,
        verify: impl Fn(&[u8]) -> bool,
    ) -> Result<(IoBuf, usize), PoolError> {
        let (at, within, rounded) = self.round_out(offset, len);
        if let Some(rows) = &self.rows {
            let wanted = within..within + len;
            let read = self.read_raidz_verified(rows, at, rounded, wanted, verify).await?;
            return Ok((read, within));
        }
        let at = self.base + at;
        let (mut wrong, mut answered): (Vec<(&Leg, Option<IoBuf>)>, bool) = (Vec::new(), false);
        let mut copies = self.copies(first, at, rounded);
        while let Some(Copy { leg, doubt, done, buf }) = copies.next().await {
            match done {
                Ok(()) if verify(&buf[within..within + len]) => {
                    for (leg, read) in wrong {
                        let read = read.as_deref();
                        self.heal((leg, read), at, &buf, within..within + len).await;
                    }
                    return Ok((buf, within));
                }
                Ok(()) => {
                    leg.count_wrong_bytes(doubt, at + within as u64);
                    wrong.push((leg, Some(buf)));
                    answered = true;
                }
                Err(error) => {
                    leg.count_read_error(&error);
                    wrong.push((leg, None));
                }
            }
        }
        if answered { Err(self.damaged(offset)) } else { Err(self.unreadable(offset).await) }
    }

    pub(super) fn damaged(&self, offset: u64) -> PoolError {
        PoolError::Damaged { pool: self.pool.clone(), vdev: self.index, offset }
    }

    /// Distinguishes unreadable sectors from lost disks: returns `Damaged` if enough complete legs
    /// can read the first sector of their disks, else `VdevLost`.
    pub(super) async fn unreadable(&self, offset: u64) -> PoolError {
        let len = self.sector_bytes() as usize;
        let reads = self.legs.iter().filter(|leg| leg.is_whole()).filter_map(|leg| {
            let device = leg.usable()?;
            Some(async move { device.read_at(0, IoBuf::zeroed(len)).await.0.is_ok() })
        });
        match self.enough(&join_all(reads).await) {
            Ok(()) => self.damaged(offset),
            Err(lost) => lost,
        }
    }

    /// Rounds a byte range out to whole sectors. Returns the start of the aligned range, the offset
    /// of `start` in the aligned range, and the length of the aligned range.
    pub(crate) fn round_out(&self, start: u64, len: usize) -> (u64, usize, usize) {
        let sector = self.sector_bytes();
        let at = start - start % sector;
        let end = (start + len as u64).next_multiple_of(sector);
        (at, (start - at) as usize, (end - at) as usize)
    }

    /// True if repairs write back unverified bytes of the leg around a bad block (planted bug).
    pub(crate) fn repairs_unverified(&self) -> bool {
        self.bug == PlantedBug::NeighboursUnverified
    }

    /// Rewrites one bad copy. `good[range]` was verified; the rest of `good` are the neighbouring
    /// bytes in the first and last sector, as the leg with the right copy returned them.
    ///
    /// No checksum covers the bytes outside `range`, and either leg may have the better copy of
    /// these bytes. So the repaired leg keeps its own bytes there, but only if a second read equals
    /// the first (`read`). A leg that misreads (bad cable) returns other bytes than its disk holds,
    /// and the bytes on disk must stay. A scrub knows the checksums of the neighbouring blocks and
    /// repairs such a copy.
    #[boxed(?Send)]
    pub(super) async fn heal(
        &self,
        (leg, read): (&Leg, Option<&[u8]>),
        at: u64,
        good: &IoBuf,
        range: Range<usize>,
    ) {
        let Some(device) = leg.usable() else { return };
        let _repair = self.repairs.hold(at..at + good.len() as u64).await;
        let len = good.len();
        let mut repaired = match device.read_at(at, IoBuf::zeroed(len)).await {
            (Ok(()), theirs) => theirs,
            (Err(_), mut buf) => {
                buf.copy_from_slice(good);
                buf
            }
        };
        let (before, behind) = (..range.start, range.end..);
        let differs = repaired[before] != good[before] || repaired[behind.clone()] != good[behind];
        let is_unsure = differs && read.is_none_or(|read| repaired[..] != *read);
        if is_unsure && !self.repairs_unverified() {
            tracing::debug!(disk = %leg.path(), offset = at, "bad copy is left to a scrub");
            return;
        }
        repaired[range.clone()].copy_from_slice(&good[range.clone()]);
        let written = device.write_at(at, Arc::new(repaired), 0..len, Durability::Cached).await;
        if let Err(error) = written {
            return leg.fault(&error);
        }
        leg.checksum_errors.forget(&(at + range.start as u64..at + range.end as u64));
        if leg.doubt() == Doubt::Stale {
            tracing::debug!(disk = %leg.path(), offset = at, "missed write repeated");
        } else {
            tracing::warn!(disk = %leg.path(), offset = at, "bad copy repaired");
        }
    }
}
