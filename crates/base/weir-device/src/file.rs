//! Real disks: files and block devices.
//!
//! `open` checks a disk; `submit` executes the kernel operations.
//!
//! Invariants:
//! - several threads may use a disk concurrently, each with its own runtime;
//! - no read or write exceeds the length that the disk had when it was opened, and no write extends
//!   a file that was truncated after the open;
//! - a durable write uses a descriptor with `O_DSYNC`. The kernel then chooses the fastest method:
//!   FUA if the disk supports it, or else a flush after the write. The fallback, a write and a
//!   separate `fdatasync`, takes twice as long.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, fallocate};
use weir_block::IoBuf;

use crate::device::{
    Device, DeviceError, DeviceOp, DeviceStats, Durability, Geometry, IoFuture, ReadFuture,
};
use crate::open::{DurableDisk, OpenDisk, OpenMode};
use crate::submit;

/// A file or block device used as a disk.
///
/// Its futures need a runtime on the thread that awaits them ([`crate::new_runtime`]).
#[derive(Debug)]
pub struct FileDevice {
    name: String,
    disk: Arc<OpenDisk>,
    stats: DeviceStats,
    /// True once the disk has refused a discard as unsupported, so that later discards skip the
    /// disk.
    discard_refused: AtomicBool,
}

impl FileDevice {
    /// Opens a disk. Blocks the thread: if another process holds the lock of the disk, retries for
    /// up to 2 s.
    ///
    /// # Errors
    /// The path is missing, is a directory, is neither a file nor a block device, is not permitted,
    /// is read-only (for `ReadWrite`), is in use by this or another process, or is smaller than
    /// `len_bytes_min`. The disk is unchanged.
    pub fn open(path: &Path, mode: OpenMode, len_bytes_min: u64) -> Result<Self, DeviceError> {
        Self::open_at(path, path, mode, len_bytes_min)
    }

    /// Like [`Self::open`], for a disk that the caller has already found. `place` is a path to this
    /// disk, such as the `/proc/self/fd` name of a descriptor; `path` is the disk's name in
    /// messages.
    pub fn open_at(
        place: &Path,
        path: &Path,
        mode: OpenMode,
        len_bytes_min: u64,
    ) -> Result<Self, DeviceError> {
        let name = path.to_string_lossy().into_owned();
        match OpenDisk::open(place, &name, mode, len_bytes_min) {
            Ok(disk) => Ok(Self {
                name,
                disk: Arc::new(disk),
                stats: DeviceStats::default(),
                discard_refused: AtomicBool::new(false),
            }),
            Err(source) => Err(DeviceError { path: name, op: DeviceOp::Open, offset: 0, source }),
        }
    }

    /// Creates a sparse file of `len_bytes` bytes. The call blocks the calling thread.
    ///
    /// # Errors
    /// The path exists, its directory is not writable, or the filesystem does not allow files of
    /// this length. After the error, no file remains.
    ///
    /// # Durability
    /// The file and its name are on stable media.
    pub fn create_sparse(path: &Path, len_bytes: u64) -> Result<(), DeviceError> {
        create_sparse(path, len_bytes).map_err(|source| DeviceError {
            path: path.to_string_lossy().into_owned(),
            op: DeviceOp::Open,
            offset: 0,
            source,
        })
    }

    /// True if data bypasses the page cache; false if the filesystem refused direct I/O.
    pub fn is_direct(&self) -> bool {
        self.disk.is_direct
    }

    fn error(&self, op: DeviceOp, offset: u64) -> impl FnOnce(io::Error) -> DeviceError {
        let path = self.name.clone();
        move |source| DeviceError { path, op, offset, source }
    }

