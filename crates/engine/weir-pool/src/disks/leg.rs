//! One disk of a vdev: state, missing txgs, errors.
//!
//! Not here: rules over all legs of a vdev (`vdev`).
//!
//! Invariant: a failed write or flush faults the leg for good, because its content after the last
//! good flush is unknown.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use weir_base::{Guid, Txg};
use weir_device::{Device, DeviceError};

use crate::disks::checksum_errors::ChecksumErrors;
use crate::disks::owner_guard::is_not_owner;
use crate::disks::scan_kind::ScanKind;

/// What a leg misses.
#[derive(Default)]
pub(crate) struct Missing {
    /// It misses what was written after this txg.
    stale_after: Option<Txg>,
    /// It may miss nothing: only its own uberblocks end there. It counts as whole.
    unconfirmed: bool,
    /// A resilver copied everything; the next uberblock may say so.
    copied: bool,
    /// Times it went out of use.
    absences: u64,
    /// When it last went out of use while it held everything: its place among all such moments.
    pub(crate) left: u64,
}

/// Doubt that a leg holds current data; reads ask legs in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doubt {
    /// It holds everything for certain.
    UpToDate,
    /// Only its own newest uberblock is missing: on an honest disk it holds everything.
    Unconfirmed,
    /// It missed writes.
    Stale,
}

/// Moments at which legs left, of all pools: only their order counts.
static LEFT: AtomicU64 = AtomicU64::new(1);

/// One disk of a vdev.
pub(crate) struct Leg {
    pub(crate) guid: Guid,
    /// Where it was seen, the last time last.
    paths: boxcar::Vec<String>,
    /// Absent while the disk is missing.
    device: RwLock<Option<Arc<dyn Device>>>,
    faulted: AtomicBool,
    /// What is wrong with its disk, beside its state: why an import left it out, or that it is too
    /// short.
    note: Mutex<Option<String>>,
    /// A person took it out of use.
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

    /// Where it is, or was last seen.
    pub(crate) fn path(&self) -> &str {
        let newest = self.paths.iter().last();
        newest.map(|(_, path)| path.as_str()).expect("a leg begins with a path")
    }

    /// The disk, if it is there.
    pub(crate) fn device(&self) -> Option<Arc<dyn Device>> {
        self.device.read().clone()
    }

    pub(crate) fn set_note(&self, why: &str) {
        *self.note.lock() = Some(why.to_owned());
    }

    pub(crate) fn note(&self) -> Option<String> {
        self.note.lock().clone()
    }

    /// The disk, if it may be used.
    pub(crate) fn usable(&self) -> Option<Arc<dyn Device>> {
        if self.is_faulted() || self.is_offline() { None } else { self.device() }
    }

    /// Whether a repair of it that failed leaves something to be repaired: of a leg that a person
    /// took out of use meanwhile a resilver looks at everything it missed.
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

    /// In use, and it holds everything as far as is known: also a leg that only lacks its own
    /// newest uberblock.
    pub(crate) fn is_whole(&self) -> bool {
        let missing = self.missing.lock();
        self.usable().is_some() && (missing.stale_after.is_none() || missing.unconfirmed)
    }

