//! One disk of a vdev: state, missed txgs, error counters.
//!
//! Not here: rules across all legs of a vdev (`vdev`).
//!
//! Invariant: a failed write or flush faults the leg, because its content after the last good flush
//! is unknown. A faulted leg returns to use only as a stale leg.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use weir_base::{Guid, Txg};
use weir_device::{Device, DeviceError};

use crate::disks::checksum_errors::ChecksumErrors;
use crate::disks::owner_guard::is_not_owner;
use crate::disks::scan_kind::ScanKind;

/// Data that a leg lacks.
#[derive(Default)]
pub(crate) struct Missing {
    /// Last txg whose writes the leg has; the leg missed later writes.
    stale_after: Option<Txg>,
    /// True if the leg may have missed nothing: the only sign of missed writes is that the leg's
    /// own uberblocks end at `stale_after`. The leg counts as complete.
    unconfirmed: bool,
    /// True if a resilver copied all missed data to the leg, so that the next uberblock may list
    /// the leg as up to date.
    copied: bool,
    /// True if the newest uberblock lists the leg as stale.
    listed: bool,
    /// Number of times the leg went out of use.
    absences: u64,
    /// Value of `LEFT` when the leg last went out of use while complete; 0 if it never did.
    pub(crate) left: u64,
}

/// Doubt that a leg holds current data; reads try legs in the order of the variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doubt {
    /// The leg certainly holds all data.
    UpToDate,
    /// Only the newest uberblock is missing on the leg: the leg holds all data, unless its disk
    /// lost flushed writes.
    Unconfirmed,
    /// The leg missed writes.
    Stale,
}

/// Sequence number of the next leg that goes out of use, in any pool. Only the order matters.
static LEFT: AtomicU64 = AtomicU64::new(1);

/// One disk of a vdev.
pub(crate) struct Leg {
    pub(crate) guid: Guid,
    /// Paths at which the disk was found, newest last.
    paths: boxcar::Vec<String>,
    /// `None` while the disk is missing.
    device: RwLock<Option<Arc<dyn Device>>>,
    faulted: AtomicBool,
    /// Problem of the disk that its state does not show: an import excluded the disk, or the disk
    /// is too short.
    note: Mutex<Option<String>>,
    /// True if an administrator took the leg offline.
    offline: AtomicBool,
    pub(crate) missing: Mutex<Missing>,
    pub(crate) read_errors: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    pub(crate) checksum_errors: ChecksumErrors,
}

impl Leg {
    pub(crate) fn new(guid: Guid, path: String, device: Option<Arc<dyn Device>>) -> Self {
        Self {
            guid,
            paths: boxcar::vec![path],
            device: RwLock::new(device),
            faulted: AtomicBool::new(false),
            note: Mutex::default(),
            offline: AtomicBool::new(false),
            missing: Mutex::default(),
            read_errors: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            checksum_errors: ChecksumErrors::default(),
        }
    }

    /// Current or last known path.
    pub(crate) fn path(&self) -> &str {
        let newest = self.paths.iter().last();
        newest.map(|(_, path)| path.as_str()).expect("a leg begins with a path")
    }

    /// Disk of the leg; `None` while the disk is missing.
    pub(crate) fn device(&self) -> Option<Arc<dyn Device>> {
        self.device.read().clone()
    }

    pub(crate) fn set_note(&self, why: &str) {
        *self.note.lock() = Some(why.to_owned());
    }

    pub(crate) fn note(&self) -> Option<String> {
        self.note.lock().clone()
    }

    /// Disk of the leg, if reads and writes may use it.
    pub(crate) fn usable(&self) -> Option<Arc<dyn Device>> {
        if self.is_faulted() || self.is_offline() { None } else { self.device() }
    }

    /// True if a later scan must repeat a failed repair of this leg. False for a scrub if the leg
    /// is offline now: a resilver will check everything that the leg missed.
    pub(crate) fn still_lacks(&self, kind: ScanKind) -> bool {
        kind == ScanKind::Resilver || !self.is_offline()
    }

    pub(crate) fn is_faulted(&self) -> bool {
        self.faulted.load(Ordering::Acquire)
    }

    pub(crate) fn is_offline(&self) -> bool {
        self.offline.load(Ordering::Acquire)
    }

