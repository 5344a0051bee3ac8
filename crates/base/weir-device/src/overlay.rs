//! Overlay: a read-only view of a disk. Writes stay in memory, on top of the unchanged disk.
//!
//! The offline tools open disks through overlays.
//!
//! An import replays the log of a pool and commits. On overlays the engine can do both, and show
//! the data that a client would see, without changing a byte on the disks.
//!
//! Invariants:
//! - the underlying disk is never written, flushed or discarded;
//! - until [`Overlay::freeze`], a read returns the bytes of every write that completed before the
//!   read, and the content of the disk where nothing was written;
//! - no write is durable, whatever durability the caller requested.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use weir_block::IoBuf;

use crate::device::{Device, DeviceError, DeviceStats, Durability, Geometry, IoFuture, ReadFuture};

/// Overlay of a disk; see the module documentation.
pub struct Overlay {
    disk: Arc<dyn Device>,
    sector_bytes: usize,
    /// Sectors that were written, by sector number.
    written: Mutex<HashMap<u64, Box<[u8]>>>,
    frozen: AtomicBool,
    stats: DeviceStats,
}

impl Overlay {
    /// Creates an empty overlay on a disk.
    pub fn new(disk: Arc<dyn Device>) -> Self {
        let sector_bytes = disk.geometry().sector_bytes as usize;
        let (written, frozen) = (Mutex::default(), AtomicBool::new(false));
        Self { disk, sector_bytes, written, frozen, stats: DeviceStats::default() }
    }

    /// Discards all later writes, although they return success. So memory use no longer grows, and
    /// no repair changes damaged data.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Release);
    }

    /// Number of bytes that the overlay holds in memory.
    pub fn written_bytes(&self) -> usize {
        self.written.lock().len() * self.sector_bytes
    }

    fn first_sector(&self, offset: u64, len: usize) -> u64 {
        let sector = self.sector_bytes as u64;
        assert!(
            offset.is_multiple_of(sector) && (len as u64).is_multiple_of(sector),
            "disks are used in whole sectors"
        );
        offset / sector
    }
}

impl Device for Overlay {
    fn path(&self) -> &str {
        self.disk.path()
    }

    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn read_at(&self, offset: u64, buf: IoBuf) -> ReadFuture<'_> {
        self.stats.reads.fetch_add(1, Ordering::Relaxed);
        self.stats.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        Box::pin(async move {
            let (done, mut buf) = self.disk.read_at(offset, buf).await;
            let first = self.first_sector(offset, buf.len());
            let written = self.written.lock();
            let mut missing = 0;
            for (number, sector) in (first..).zip(buf.chunks_mut(self.sector_bytes)) {
                match written.get(&number) {
                    Some(content) => sector.copy_from_slice(content),
                    None => missing += 1,
                }
            }
            // A read error does not matter if all sectors of the read were written in the meantime.
            (if missing == 0 { Ok(()) } else { done }, buf)
        })
    }

    fn write_at(
        &self,
        offset: u64,
        data: Arc<IoBuf>,
        range: Range<usize>,
        _durability: Durability,
    ) -> IoFuture<'_, Result<(), DeviceError>> {
        self.stats.writes.fetch_add(1, Ordering::Relaxed);
        self.stats.written_bytes.fetch_add(range.len() as u64, Ordering::Relaxed);
        Box::pin(async move {
            let first = self.first_sector(offset, range.len());
            if !self.frozen.load(Ordering::Acquire) {
                let sectors = data[range].chunks(self.sector_bytes).map(Box::from);
                self.written.lock().extend((first..).zip(sectors));
            }
            Ok(())
        })
    }

    fn flush(&self) -> IoFuture<'_, Result<(), DeviceError>> {
        self.stats.flushes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    }

    fn discard(&self, _offset: u64, _len_bytes: u64) -> IoFuture<'_, Result<(), DeviceError>> {
        Box::pin(async { Ok(()) })
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::memory::MemoryDevice;

    /// Returns the result of a future of a memory device, which completes at its first poll.
    fn now<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => done,
            Poll::Pending => panic!("a memory disk waits for nobody"),
        }
    }

    fn read(disk: &dyn Device, offset: u64, len: usize) -> Vec<u8> {
        let (done, buf) = now(disk.read_at(offset, IoBuf::zeroed(len)));
        done.unwrap();
        buf.to_vec()
    }

    fn write(disk: &dyn Device, offset: u64, bytes: &[u8]) {
        let mut buf = IoBuf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        now(disk.write_at(offset, Arc::new(buf), 0..bytes.len(), Durability::Durable)).unwrap();
    }

    #[test]
    fn reads_return_writes_and_the_disk_is_unchanged() {
        let disk = Arc::new(MemoryDevice::new("d", 8192));
        write(&*disk, 0, &[1; 8192]);
        let overlay = Overlay::new(Arc::clone(&disk) as Arc<dyn Device>);
        write(&overlay, 512, &[2; 1024]);
        write(&overlay, 1024, &[3; 512]);
        now(overlay.flush()).unwrap();
        now(overlay.discard(0, 8192)).unwrap();
        let expected = [vec![1; 512], vec![2; 512], vec![3; 512], vec![1; 512]].concat();
        assert_eq!(read(&overlay, 0, 2048), expected);
        assert_eq!(overlay.written_bytes(), 1024);
        overlay.freeze();
        write(&overlay, 0, &[4; 2048]);
        assert_eq!(read(&overlay, 0, 2048), expected);
        assert_eq!(overlay.written_bytes(), 1024);
        assert_eq!(read(&*disk, 0, 8192), [1; 8192]);
    }
}
