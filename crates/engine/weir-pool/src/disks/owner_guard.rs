//! Owner guard: stops the writes of a server that was paused while another server took its pool.
//!
//! Not here: content and heartbeat of the owner slot (`claim`).
//!
//! Invariants:
//! - if no owner slot was read for [`OWNER_READ_AGE_MAX`], each disk's next write or discard reads
//!   that disk's slot first;
//! - once an owner slot names another import epoch, the guard rejects every write and discard.
//!
//! The guard does not detect a pause between the check and the system call, nor a pause in which
//! neither clock of the machine advances. After such a pause, the next heartbeat or commit still
//! reads the slot.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fmt, io};

use weir_base::limits::OWNER_READ_AGE_MAX;
use weir_base::{Clock, Guid};
use weir_block::IoBuf;
use weir_device::{
    Device, DeviceError, DeviceOp, DeviceStats, DiskWatch, Durability, Geometry, IoFuture,
    ReadFuture, WatchedDevice,
};
use weir_format::Owner;

use crate::disks::owner_slot::read_slot;
use crate::planted_bugs::PlantedBug;

/// Limit of a write's attempts to read the owner slot. A slot read that takes longer than
/// [`OWNER_READ_AGE_MAX`] is out of date when it ends, so the write repeats the read.
const READS_MAX: usize = 3;

/// Time of the last read of an owner slot, in milliseconds of each clock. The monotonic clock stops
/// while a machine is suspended; the wall clock does not.
#[derive(Debug, Default)]
struct LastRead {
    monotonic: AtomicU64,
    unix: AtomicU64,
}

/// Time on both clocks, in milliseconds.
#[derive(Clone, Copy)]
struct ClockTime {
    monotonic: u64,
    unix: u64,
}

impl ClockTime {
    fn now(clock: &dyn Clock) -> Self {
        Self { monotonic: clock.monotonic().as_millis() as u64, unix: clock.unix_ms() }
    }
}

impl LastRead {
    fn set(&self, at: ClockTime) {
        self.monotonic.fetch_max(at.monotonic, Ordering::AcqRel);
        // Store the wall clock even if it is earlier than before: it may have been set back.
        self.unix.store(at.unix, Ordering::Release);
    }

    fn is_recent(&self, now: ClockTime) -> bool {
        let max = OWNER_READ_AGE_MAX.as_millis() as u64;
        now.monotonic.saturating_sub(self.monotonic.load(Ordering::Acquire)) < max
            && now.unix.saturating_sub(self.unix.load(Ordering::Acquire)) < max
    }
}

/// Owner slots that count as slots of this server.
struct Own {
    pool: Guid,
    /// This import epoch, and earlier epochs whose owner slots may not have been overwritten yet.
    import_epochs: Vec<Guid>,
}

/// Checks before writes that this server still owns the pool.
pub(crate) struct OwnerGuard {
    clock: Arc<dyn Clock>,
    bug: PlantedBug,
    /// Unset until the server announces its ownership of the pool; until then the guard checks
    /// nothing.
    own: OnceLock<Own>,
    /// Time of the last read of an owner slot by a heartbeat or commit.
    last_read: LastRead,
    /// Owner slot of the server that took the pool over; unset until a read finds such a slot.
    other: OnceLock<Owner>,
}

impl OwnerGuard {
    pub(crate) fn new(clock: &Arc<dyn Clock>, bug: PlantedBug) -> Arc<Self> {
        let (clock, last_read) = (Arc::clone(clock), LastRead::default());
        Arc::new(Self { clock, bug, own: OnceLock::new(), last_read, other: OnceLock::new() })
    }

    /// Starts the checks: if an owner slot of `pool` names an import epoch outside `import_epochs`,
    /// the guard stops all writes.
    pub(crate) fn start(&self, pool: Guid, import_epochs: Vec<Guid>) {
        self.last_read.set(ClockTime::now(&*self.clock));
        assert!(self.own.set(Own { pool, import_epochs }).is_ok(), "a pool has one owner slot");
    }

    /// Owner slot of the server that took the pool over; `None` until a read finds such a slot.
    pub(crate) fn other(&self) -> Option<&Owner> {
        self.other.get()
    }

    /// True if an owner slot names this server, or an import epoch that it took over.
    pub(crate) fn is_own(&self, slot: &Owner) -> bool {
        self.own.get().is_some_and(|own| own.import_epochs.contains(&slot.import_epoch))
    }

    /// Runs `read`, which reads the owner slot of a disk, and checks that the slot is this
    /// server's.
    pub(crate) async fn look(&self, read: impl Future<Output = Option<Owner>>) {
        self.look_for(&self.last_read, read).await;
    }