    /// Whether its own newest uberblock is one txg older than the pool's, and no resilver has
    /// looked since.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.missing.lock().unconfirmed
    }

    /// Doubt that it holds current data.
    pub(crate) fn doubt(&self) -> Doubt {
        let missing = self.missing.lock();
        match missing.stale_after {
            None => Doubt::UpToDate,
            Some(_) if missing.unconfirmed => Doubt::Unconfirmed,
            Some(_) => Doubt::Stale,
        }
    }

    /// In use, and it holds everything for certain.
    pub(crate) fn is_up_to_date(&self) -> bool {
        self.usable().is_some() && self.stale_after().is_none()
    }

    /// In use, and it may lack a segment that was last written in `last_txg`.
    pub(crate) fn is_behind(&self, last_txg: Txg) -> bool {
        self.usable().is_some() && self.stale_after().is_some_and(|txg| last_txg > txg)
    }

    /// Nothing of it was there before it joined: whatever it should have is written to it.
    pub(crate) fn is_blank(&self) -> bool {
        let missing = self.missing.lock();
        missing.stale_after == Some(Txg(0)) && !missing.unconfirmed
    }

    pub(crate) fn set_stale(&self, txg: Txg) {
        let mut missing = self.missing.lock();
        missing.stale_after.get_or_insert(txg);
        missing.unconfirmed = false;
    }

    /// It misses everything after `txg`, or after an earlier one that was known before.
    pub(crate) fn set_stale_since(&self, txg: Txg) {
        self.set_stale(txg);
        let mut missing = self.missing.lock();
        missing.stale_after = missing.stale_after.min(Some(txg));
    }

    /// It counts as whole, and a resilver has to look at what was written after `txg`.
    pub(crate) fn set_unconfirmed(&self, txg: Txg) {
        let mut missing = self.missing.lock();
        missing.unconfirmed |= missing.stale_after.is_none();
        if missing.unconfirmed {
            missing.stale_after = Some(missing.stale_after.map_or(txg, |known| known.min(txg)));
        }
    }

    /// Gives up what it misses: a person said that no other leg has it any more.
    pub(crate) fn take_as_it_is(&self) {
        if self.usable().is_some() {
            let mut missing = self.missing.lock();
            (missing.stale_after, missing.unconfirmed) = (None, false);
        }
    }

    /// What the next uberblock says of it: a leg that is not in use misses everything after the
    /// last txg it took part in.
    pub(crate) fn stale_in_next(&self, committed: Txg) -> Option<Txg> {
        let mut missing = self.missing.lock();
        if self.usable().is_none() {
            missing.stale_after.get_or_insert(committed);
            (missing.copied, missing.unconfirmed) = (false, false);
        }
        missing.stale_after.filter(|_| !missing.copied && !missing.unconfirmed)
    }

    /// The txg up to which the next uberblock calls it confirmed, if that is not the last one.
    pub(crate) fn unconfirmed_in_next(&self) -> Option<Txg> {
        let missing = self.missing.lock();
        missing.stale_after.filter(|_| missing.unconfirmed && !missing.copied)
    }

    /// An uberblock that calls it up to date is durable.
    pub(crate) fn settle_copied(&self) {
        let mut missing = self.missing.lock();
        if std::mem::take(&mut missing.copied) {
            (missing.stale_after, missing.unconfirmed) = (None, false);
            tracing::info!(disk = %self.path(), "disk is up to date again");
        }
    }

    /// Times it went out of use so far; handed back to [`Self::set_copied`].
    pub(crate) fn absences(&self) -> u64 {
        self.missing.lock().absences
    }

    /// Notes that everything it missed was copied to it and flushed, if it was in use all the time
    /// since `absences` was read.
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

    /// Takes it out of use; what is written from here on, it misses.
    pub(crate) fn set_offline(&self) {
        let was_in_use = !self.offline.swap(true, Ordering::AcqRel) && !self.is_faulted();
        self.note_absence(was_in_use);
    }

    /// Hands the disk out, so that it can be opened anew; only while it is not in use.
    pub(crate) fn take_device(&self) -> Option<Arc<dyn Device>> {
        assert!(self.usable().is_none(), "a disk in use stays open");
        self.device.write().take()
    }

    /// Takes it into use again as a leg that misses everything after `committed`, or what was known
    /// before.
    pub(crate) fn bring_back(&self, device: Arc<dyn Device>, committed: Txg) {
        // Known as stale before the first write or read can find it.
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

    /// Takes it out of use after an error of its disk.
    pub(crate) fn fault(&self, error: &DeviceError) {
        if is_not_owner(error) {
            return;
        }
        self.write_errors.fetch_add(1, Ordering::Relaxed);
        let first = !self.faulted.swap(true, Ordering::AcqRel);
        if first {
            tracing::error!(disk = %self.path(), %error, "disk faulted: it is not used any more");
        }
        self.note_absence(first && !self.is_offline());
    }

    /// Whether a write or flush was done, on a leg that misses nothing. An error faults the leg.
    /// One that went out of use meanwhile does not count: what was done on others after that, it
    /// lacks.
    pub(crate) fn judge(&self, done: Result<(), DeviceError>) -> bool {
        let done = done.map_err(|error| self.fault(&error)).is_ok();
        done && self.is_whole()
    }

    /// As [`Self::judge`], of a write to these bytes of the disk.
    pub(crate) fn judge_write(&self, done: Result<(), DeviceError>, bytes: &Range<u64>) -> bool {
        self.checksum_errors.forget(bytes);
        self.judge(done)
    }

    /// Counts bytes that failed their checksum, from byte `at` of the disk on; `asked` is the doubt
    /// about the leg when a read asked for them. Bytes of a stale leg are no error of its disk: it
    /// may have missed the write.
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
