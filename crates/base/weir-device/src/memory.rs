//! Disk in memory, for unit tests of the layers above disks.
//!
//! The simulated disk of weir-sim has faults and crashes.
//!
//! Invariant: every write is durable at once, and every operation completes at its first poll.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use weir_block::IoBuf;

use crate::device::{
    Device, DeviceError, DeviceOp, DeviceStats, Durability, Geometry, IoFuture, ReadFuture,
};

/// A disk whose content is a byte vector.
pub struct MemoryDevice {
    path: String,
    content: Mutex<Vec<u8>>,
    stats: DeviceStats,
}

impl MemoryDevice {
    const SECTOR_BYTES: u32 = 512;

    /// Creates a disk of `len_bytes` zeros.
    pub fn new(path: impl Into<String>, len_bytes: usize) -> Self {
        Self {
            path: path.into(),
            content: Mutex::new(vec![0; len_bytes]),
            stats: DeviceStats::default(),
        }
    }

    /// Returns a copy of all bytes.
    pub fn content(&self) -> Vec<u8> {
        self.content.lock().clone()
    }

    /// Changes bytes without the knowledge of the engine, like bit rot.
    pub fn corrupt(&self, range: Range<usize>, change: impl Fn(&mut u8)) {
        self.content.lock()[range].iter_mut().for_each(change);
    }

    fn check(&self, op: DeviceOp, offset: u64, len: usize) -> Result<Range<usize>, DeviceError> {
        let range = offset as usize..offset as usize + len;
        if range.end > self.content.lock().len() {
            let source = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            return Err(DeviceError { path: self.path.clone(), op, offset, source });
        }
        let sector = u64::from(Self::SECTOR_BYTES);
        assert!(
            offset.is_multiple_of(sector) && (len as u64).is_multiple_of(sector),
            "unaligned {op}"
        );
        Ok(range)
    }
}

impl Device for MemoryDevice {
    fn path(&self) -> &str {
        &self.path
    }

    fn geometry(&self) -> Geometry {
        Geometry { len_bytes: self.content.lock().len() as u64, sector_bytes: Self::SECTOR_BYTES }
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn read_at(&self, offset: u64, mut buf: IoBuf) -> ReadFuture<'_> {
        self.stats.reads.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let done = self
                .check(DeviceOp::Read, offset, buf.len())
                .map(|range| buf.copy_from_slice(&self.content.lock()[range]));
            (done, buf)
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
            let to = self.check(DeviceOp::Write, offset, range.len())?;
            self.content.lock()[to].copy_from_slice(&data[range]);
            Ok(())
        })
    }

    fn flush(&self) -> IoFuture<'_, Result<(), DeviceError>> {
        self.stats.flushes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> IoFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            let range = self.check(DeviceOp::Discard, offset, len_bytes as usize)?;
            self.content.lock()[range].fill(0);
            Ok(())
        })
    }
}
