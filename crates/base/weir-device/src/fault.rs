//! Fault disk: forwards operations to an underlying disk and injects faults, for tests of the whole
//! server.
//!
//! The simulated disk of weir-sim injects crashes, torn writes and lost writes.
//!
//! Invariants:
//! - while no fault is set, the fault disk behaves like the underlying disk;
//! - a failed operation does not reach the underlying disk, with one exception: if the flush of a
//!   durable write fails, the write itself is executed;
//! - any thread may set and clear faults at any time; an operation uses the faults that are set
//!   when it is first polled.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_block::IoBuf;

use crate::device::{
    Device, DeviceError, DeviceOp, DeviceStats, Durability, Geometry, IoFuture, ReadFuture,
};

/// Faults of a [`FaultDevice`]: the operations that fail, and a delay for every operation.
#[derive(Debug, Default)]
pub struct Faults {
    failing: Mutex<Vec<(DeviceOp, Range<u64>)>>,
    /// Kind of operations that fail once this number of them has passed.
    limited: Mutex<Option<(DeviceOp, u64)>>,
    delay_us: AtomicU64,
    frozen: AtomicBool,
    frozen_op: Mutex<Option<DeviceOp>>,
    thawed: Notify,
    injected_count: AtomicU64,
}

impl Faults {
    /// Makes every later operation of the kind `op` fail with EIO.
    pub fn fail(&self, op: DeviceOp) {
        self.fail_in(op, 0..u64::MAX);
    }

    /// Makes every later operation of the kind `op` that overlaps `bytes` of the disk fail with
    /// EIO. A flush overlaps every range.
    pub fn fail_in(&self, op: DeviceOp, bytes: Range<u64>) {
        self.failing.lock().push((op, bytes));
    }

    /// Makes the operations of the kind `op` fail with EIO after the next `passing` ones.
    pub fn fail_after(&self, op: DeviceOp, passing: u64) {
        *self.limited.lock() = Some((op, passing));
    }

    /// Makes every operation wait for `delay` before it starts. This needs a runtime with timers.
    pub fn delay(&self, delay: Duration) {
        self.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    /// Makes the disk unresponsive: no operation that starts from now on completes.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Release);
    }

    /// Makes the disk unresponsive to operations of the kind `op`: no such operation that starts
    /// from now on completes. Replaces the kind that an earlier call set.
    pub fn freeze_op(&self, op: DeviceOp) {
        *self.frozen_op.lock() = Some(op);
    }

    /// Removes all faults and the delay. Operations that waited because of a fault resume.
    pub fn clear(&self) {
        self.failing.lock().clear();
        *self.limited.lock() = None;
        self.frozen.store(false, Ordering::Release);
        *self.frozen_op.lock() = None;
        self.thawed.notify_waiters();
        self.delay(Duration::ZERO);
    }

    /// Number of operations that failed because of an injected fault.
    pub fn injected_count(&self) -> u64 {
        self.injected_count.load(Ordering::Relaxed)
    }

    fn hits(&self, op: DeviceOp, bytes: &Range<u64>) -> bool {
        let hit = self.failing.lock().iter().any(|(failing, range)| {
            *failing == op && range.start < bytes.end && bytes.start < range.end
        });
        let hit = hit | self.is_beyond_limit(op);
        self.injected_count.fetch_add(u64::from(hit), Ordering::Relaxed);
        hit
    }

    fn is_beyond_limit(&self, op: DeviceOp) -> bool {
        match &mut *self.limited.lock() {
            Some((limited, left)) if *limited == op => {
                let is_beyond = *left == 0;
                *left = left.saturating_sub(1);
                is_beyond
            }
            _ => false,
        }
    }

    fn is_frozen(&self, op: DeviceOp) -> bool {
        self.frozen.load(Ordering::Acquire) || *self.frozen_op.lock() == Some(op)
    }

    async fn wait(&self, op: DeviceOp) {
        loop {
            let mut thawed = std::pin::pin!(self.thawed.notified());
            thawed.as_mut().enable();
            if !self.is_frozen(op) {
                break;
            }
            thawed.await;
        }
        let delay_us = self.delay_us.load(Ordering::Relaxed);
        if delay_us > 0 {
            compio::time::sleep(Duration::from_micros(delay_us)).await;
        }
    }
}

/// A disk that injects faults and forwards all other operations to an underlying disk.
pub struct FaultDevice {
    behind: Arc<dyn Device>,
    faults: Arc<Faults>,
}

impl FaultDevice {
    /// Creates a disk that forwards operations to `behind`, unless one of the `faults` applies.
    pub fn new(behind: Arc<dyn Device>, faults: Arc<Faults>) -> Self {
        Self { behind, faults }
    }

