//! Vdevs: disks, mirrors and raidz, and the rules of writing to all legs and reading from any.
//!
//! Not here: where on a vdev anything is (segments, labels, intent log).
//!
//! Labels and intent log are the same on every leg of every kind; only the segment area knows rows
//! and strips. Offsets in it count data bytes, so that nothing above sees which leg holds what.
//!
//! Invariants:
//! - a write or flush returns `Ok` only if it succeeded on every leg in use, and on as many as
//!   reading everything back takes;
//! - a leg whose write or flush failed is faulted and used no more: what it holds after its last
//!   good flush is unknown (a failed flush is never retried into success);
//! - a read is judged by the checksum its pointer carries, never by what the disk reports;
//! - a leg that missed writes stays stale until a resilver copied all of it and an uberblock that
//!   says so is durable; a fault or an absence meanwhile takes that back.

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
pub(crate) struct Vdev {
    pub(crate) index: u16,
    kind: VdevKind,
    role: RwLock<VdevRole>,
    pub(crate) legs: Legs,
    /// The log does not move here: no label names it durably yet, or it is being removed.
    closed_to_log: AtomicBool,
    /// Bytes of each leg that are used, labels included; they grow with the disks.
    disk_bytes: AtomicU64,
    /// Data bytes of a row: the unit of every append.
    pub(crate) row_bytes: u64,
    /// Start of the segment area on every leg.
    pub(crate) base: u64,
    /// How rows lie on the legs of a raidz vdev.
    pub(crate) rows: Option<Rows>,
    /// The largest of its legs'.
    sector_bytes: AtomicU64,
    next_read: AtomicUsize,
    pub(crate) repairs: Repairs,
    pool: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(crate) bug: PlantedBug,
}

impl Vdev {
    /// Vdev number `index` of a label, on these legs.
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

    /// What it is for.
    pub(crate) fn role(&self) -> VdevRole {
        *self.role.read()
    }

    pub(crate) fn set_role(&self, role: VdevRole) {
        *self.role.write() = role;
    }

    /// Whether the log may not move here.
    pub(crate) fn is_closed_to_log(&self) -> bool {
        self.closed_to_log.load(Ordering::Acquire)
    }

    pub(crate) fn set_closed_to_log(&self, closed: bool) {
        self.closed_to_log.store(closed, Ordering::Release);
    }

