//! `Device` trait: the operations of a disk that the engine uses.
//!
//! The implementations are in other modules; weir-pool handles failures of disks.
//!
//! Invariants:
//! - offsets and lengths are whole sectors of the device ([`Geometry::sector_bytes`]);
//! - concurrent operations may complete in any order; only [`Device::flush`] is a barrier;
//! - a write with [`Durability::Durable`] is durable when its future returns `Ok`. Every write that
//!   returned `Ok` before a flush was issued is durable when this flush returns `Ok`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use weir_base::ErrorKind;
use weir_block::IoBuf;

use crate::watch::DiskWatch;

/// A device operation in progress. It is not `Send`, because it completes on the thread that
/// started it.
pub type IoFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A read in progress. Its result includes the buffer, also after an error.
pub type ReadFuture<'a> = IoFuture<'a, (Result<(), DeviceError>, IoBuf)>;

/// Length and sector size of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Usable length in bytes, a multiple of the sector size.
    pub len_bytes: u64,
    /// Smallest unit of reads and writes: 512 or 4096 bytes.
    pub sector_bytes: u32,
}

/// Durability that a write must have when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The disk may keep the data in its volatile cache until the next flush.
    Cached,
    /// The data is on stable media (FUA, or a write and a flush if the disk has no FUA).
    Durable,
}

/// Operation of a disk that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceOp {
    /// Opening, creating or probing the disk.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Flushing the volatile cache.
    Flush,
    /// Discarding a range (TRIM).
    Discard,
}

impl std::fmt::Display for DeviceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
        })
    }
}

/// Error of a disk operation.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {op}{} failed: {source}", At(*.op, *.offset))]
pub struct DeviceError {
    /// Path of the disk, as the user wrote it.
    pub path: String,
    /// Operation that failed.
    pub op: DeviceOp,
    /// Byte offset of the operation; 0 for an open, and for a flush that is not part of a write.
    pub offset: u64,
    /// Error that the operating system returned.
    #[source]
    pub source: std::io::Error,
}

/// Formats the offset of an operation, if the operation has one.
struct At(DeviceOp, u64);

impl std::fmt::Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            DeviceOp::Open | DeviceOp::Flush => Ok(()),
            DeviceOp::Read | DeviceOp::Write | DeviceOp::Discard => {
                write!(f, " at byte {}", self.1)
            }
        }
    }
}

impl DeviceError {
    /// Maps the error to an [`ErrorKind`], for callers outside the engine.
    pub fn kind(&self) -> ErrorKind {
        let is_open = self.op == DeviceOp::Open;
        match (self.source.kind(), ErrorKind::of_file(self.source.kind())) {
            (std::io::ErrorKind::Unsupported, _) if is_open => ErrorKind::Invalid,
            // An invalid operation on an open disk is a fault of the disk.
            (_, ErrorKind::Invalid) if !is_open => ErrorKind::Unavailable,
            (_, kind) => kind,
        }
    }
}

/// Counters of operations since the disk was opened. The disk itself updates the counters.
#[derive(Debug, Default)]
pub struct DeviceStats {
    /// Number of reads that were issued.
    pub reads: AtomicU64,
    /// Number of bytes that reads returned.
    pub read_bytes: AtomicU64,
    /// Number of writes that were issued.
    pub writes: AtomicU64,
    /// Number of bytes that were written.
    pub written_bytes: AtomicU64,
    /// Number of flushes that were issued, including the flushes inside durable writes.
    pub flushes: AtomicU64,
}

/// A disk, or an object that behaves like a disk.
pub trait Device: Send + Sync {
    /// Path or name by which the user knows the disk.
    fn path(&self) -> &str;

    /// Length and sector size of the disk; constant while the disk is open.
    fn geometry(&self) -> Geometry;

    /// Present length of the disk, if it is available without waiting. The length can change while
    /// the disk is open: a file may be truncated, and a logical volume shrunk.
    fn current_len(&self) -> Option<u64> {
        None
    }

    /// Counters of operations since the disk was opened.
    fn stats(&self) -> &DeviceStats;

    /// Latency statistics of the disk; `None` unless a [`crate::WatchedDevice`] monitors the disk.
    fn watch(&self) -> Option<&DiskWatch> {
        None
    }

    /// Reads `buf.len()` bytes at `offset` into `buf`; offset and length are whole sectors. A short
    /// read is an error.
    fn read_at(&self, offset: u64, buf: IoBuf) -> ReadFuture<'_>;

    /// Writes `data[range]` at `offset`; offset and length are whole sectors. The caller shares the
    /// data, so that all legs of a mirror write from one buffer.
    ///
    /// # Durability
    /// See [`Durability`]. After an error, the content of the written range is undefined.
    fn write_at(
        &self,
        offset: u64,
        data: Arc<IoBuf>,
        range: std::ops::Range<usize>,
        durability: Durability,
    ) -> IoFuture<'_, Result<(), DeviceError>>;

    /// Makes every write durable that returned `Ok` before this call.
    fn flush(&self) -> IoFuture<'_, Result<(), DeviceError>>;

    /// Tells the disk that a range is unused. Afterwards the content of the range is undefined. The
    /// disk may ignore the call.
    fn discard(&self, offset: u64, len_bytes: u64) -> IoFuture<'_, Result<(), DeviceError>>;
}