    /// Checks the slot as [`Self::look`] does, and records the time in `last_read`. Returns false
    /// if `read` found no owner slot: a missing slot proves nothing about the owner.
    async fn look_for(
        &self,
        last_read: &LastRead,
        read: impl Future<Output = Option<Owner>>,
    ) -> bool {
        let begun = ClockTime::now(&*self.clock);
        let slot = read.await;
        let (Some(own), Some(slot)) = (self.own.get(), slot) else { return false };
        if slot.pool == own.pool && !own.import_epochs.contains(&slot.import_epoch) {
            drop(self.other.set(slot));
        } else {
            last_read.set(begun);
        }
        true
    }

    /// Wraps a disk: adds statistics (`DiskWatch`), and checks this guard before writes.
    pub(crate) fn guard(self: &Arc<Self>, disk: Arc<dyn Device>) -> Arc<dyn Device> {
        let behind = watched(disk, &self.clock);
        Arc::new(GuardedDevice { behind, guard: Arc::clone(self), last_read: LastRead::default() })
    }
}

/// Error of a write that the guard rejected.
#[derive(Debug)]
struct NotOwner(Owner);

impl fmt::Display for NotOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {} has taken over the pool", self.0.pid, self.0.host)
    }
}

impl std::error::Error for NotOwner {}

/// True if an operation failed because another server took the pool over; the disk is not at fault.
pub(crate) fn is_not_owner(error: &DeviceError) -> bool {
    error.source.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<NotOwner>)
}

/// Disk of a pool that checks the guard before writes and discards.
struct GuardedDevice {
    behind: Arc<dyn Device>,
    guard: Arc<OwnerGuard>,
    /// Time of the last read of this disk's owner slot by a write.
    last_read: LastRead,
}

impl GuardedDevice {
    /// True if a write may go to the disk without a read of its owner slot.
    fn may_write(&self) -> bool {
        let guard = &self.guard;
        if guard.own.get().is_none() || guard.bug == PlantedBug::OwnerNotChecked {
            return true;
        }
        let now = ClockTime::now(&*guard.clock);
        guard.other().is_none() && (guard.last_read.is_recent(now) || self.last_read.is_recent(now))
    }

    /// Reads the owner slot again until one read takes less than [`OWNER_READ_AGE_MAX`], at most
    /// [`READS_MAX`] times. Fails if the slot names another server.
    async fn check(&self, op: DeviceOp, offset: u64) -> Result<(), DeviceError> {
        for _ in 0..READS_MAX {
            if self.may_write() {
                break;
            }
            let guard = &self.guard;
            let found = guard.other().is_some()
                || guard.look_for(&self.last_read, read_slot(&*self.behind)).await;
            if let Some(other) = guard.other() {
                let source = io::Error::other(NotOwner(other.clone()));
                return Err(DeviceError { path: self.path().to_owned(), op, offset, source });
            }
            if !found {
                break;
            }
        }
        Ok(())
    }
}

impl Device for GuardedDevice {
    fn path(&self) -> &str {
        self.behind.path()
    }

    fn geometry(&self) -> Geometry {
        self.behind.geometry()
    }

    fn current_len(&self) -> Option<u64> {
        self.behind.current_len()
    }

    fn stats(&self) -> &DeviceStats {
        self.behind.stats()
    }

    fn watch(&self) -> Option<&DiskWatch> {
        self.behind.watch()
    }

    fn read_at(&self, offset: u64, buf: IoBuf) -> ReadFuture<'_> {
        self.behind.read_at(offset, buf)
    }

    fn write_at(
        &self,
        offset: u64,
        data: Arc<IoBuf>,
        range: Range<usize>,
        durability: Durability,
    ) -> IoFuture<'_, Result<(), DeviceError>> {
        if self.may_write() {
            return self.behind.write_at(offset, data, range, durability);
        }
        Box::pin(async move {
            self.check(DeviceOp::Write, offset).await?;
            self.behind.write_at(offset, data, range, durability).await
        })
    }

    fn flush(&self) -> IoFuture<'_, Result<(), DeviceError>> {
        self.behind.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> IoFuture<'_, Result<(), DeviceError>> {
        if self.may_write() {
            return self.behind.discard(offset, len_bytes);
        }
        Box::pin(async move {
            self.check(DeviceOp::Discard, offset).await?;
            self.behind.discard(offset, len_bytes).await
        })
    }
}

/// Adds statistics (`DiskWatch`) to a disk that has none.
pub(crate) fn watched(disk: Arc<dyn Device>, clock: &Arc<dyn Clock>) -> Arc<dyn Device> {
    match disk.watch() {
        Some(_) => disk,
        None => Arc::new(WatchedDevice::new(disk, Arc::clone(clock))),
    }
}