    /// Bytes of each leg that are used, labels included.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn set_disk_bytes(&self, bytes: u64) {
        self.disk_bytes.store(bytes, Ordering::Release);
    }

    pub(crate) fn sector_bytes(&self) -> u64 {
        self.sector_bytes.load(Ordering::Relaxed)
    }

    /// A disk with sectors of this size joins.
    pub(crate) fn raise_sector_bytes(&self, bytes: u32) {
        self.sector_bytes.fetch_max(u64::from(bytes), Ordering::Relaxed);
    }

    pub(super) fn lost(&self) -> PoolError {
        PoolError::VdevLost { pool: self.pool.clone(), vdev: self.index }
    }

    /// Kind, as it is now: a second leg makes a mirror of a disk.
    pub(crate) fn kind(&self) -> VdevKind {
        match (self.kind, self.legs.len()) {
            (VdevKind::Disk | VdevKind::Mirror, 0 | 1) => VdevKind::Disk,
            (VdevKind::Disk | VdevKind::Mirror, _) => VdevKind::Mirror,
            (raidz, _) => raidz,
        }
    }

    /// As people call it.
    pub(crate) fn name(&self) -> String {
        format!("{}-{}", self.kind().name(), self.index)
    }

    /// Whether every leg holds everything.
    pub(crate) fn mirrors(&self) -> bool {
        self.rows.is_none()
    }

    /// As the label names it.
    pub(crate) fn config(&self) -> VdevConfig {
        let role = self.role();
        if role == VdevRole::Removed {
            return VdevConfig::REMOVED;
        }
        let leg = |leg: &Leg| LegConfig { guid: leg.guid, path: leg.path().to_owned() };
        let legs = self.legs.iter().map(leg).collect();
        VdevConfig { kind: self.kind(), role, disk_bytes: self.disk_bytes(), legs }
    }

    /// What came of an operation that a commit can do without where only the log is kept: whether
    /// a log vdev can be written is found when the log is. One that left meanwhile holds nothing.
    pub(crate) async fn unless_dispensable(
        &self,
        done: impl Future<Output = Result<(), PoolError>>,
    ) -> Result<(), PoolError> {
        match done.await {
            Err(_) if matches!(self.role(), VdevRole::Log | VdevRole::Removed) => Ok(()),
            done => done,
        }
    }

    /// Refuses an uberblock after which nothing could be read as a whole: one that calls too many
    /// legs stale. A log vdev may be lost.
    pub(crate) fn check_alive(&self) -> Result<(), PoolError> {
        if self.role() == VdevRole::Log || self.is_alive() { Ok(()) } else { Err(self.lost()) }
    }

    /// Whether enough legs can be used to hold everything.
    pub(crate) fn is_alive(&self) -> bool {
        let good: Vec<bool> = self.legs.iter().map(Leg::is_whole).collect();
        self.enough(&good).is_ok()
    }

    /// The leg of a dead mirror that left last of those that held everything: it took every write
    /// that was acknowledged.
    pub(crate) fn last_standing(&self) -> Option<Guid> {
        let when = |leg: &&Leg| leg.missing.lock().left;
        let last = self.legs.iter().max_by_key(when).filter(|leg| when(leg) > 0);
        last.filter(|_| self.mirrors() && !self.is_alive()).map(|leg| leg.guid)
    }

    /// Judges what was done on each leg: a vdev works on as many legs as its rows have data strips.
    ///
    /// A leg that misses something does not count, though it is written too: with too few others
    /// the vdev could not be read as a whole any more, and no uberblock may say so.
    pub(super) fn enough(&self, done: &[bool]) -> Result<(), PoolError> {
        let done = done.iter().filter(|done| **done).count();
        if done >= self.legs_needed() { Ok(()) } else { Err(self.lost()) }
    }

    /// Legs from which everything can be read.
    pub(crate) fn legs_needed(&self) -> usize {
        self.rows.map_or(1, |rows| rows.data)
    }

    /// Writes whole rows, `data[range]`, at an offset of the segment area.
    ///
    /// # Durability
    /// None before the next [`Self::flush`]; a leg that fails is faulted, and the rest carries on.
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
    /// As asked; a leg that fails is faulted, and the rest carries on.
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

    /// Makes every completed write durable on every leg in use.
    pub(crate) async fn flush(&self) -> Result<(), PoolError> {
        let flushes = self.legs.iter().filter_map(|leg| {
            let device = leg.usable()?;
            Some(async move { leg.judge(device.flush().await) })
        });
        self.enough(&join_all(flushes).await)
    }

    /// The leg the next read should ask first: each in turn.
    pub(crate) fn next_leg(&self) -> usize {
        self.next_read.fetch_add(1, Ordering::Relaxed) % self.legs.len()
    }

    /// Legs in the order a read should try them: up to date first and stale last, those that answer
    /// before those that were slow a moment ago, then from `start` on.
    fn read_order(&self, start: usize) -> Vec<&Leg> {
        let mut order: Vec<&Leg> = self.legs.iter().collect();
        let first = start % order.len();
        order.rotate_left(first);
        order.retain(|leg| leg.usable().is_some());
        order.sort_by_cached_key(|leg| (leg.doubt(), leg.is_avoided()));
        order
    }

    /// The copies of whole sectors, leg by leg, as [`Self::read_order`] has it.
    fn copies(&self, first: usize, disk_offset: u64, len: usize) -> Copies<'_> {
        Copies::new(self.read_order(first), disk_offset, len, &*self.clock)
    }

    /// Reads the same whole sectors from every leg that is up to date, or from all where none is;
    /// `look` gets `None` from a leg that cannot read them.
    ///
    /// For structures whose copies are compared: nothing is counted as damage, none repaired.
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

    /// Reads the same whole sectors from one leg after another until `accept` takes one copy.
    ///
    /// For structures that carry their own checksum and may rightly be absent: nothing is counted
    /// as damage and nothing is repaired.
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

    /// Reads `len` bytes of the segment area from the leg `first` or a later one, unverified: the
    /// caller verifies each block in them, and reads one that is bad with [`Self::read_verified`]
    /// from the same leg on, so that the bad copy is met again, counted and repaired.
    ///
    /// Returns a buffer rounded out to sectors and where the bytes start in it.
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

    /// Reads `len` bytes of the segment area and returns the first copy that `verify` accepts, or
    /// what the other strips of its rows say it must be; copies and strips that were wrong are
    /// rewritten.
    ///
    /// # Errors
    /// `Damaged` when legs answer but none with the right bytes, `VdevLost` when too few answer.
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

    /// Tells sectors that cannot be read from disks that are gone: of those that hold everything
    /// enough read their first sector.
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

    /// Sector-aligned offset, start of the bytes inside it, rounded length.
    pub(crate) fn round_out(&self, start: u64, len: usize) -> (u64, usize, usize) {
        let sector = self.sector_bytes();
        let at = start - start % sector;
        let end = (start + len as u64).next_multiple_of(sector);
        (at, (start - at) as usize, (end - at) as usize)
    }

    /// Returns true if repairs write a leg's unverified bytes for the neighbours of a bad block.
    pub(crate) fn repairs_unverified(&self) -> bool {
        self.bug == PlantedBug::NeighboursUnverified
    }

    /// Rewrites one bad copy. `good[range]` was verified; the rest of `good` is the first and last
    /// sector as the leg with the right copy returned it.
    ///
    /// No checksum proves the bytes outside of `range`: either leg may have the better copy of
    /// them. So this leg keeps its own bytes there, but only if a second read equals the first
    /// (`read`). A leg that misreads (a bad cable) returns other bytes than its disk holds, and the
    /// disk's bytes must stay. A scrub knows the checksums of the neighbours and repairs such a
    /// copy.
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