    pub(crate) fn stale_after(&self) -> Option<Txg> {
        self.missing.lock().stale_after
    }

    /// True if the leg is in use and complete as far as is known. True also for an unconfirmed leg.
    pub(crate) fn is_whole(&self) -> bool {
        let missing = self.missing.lock();
        self.usable().is_some() && (missing.stale_after.is_none() || missing.unconfirmed)
    }

    /// True if the newest uberblock on the leg is one txg older than the pool's, and no resilver
    /// has checked the leg since the import.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.missing.lock().unconfirmed
    }

    /// Doubt that the leg holds current data.
    pub(crate) fn doubt(&self) -> Doubt {
        let missing = self.missing.lock();
        match missing.stale_after {
            None => Doubt::UpToDate,
            Some(_) if missing.unconfirmed => Doubt::Unconfirmed,
            Some(_) => Doubt::Stale,
        }
    }

    /// True if the leg is in use and certainly holds all data.
    pub(crate) fn is_up_to_date(&self) -> bool {
        self.usable().is_some() && self.stale_after().is_none()
    }

    /// True if the leg is in use and may lack a segment that was last written in `last_txg`.
    pub(crate) fn is_behind(&self, last_txg: Txg) -> bool {
        self.usable().is_some() && self.stale_after().is_some_and(|txg| last_txg > txg)
    }

    /// True if the leg is stale from txg 0, as a new leg is: a resilver writes all of its data.
    pub(crate) fn is_blank(&self) -> bool {
        let missing = self.missing.lock();
        missing.stale_after == Some(Txg(0)) && !missing.unconfirmed
    }

    pub(crate) fn set_stale(&self, txg: Txg) {
        let mut missing = self.missing.lock();
        missing.stale_after.get_or_insert(txg);
        missing.unconfirmed = false;
    }

    /// Records that the leg missed all writes after `txg`, or after an earlier txg that was set
    /// before.
    pub(crate) fn set_stale_since(&self, txg: Txg) {
        self.set_stale(txg);
        let mut missing = self.missing.lock();
        missing.stale_after = missing.stale_after.min(Some(txg));
    }

    /// Marks the leg as complete but unconfirmed: a resilver has to check the writes after `txg`.
    pub(crate) fn set_unconfirmed(&self, txg: Txg) {
        let mut missing = self.missing.lock();
        missing.unconfirmed |= missing.stale_after.is_none();
        if missing.unconfirmed {
            missing.stale_after = Some(missing.stale_after.map_or(txg, |known| known.min(txg)));
        }
    }

    /// Treats the leg as up to date, because no other leg can supply the missed data or because the
    /// leg needs no data (a spare).
    pub(crate) fn take_as_it_is(&self) {
        if self.usable().is_some() {
            let mut missing = self.missing.lock();
            (missing.stale_after, missing.unconfirmed) = (None, false);
        }
    }

    /// Txg of the leg in the list of stale legs of the next uberblock; `None` if the leg is not
    /// listed. A leg that is not in use misses all writes after the last txg that was written to
    /// the leg.
    pub(crate) fn stale_in_next(&self, committed: Txg) -> Option<Txg> {
        let mut missing = self.missing.lock();
        if self.usable().is_none() {
            missing.stale_after.get_or_insert(committed);
            (missing.copied, missing.unconfirmed) = (false, false);
        }
        missing.stale_after.filter(|_| !missing.copied && !missing.unconfirmed)
    }

    /// Txg of the leg in the list of unconfirmed legs of the next uberblock: the leg is confirmed
    /// up to this txg. `None` if the leg is not listed.
    pub(crate) fn unconfirmed_in_next(&self) -> Option<Txg> {
        let missing = self.missing.lock();
        missing.stale_after.filter(|_| missing.unconfirmed && !missing.copied)
    }

    /// Clears the stale state once an uberblock that lists the leg as up to date is durable.
    pub(crate) fn settle_copied(&self) {
        let mut missing = self.missing.lock();
        if std::mem::take(&mut missing.copied) {
            (missing.stale_after, missing.unconfirmed) = (None, false);
            tracing::info!(disk = %self.path(), "disk is up to date again");
        }
    }

    /// Records whether the newest uberblock, which is durable, lists the leg as stale.
    pub(crate) fn set_listed(&self, listed: bool) {
        self.missing.lock().listed = listed;
    }

    /// True if the leg missed writes, but the newest uberblock does not list it as stale yet.
    pub(crate) fn is_unlisted(&self) -> bool {
        let missing = self.missing.lock();
        let is_stale = missing.stale_after.is_some() && !missing.unconfirmed;
        !missing.listed && (is_stale || self.usable().is_none())
    }

    /// Number of times the leg went out of use; the caller passes it to [`Self::set_copied`].
    pub(crate) fn absences(&self) -> u64 {
        self.missing.lock().absences
    }

    /// Records that all missed data was copied to the leg and flushed. Returns false if the leg
    /// went out of use since `absences` was read.
    pub(crate) fn set_copied(&self, absences: u64) -> bool {
        let mut missing = self.missing.lock();
        missing.copied = missing.absences == absences && self.usable().is_some();
        missing.copied
    }

    fn note_absence(&self, was_in_use: bool) {
        let mut missing = self.missing.lock();
        missing.absences += 1;
        missing.copied = false;
        if was_in_use && (missing.stale_after.is_none() || missing.unconfirmed) {
            missing.left = LEFT.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Takes the leg offline. The leg misses all writes from here on.
    pub(crate) fn set_offline(&self) {
        let was_in_use = !self.offline.swap(true, Ordering::AcqRel) && !self.is_faulted();
        self.note_absence(was_in_use);
    }

    /// Returns the disk, so that the caller can reopen it. The leg must be out of use.
    pub(crate) fn take_device(&self) -> Option<Arc<dyn Device>> {
        assert!(self.usable().is_none(), "a disk in use stays open");
        self.device.write().take()
    }

    /// Brings the leg online, as a leg that missed all writes after `committed`, or after an
    /// earlier txg that was set before.
    pub(crate) fn bring_back(&self, device: Arc<dyn Device>, committed: Txg) {
        // Mark the leg stale before the first read or write can use it.
        self.set_stale(committed);
        *self.note.lock() = None;
        if device.path() != self.path() {
            self.paths.push(device.path().to_owned());
        }
        *self.device.write() = Some(device);
        self.offline.store(false, Ordering::Release);
        self.faulted.store(false, Ordering::Release);
    }

    pub(crate) fn clear_errors(&self) {
        self.read_errors.store(0, Ordering::Relaxed);
        self.write_errors.store(0, Ordering::Relaxed);
        self.checksum_errors.clear();
    }

    /// Takes the leg out of use after an error of its disk.
    pub(crate) fn fault(&self, error: &DeviceError) {
        if is_not_owner(error) {
            return;
        }
        self.write_errors.fetch_add(1, Ordering::Relaxed);
        let first = !self.faulted.swap(true, Ordering::AcqRel);
        if first {
            tracing::error!(disk = %self.path(), %error, "disk faulted: I/O to it is stopped");
        }
        self.note_absence(first && !self.is_offline());
    }

    /// Returns whether a write or flush succeeded on a complete leg. An error faults the leg. The
    /// result is false if the leg went out of use during the operation, because the leg then lacks
    /// the later writes.
    pub(crate) fn judge(&self, done: Result<(), DeviceError>) -> bool {
        let done = done.map_err(|error| self.fault(&error)).is_ok();
        done && self.is_whole()
    }

    /// Calls [`Self::judge`] for a write to these bytes of the disk. Checksum errors in these bytes
    /// count again if they recur.
    pub(crate) fn judge_write(&self, done: Result<(), DeviceError>, bytes: &Range<u64>) -> bool {
        self.checksum_errors.forget(bytes);
        self.judge(done)
    }

    /// Counts a checksum error at byte `at` of the disk, unless the leg is stale now or was stale
    /// when the read was issued (`asked`): the leg may have missed the write, so its wrong bytes
    /// are no error of the disk.
    pub(crate) fn count_wrong_bytes(&self, asked: Doubt, at: u64) {
        if asked.max(self.doubt()) != Doubt::Stale {
            self.checksum_errors.count(at);
        }
    }

    pub(crate) fn count_read_error(&self, error: &DeviceError) {
        self.read_errors.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(disk = %self.path(), %error, "read failed; trying another copy");
    }
}