    async fn before(&self, op: DeviceOp, bytes: Range<u64>) -> Result<(), DeviceError> {
        self.faults.wait(op).await;
        self.pass(op, bytes)
    }

    fn pass(&self, op: DeviceOp, bytes: Range<u64>) -> Result<(), DeviceError> {
        if !self.faults.hits(op, &bytes) {
            return Ok(());
        }
        let source = io::Error::from(rustix::io::Errno::IO);
        let offset = if op == DeviceOp::Flush { 0 } else { bytes.start };
        Err(DeviceError { path: self.behind.path().to_owned(), op, offset, source })
    }
}

fn extent(offset: u64, len_bytes: u64) -> Range<u64> {
    offset..offset.saturating_add(len_bytes)
}

const WHOLE_DISK: Range<u64> = 0..u64::MAX;

impl Device for FaultDevice {
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

    fn read_at(&self, offset: u64, buf: IoBuf) -> ReadFuture<'_> {
        Box::pin(async move {
            match self.before(DeviceOp::Read, extent(offset, buf.len() as u64)).await {
                Ok(()) => self.behind.read_at(offset, buf).await,
                Err(error) => (Err(error), buf),
            }
        })
    }

    fn write_at(
        &self,
        offset: u64,
        data: Arc<IoBuf>,
        range: Range<usize>,
        durability: Durability,
    ) -> IoFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.before(DeviceOp::Write, extent(offset, range.len() as u64)).await?;
            let flush = match durability {
                Durability::Cached => Ok(()),
                Durability::Durable => self.pass(DeviceOp::Flush, WHOLE_DISK),
            };
            let durability = if flush.is_ok() { durability } else { Durability::Cached };
            self.behind.write_at(offset, data, range, durability).await?;
            flush
        })
    }

    fn flush(&self) -> IoFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.before(DeviceOp::Flush, WHOLE_DISK).await?;
            self.behind.flush().await
        })
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> IoFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.before(DeviceOp::Discard, extent(offset, len_bytes)).await?;
            self.behind.discard(offset, len_bytes).await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use weir_base::ErrorKind;

    use super::*;
    use crate::backend::new_runtime;
    use crate::memory::MemoryDevice;

    fn disk() -> (FaultDevice, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        let behind = Arc::new(MemoryDevice::new("disk", 1 << 16));
        (FaultDevice::new(behind, Arc::clone(&faults)), faults)
    }

    async fn write(disk: &FaultDevice, offset: u64, fill: u8) -> Result<(), DeviceError> {
        let mut data = IoBuf::zeroed(4096);
        data.fill(fill);
        disk.write_at(offset, Arc::new(data), 0..4096, Durability::Durable).await
    }

    async fn read(disk: &FaultDevice, offset: u64) -> Result<u8, DeviceError> {
        let (result, buf) = disk.read_at(offset, IoBuf::zeroed(4096)).await;
        result.map(|()| buf[0])
    }

    #[test]
    fn only_matching_operations_fail() {
        new_runtime().unwrap().block_on(async {
            let (disk, faults) = disk();
            write(&disk, 0, 1).await.unwrap();
            faults.fail_in(DeviceOp::Read, 4096..8192);
            assert_eq!(read(&disk, 0).await.unwrap(), 1);
            let error = read(&disk, 4096).await.unwrap_err();
            assert_eq!((error.op, error.offset), (DeviceOp::Read, 4096));
            assert_eq!(error.source.raw_os_error(), Some(5));
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            write(&disk, 4096, 2).await.unwrap();

            faults.fail(DeviceOp::Write);
            assert_eq!(write(&disk, 0, 9).await.unwrap_err().op, DeviceOp::Write);
            assert_eq!(read(&disk, 0).await.unwrap(), 1, "a failed write changed the disk");
            assert_eq!(faults.injected_count(), 2);

            faults.clear();
            assert_eq!(read(&disk, 4096).await.unwrap(), 2);
        });
    }

    #[test]
    fn failed_flush_fails_durable_writes_too() {
        new_runtime().unwrap().block_on(async {
            let (disk, faults) = disk();
            faults.fail(DeviceOp::Flush);
            assert_eq!(disk.flush().await.unwrap_err().op, DeviceOp::Flush);
            assert_eq!(write(&disk, 0, 3).await.unwrap_err().op, DeviceOp::Flush);
            assert_eq!(read(&disk, 0).await.unwrap(), 3, "the write itself was done");
        });
    }

    #[test]
    fn delay_applies_to_each_operation() {
        new_runtime().unwrap().block_on(async {
            let (disk, faults) = disk();
            faults.delay(Duration::from_millis(20));
            let start = Instant::now();
            read(&disk, 0).await.unwrap();
            assert!(start.elapsed() >= Duration::from_millis(20));
        });
    }
}
