//! Monitored disk: counts and times every operation, and fails all operations once the pool stops
//! I/O to the disk.
//!
//! The statistics are in [`DiskWatch`].
//!
//! Invariants:
//! - the monitor passes on the results of the underlying disk unchanged;
//! - an operation that is abandoned because the pool stopped I/O returns an error, never success.
//!   The disk may still execute the operation, so its effect is unknown.

use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use weir_base::Clock;
use weir_block::IoBuf;

use crate::device::{
    Device, DeviceError, DeviceOp, DeviceStats, Durability, Geometry, IoFuture, ReadFuture,
};
use crate::watch::{DiskOp, DiskWatch};

/// A disk with a monitor of its operations.
pub struct WatchedDevice {
    behind: Arc<dyn Device>,
    watch: DiskWatch,
}

impl WatchedDevice {
    /// Monitors `behind`; `clock` supplies the times.
    pub fn new(behind: Arc<dyn Device>, clock: Arc<dyn Clock>) -> Self {
        Self { behind, watch: DiskWatch::new(clock) }
    }

    fn gone(&self, op: DeviceOp, offset: u64) -> DeviceError {
        let why = "the disk is unresponsive; I/O to it was stopped";
        let source = io::Error::new(io::ErrorKind::TimedOut, why);
        DeviceError { path: self.behind.path().to_owned(), op, offset, source }
    }

    /// Returns the result of an operation, or `None` as soon as the pool stops I/O to the disk.
    async fn answer<T>(&self, operation: impl Future<Output = T>) -> Option<T> {
        if self.watch.is_io_failed() {
            return None;
        }
        match select(pin!(operation), pin!(self.watch.until_io_failed())).await {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        }
    }

    async fn timed(
        &self,
        kind: DiskOp,
        bytes: u64,
        gone: DeviceError,
        operation: impl Future<Output = Result<(), DeviceError>>,
    ) -> Result<(), DeviceError> {
        let begun = self.watch.begin(kind);
        let done = self.answer(operation).await.unwrap_or(Err(gone));
        begun.end(done.is_ok().then_some(bytes));
        done
    }
}

impl Device for WatchedDevice {
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
        Some(&self.watch)
    }

    fn read_at(&self, offset: u64, buf: IoBuf) -> ReadFuture<'_> {
        Box::pin(async move {
            let len = buf.len();
            let begun = self.watch.begin(DiskOp::Read);
            let answer = self.answer(self.behind.read_at(offset, buf)).await;
            let (done, buf) = answer.unwrap_or_else(|| {
                // The kernel may still write into the original buffer, so return another buffer.
                (Err(self.gone(DeviceOp::Read, offset)), IoBuf::zeroed(len))
            });
            begun.end(done.is_ok().then_some(len as u64));
            (done, buf)
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
            let kind = match durability {
                Durability::Cached => DiskOp::Write,
                Durability::Durable => DiskOp::SyncWrite,
            };
            let (bytes, gone) = (range.len() as u64, self.gone(DeviceOp::Write, offset));
            let write = self.behind.write_at(offset, data, range, durability);
            self.timed(kind, bytes, gone, write).await
        })
    }

    fn flush(&self) -> IoFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            let gone = self.gone(DeviceOp::Flush, 0);
            self.timed(DiskOp::Flush, 0, gone, self.behind.flush()).await
        })
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> IoFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            let done = self.answer(self.behind.discard(offset, len_bytes)).await;
            done.unwrap_or_else(|| Err(self.gone(DeviceOp::Discard, offset)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use weir_base::SystemClock;

    use super::*;
    use crate::backend::new_runtime;
    use crate::fault::{FaultDevice, Faults};
    use crate::memory::MemoryDevice;

    fn disk() -> (Arc<WatchedDevice>, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        let behind = Arc::new(MemoryDevice::new("disk", 1 << 16));
        let faulty = Arc::new(FaultDevice::new(behind, Arc::clone(&faults)));
        (Arc::new(WatchedDevice::new(faulty, Arc::new(SystemClock::default()))), faults)
    }

    async fn write(disk: &WatchedDevice, durability: Durability) -> Result<(), DeviceError> {
        disk.write_at(0, Arc::new(IoBuf::zeroed(4096)), 0..4096, durability).await
    }

    #[test]
    fn each_kind_of_operation_is_counted_and_timed_separately() {
        new_runtime().unwrap().block_on(async {
            let (disk, faults) = disk();
            write(&disk, Durability::Cached).await.unwrap();
            faults.delay(Duration::from_millis(20));
            write(&disk, Durability::Durable).await.unwrap();
            faults.clear();
            faults.fail(DeviceOp::Flush);
            disk.flush().await.unwrap_err();
            let (done, _) = disk.read_at(0, IoBuf::zeroed(8192)).await;
            done.unwrap();

            let seen = disk.watch().unwrap().figures();
            let counts = DiskOp::ALL.map(|op| (seen.of(op).count, seen.of(op).bytes));
            assert_eq!(counts, [(1, 8192), (1, 4096), (1, 4096), (1, 0)]);
            assert_eq!(seen.of(DiskOp::Flush).errors, 1);
            let slow = seen.of(DiskOp::SyncWrite);
            assert!(slow.p50_us >= 18_000 && slow.max_us >= slow.p50_us, "{slow:?}");
            assert!(slow.total_us >= 20_000 && slow.recent_us >= 20_000, "{slow:?}");
            assert!(seen.of(DiskOp::Write).p99_us < 18_000, "{seen:?}");
            assert_eq!((seen.in_flight, seen.silent), (0, None));
        });
    }

    #[test]
    fn stopping_io_fails_operations_of_an_unresponsive_disk() {
        new_runtime().unwrap().block_on(async {
            let (disk, faults) = disk();
            faults.freeze();
            let held = Arc::clone(&disk);
            let reading = compio::runtime::spawn(async move {
                held.read_at(0, IoBuf::zeroed(4096)).await.0.unwrap_err()
            });
            compio::time::sleep(Duration::from_millis(50)).await;
            let seen = disk.watch().unwrap().figures();
            assert_eq!(seen.in_flight, 1);
            assert!(seen.silent.unwrap() >= Duration::from_millis(40), "{seen:?}");

            let start = Instant::now();
            disk.watch().unwrap().fail_io();
            let error = reading.await.unwrap();
            assert_eq!(error.kind(), weir_base::ErrorKind::Unavailable);
            assert!(error.to_string().contains("unresponsive"), "{error}");
            write(&disk, Durability::Durable).await.unwrap_err();
            assert!(start.elapsed() < Duration::from_secs(1));
            assert_eq!(disk.watch().unwrap().silent(), None);
        });
    }

    #[test]
    fn frozen_disk_resumes_after_the_fault_is_cleared() {
        new_runtime().unwrap().block_on(async {
            let (disk, faults) = disk();
            faults.freeze();
            let held = Arc::clone(&disk);
            let flush = compio::runtime::spawn(async move { held.flush().await });
            compio::time::sleep(Duration::from_millis(20)).await;
            assert!(disk.watch().unwrap().silent().is_some());
            faults.clear();
            flush.await.unwrap().unwrap();
            assert_eq!(disk.watch().unwrap().silent(), None);
        });
    }
}