    /// Panics unless the range consists of whole sectors. If the range ends beyond the disk,
    /// returns an error instead, because offsets come from labels, which can be damaged.
    fn check(&self, op: DeviceOp, offset: u64, len_bytes: u64) -> Result<(), DeviceError> {
        let Geometry { len_bytes: end, sector_bytes } = self.disk.geometry;
        let sector = u64::from(sector_bytes);
        assert!(
            offset.is_multiple_of(sector) && len_bytes.is_multiple_of(sector),
            "unaligned {op}: {len_bytes} bytes at {offset}"
        );
        if offset.checked_add(len_bytes).is_none_or(|last| last > end) {
            return Err(self.error(op, offset)(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }

    /// Refuses a write beyond the end of a truncated file. Such a write would restore the file's
    /// length and leave a hole of zeros, which no later check could detect.
    fn check_not_truncated(&self, end: u64) -> io::Result<()> {
        if self.disk.is_block_device || self.disk.current_len()? >= end {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file was truncated"))
    }

    async fn sync(&self) -> io::Result<()> {
        self.stats.flushes.fetch_add(1, Ordering::Relaxed);
        submit::sync_data(&self.disk).await
    }
}

impl Device for FileDevice {
    fn path(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.disk.geometry
    }

    fn current_len(&self) -> Option<u64> {
        self.disk.current_len().ok()
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn read_at(&self, offset: u64, buf: IoBuf) -> ReadFuture<'_> {
        Box::pin(async move {
            let len_bytes = buf.len() as u64;
            if let Err(error) = self.check(DeviceOp::Read, offset, len_bytes) {
                return (Err(error), buf);
            }
            self.stats.reads.fetch_add(1, Ordering::Relaxed);
            self.stats.read_bytes.fetch_add(len_bytes, Ordering::Relaxed);
            let (result, buf) = submit::read_full(&self.disk, offset, buf).await;
            (result.map_err(self.error(DeviceOp::Read, offset)), buf)
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
            self.check(DeviceOp::Write, offset, range.len() as u64)?;
            self.check_not_truncated(offset + range.len() as u64)
                .map_err(self.error(DeviceOp::Write, offset))?;
            let sector = self.disk.geometry.sector_bytes as usize;
            assert!(range.start.is_multiple_of(sector), "data starts inside a sector");
            self.stats.writes.fetch_add(1, Ordering::Relaxed);
            self.stats.written_bytes.fetch_add(range.len() as u64, Ordering::Relaxed);
            if durability == Durability::Durable
                && let Some(durable) = DurableDisk::of(&self.disk)
            {
                self.stats.flushes.fetch_add(1, Ordering::Relaxed);
                return submit::write_full(&durable, offset, data, range)
                    .await
                    .map_err(self.error(DeviceOp::Write, offset));
            }
            submit::write_full(&self.disk, offset, data, range)
                .await
                .map_err(self.error(DeviceOp::Write, offset))?;
            match durability {
                Durability::Cached => Ok(()),
                Durability::Durable => {
                    self.sync().await.map_err(self.error(DeviceOp::Flush, offset))
                }
            }
        })
    }

    fn flush(&self) -> IoFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move { self.sync().await.map_err(self.error(DeviceOp::Flush, 0)) })
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> IoFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            self.check(DeviceOp::Discard, offset, len_bytes)?;
            if len_bytes == 0 || self.discard_refused.load(Ordering::Relaxed) {
                return Ok(());
            }
            let disk = Arc::clone(&self.disk);
            let discarded = submit::blocking(move || {
                if disk.is_block_device {
                    discard_sectors(&disk, offset, len_bytes)
                } else {
                    punch_hole(&disk, offset, len_bytes)
                }
            });
            match discarded.await {
                // A discard is only advice, so the error of a disk that does not support discards
                // is ignored.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    self.discard_refused.store(true, Ordering::Relaxed);
                    Ok(())
                }
                other => other.map_err(self.error(DeviceOp::Discard, offset)),
            }
        })
    }
}

fn punch_hole(disk: &OpenDisk, offset: u64, len_bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(disk, flags, offset, len_bytes)?)
}

#[expect(unsafe_code, reason = "an ioctl that rustix has no function for")]
fn discard_sectors(disk: &OpenDisk, offset: u64, len_bytes: u64) -> io::Result<()> {
    /// `BLKDISCARD` of linux/fs.h.
    const OPCODE: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);

    let range = [offset, len_bytes];
    // SAFETY: BLKDISCARD reads two u64, the start and the length in bytes, and writes no memory.
    let discard = unsafe { rustix::ioctl::Setter::<OPCODE, [u64; 2]>::new(range) };
    // SAFETY: BLKDISCARD writes no memory; the descriptor refers to a block device that this
    // process opened for writing.
    Ok(unsafe { rustix::ioctl::ioctl(disk, discard) }?)
}

fn create_sparse(path: &Path, len_bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let filled = file.set_len(len_bytes).and_then(|()| file.sync_all());
    let named = filled.and_then(|()| {
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(parent)?.sync_all()
    });
    if named.is_err()
        && let Err(error) = std::fs::remove_file(path)
    {
        tracing::warn!(path = %path.display(), %error, "an unfinished file could not be removed");
    }
    named
}
