//! The `Device` trait: all that the engine asks of a disk.
//!
//! Not here: which disks there are, and what a failure means for a pool.
//!
//! Invariants:
//! - offsets and lengths are whole sectors of the device ([`Geometry::sector_bytes`]);
//! - operations issued together may be done in any order; only [`Device::flush`] orders;
//! - what is durable: a write whose [`Durability`] is `Durable` when its future returns `Ok`, and
//!   every write that returned `Ok` before a flush was issued once that flush returns `Ok`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use weir_base::ErrorKind;
use weir_block::IoBuf;

use crate::watch::DiskWatch;

/// A device operation under way; not `Send`, it completes on the thread that started it.
pub type IoFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A read under way: gives the buffer back whatever happened.
pub type ReadFuture<'a> = IoFuture<'a, (Result<(), DeviceError>, IoBuf)>;

/// What a disk is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Usable length, a whole number of sectors.
    pub len_bytes: u64,
    /// Smallest unit that can be read or written: 512 or 4096.
    pub sector_bytes: u32,
}

/// What must hold when a write returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The disk may keep it in its volatile cache until the next flush.
    Cached,
    /// On stable media (FUA, or a write followed by a flush where the disk has no FUA).
    Durable,
}

/// Which operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceOp {
    /// Opening, creating or probing.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Flushing the volatile cache.
    Flush,
    /// Discarding (TRIM).
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

/// A disk said no.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {op}{} failed: {source}", At(*.op, *.offset))]
pub struct DeviceError {
    /// The disk, by the path the user gave.
    pub path: String,
    /// What was asked.
    pub op: DeviceOp,
    /// Where on the disk; 0 for open, and for a flush that is no part of a write.
    pub offset: u64,
    /// What the system answered.
    #[source]
    pub source: std::io::Error,
}

/// The place of an operation, where it has one.
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
    /// The kind this folds into at a border.
    pub fn kind(&self) -> ErrorKind {
        match self.source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::Permission,
            std::io::ErrorKind::AlreadyExists => ErrorKind::Exists,
            std::io::ErrorKind::StorageFull
            | std::io::ErrorKind::QuotaExceeded
            | std::io::ErrorKind::FileTooLarge => ErrorKind::NoSpace,
            std::io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            std::io::ErrorKind::ResourceBusy | std::io::ErrorKind::WouldBlock => ErrorKind::Busy,
            std::io::ErrorKind::InvalidInput
            | std::io::ErrorKind::IsADirectory
            | std::io::ErrorKind::NotADirectory
            | std::io::ErrorKind::Unsupported
                if self.op == DeviceOp::Open =>
            {
                ErrorKind::Invalid
            }
            _ => ErrorKind::Unavailable,
        }
    }
}

/// Operations a device was asked for since it was opened; counted by the device itself.
#[derive(Debug, Default)]
pub struct DeviceStats {
    /// Reads issued.
    pub reads: AtomicU64,
    /// Bytes read.
    pub read_bytes: AtomicU64,
    /// Writes issued.
    pub writes: AtomicU64,
    /// Bytes written.
    pub written_bytes: AtomicU64,
    /// Flushes issued, those inside durable writes included.
    pub flushes: AtomicU64,
}

/// One disk, or what behaves like one.
pub trait Device: Send + Sync {
    /// The path or name the user knows it by.
    fn path(&self) -> &str;

    /// Length and sector size; fixed while open.
    fn geometry(&self) -> Geometry;

    /// Length of the disk now, where that can be asked without waiting: a file may be truncated and
    /// a volume shrunk while they are open.
    fn current_len(&self) -> Option<u64> {
        None
    }

    /// Counters since open.
    fn stats(&self) -> &DeviceStats;

    /// What is seen of it in use, if it is watched ([`crate::WatchedDevice`]).
    fn watch(&self) -> Option<&DiskWatch> {
        None
    }

    /// Reads `buf.len()` bytes at `offset` into `buf`; both whole sectors. A short read is an
    /// error.
    fn read_at(&self, offset: u64, buf: IoBuf) -> ReadFuture<'_>;

    /// Writes `data[range]` at `offset`; both whole sectors. The data is shared, so that all legs
    /// of a mirror write from one buffer.
    ///
    /// # Durability
    /// See [`Durability`]. After an error nothing is known about the range.
    fn write_at(
        &self,
        offset: u64,
        data: Arc<IoBuf>,
        range: std::ops::Range<usize>,
        durability: Durability,
    ) -> IoFuture<'_, Result<(), DeviceError>>;

    /// Makes every write that returned before this call durable.
    fn flush(&self) -> IoFuture<'_, Result<(), DeviceError>>;

    /// Tells the disk that a range is unused. A hint: the content afterwards is undefined.
    fn discard(&self, offset: u64, len_bytes: u64) -> IoFuture<'_, Result<(), DeviceError>>;
}
