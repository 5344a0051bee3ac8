//! Opens a disk, after every check that is possible before the first read or write.
//!
//! `probe` and weir-format check the content of the disk; `file` does the I/O.
//!
//! Invariants:
//! - a refusal contains the path and the reason, and leaves the disk unchanged;
//! - a disk is open for writing only once: the table of open disks ensures this within the process,
//!   `flock` between processes, and `O_EXCL` on block devices against mounts and other storage
//!   software;
//! - a loop device is locked together with the file behind it;
//! - the lock and the table entry live until the last operation in flight has completed, because
//!   they belong to the open disk, which each operation shares.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, FlockOperation, OFlags, StatxFlags, flock, ioctl_blkpbszget, ioctl_blksszget, statx,
};
use weir_base::file_behind;
use weir_base::size::Human;
use weir_block::IoBuf;

use crate::device::DeviceError;
use crate::device::Geometry;

/// Access mode of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Exclusive access for reads and writes.
    ReadWrite,
    /// Shared access for reads. A block device may be in use by another process.
    ReadOnly,
}

/// Reason for a refusal that does not come from the operating system.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("is a directory; name a file or a block device")]
    Directory,
    #[error("is neither a file nor a block device")]
    NotADisk,
    #[error("is read-only; make it writable, or name another disk")]
    ReadOnly,
    #[error("is in use by another process")]
    InUse,
    #[error("is in use: mounted, or held by other storage software")]
    Held,
    #[error("is already open here as {0}")]
    OpenHere(String),
    #[error("has {}, at least {} are needed", Human(*.len_bytes), Human(*.len_bytes_min))]
    TooSmall { len_bytes: u64, len_bytes_min: u64 },
    #[error("has sectors of {0} bytes; 512 to 4096 are supported")]
    Sectors(u32),
}

impl DeviceError {
    /// If the error is that this process already has the disk open, returns the path of that open
    /// disk.
    pub fn opened_as(&self) -> Option<&str> {
        match self.source.get_ref()?.downcast_ref()? {
            Refusal::OpenHere(path) => Some(path),
            _ => None,
        }
    }
}

fn refuse(kind: ErrorKind, why: Refusal) -> io::Error {
    io::Error::new(kind, why)
}

/// Identity of an inode or block device; all paths of one disk have the same identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    File { filesystem: u64, inode: u64 },
    Block { number: u64 },
}

impl Identity {
    fn of(metadata: &Metadata) -> io::Result<Self> {
        let kind = metadata.file_type();
        if kind.is_file() {
            Ok(Self::File { filesystem: metadata.dev(), inode: metadata.ino() })
        } else if kind.is_block_device() {
            Ok(Self::Block { number: metadata.rdev() })
        } else if kind.is_dir() {
            Err(refuse(ErrorKind::IsADirectory, Refusal::Directory))
        } else {
            Err(refuse(ErrorKind::InvalidInput, Refusal::NotADisk))
        }
    }
}

/// Disk in the table of disks that this process has open.
struct Entry {
    identity: Identity,
    mode: OpenMode,
    name: String,
}

static OPEN: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Entry of a disk in the table of open disks; dropping this value removes the entry.
#[derive(Debug)]
struct Claim {
    identity: Identity,
    mode: OpenMode,
}

impl Claim {
    fn take(identity: Identity, mode: OpenMode, name: &str) -> io::Result<Self> {
        let mut open = OPEN.lock();
        let clash = open.iter().find(|entry| {
            entry.identity == identity
                && (entry.mode == OpenMode::ReadWrite || mode == OpenMode::ReadWrite)
        });
        if let Some(entry) = clash {
            return Err(refuse(ErrorKind::ResourceBusy, Refusal::OpenHere(entry.name.clone())));
        }
        open.push(Entry { identity, mode, name: name.to_owned() });
        Ok(Self { identity, mode })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut open = OPEN.lock();
        let mine = |entry: &Entry| entry.identity == self.identity && entry.mode == self.mode;
        let index = open.iter().position(mine).expect("a claim has its entry");
        open.swap_remove(index);
    }
}

/// A disk that was checked, opened and locked.
#[derive(Debug)]
pub(crate) struct OpenDisk {
    // Rust drops the fields in this order: the file is closed before `_claim` removes the disk from
    // the table of open disks.
    file: File,
    /// The same disk opened with `O_DSYNC`, for durable writes; `None` if data passes through the
    /// page cache.
    durable: Option<File>,
    /// File behind a loop device. It is locked like the disk itself.
    _behind: Option<(File, Claim)>,
    _claim: Claim,
    pub(crate) geometry: Geometry,
    pub(crate) is_block_device: bool,
    /// False if the filesystem refused direct I/O, so that data passes through the page cache.
    pub(crate) is_direct: bool,
}

impl OpenDisk {
    /// Present length of the disk. Asks the kernel, without I/O to the disk.
    ///
    /// The request excludes the times of the file. After a request for them, Linux 6.13 and newer
    /// store the exact time of the next write, and a durable write may store the inode, too.
    pub(crate) fn current_len(&self) -> io::Result<u64> {
        if self.is_block_device {
            return (&self.file).seek(SeekFrom::End(0));
        }
        Ok(statx(&self.file, c"", AtFlags::EMPTY_PATH, StatxFlags::SIZE)?.stx_size)
    }
}

impl AsFd for OpenDisk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A disk whose writes go through its `O_DSYNC` descriptor.
pub(crate) struct DurableDisk(Arc<OpenDisk>);

impl DurableDisk {
    /// Returns `None` if the disk has no `O_DSYNC` descriptor.
    pub(crate) fn of(disk: &Arc<OpenDisk>) -> Option<Arc<Self>> {
        disk.durable.as_ref().map(|_| Arc::new(Self(Arc::clone(disk))))
    }
}

impl AsFd for DurableDisk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.durable.as_ref().expect("`of` checked the descriptor").as_fd()
    }
}

impl OpenDisk {
    /// Opens `path`; messages contain `name`. May block for 2 s if another process holds the lock
    /// of the disk.
    pub(crate) fn open(
        path: &Path,
        name: &str,
        mode: OpenMode,
        len_bytes_min: u64,
    ) -> io::Result<Self> {
        let found = Found::at(path)?;
        let (metadata, identity) = (&found.metadata, found.identity);
        let is_block_device = matches!(identity, Identity::Block { .. });
        if mode == OpenMode::ReadWrite && is_read_only(metadata, identity) {
            return Err(refuse(ErrorKind::ReadOnlyFilesystem, Refusal::ReadOnly));
        }
        let claim = Claim::take(identity, mode, name)?;
        let (file, is_direct) = open_direct(&found.path(), mode, is_block_device)?;
        lock(&file, mode, is_block_device)?;
        let behind = match identity {
            Identity::Block { number } if mode == OpenMode::ReadWrite => lock_behind(number, name)?,
            Identity::Block { .. } | Identity::File { .. } => None,
        };
        let geometry = geometry(&file, is_block_device)?;
        if geometry.len_bytes < len_bytes_min || geometry.len_bytes == 0 {
            let len_bytes_min = len_bytes_min.max(u64::from(geometry.sector_bytes));
            let why = Refusal::TooSmall { len_bytes: geometry.len_bytes, len_bytes_min };
            return Err(refuse(ErrorKind::InvalidInput, why));
        }
        if !is_direct {
            tracing::warn!(
                disk = name,
                "the filesystem refuses direct I/O: its page cache uses additional RAM"
            );
        }
        let durable = match mode {
            OpenMode::ReadWrite if is_direct => open_durable(&file),
            OpenMode::ReadWrite | OpenMode::ReadOnly => None,
        };
        Ok(Self {
            file,
            durable,
            _behind: behind,
            _claim: claim,
            geometry,
            is_block_device,
            is_direct,
        })
    }
}

/// File or block device that was found by its path and is not open for I/O yet.
///
/// Opening a FIFO waits for a writer, and opening a tape rewinds the tape. So the type is read from
/// a descriptor that opens neither (`O_PATH`). The later open for I/O uses this descriptor, because
/// the path may refer to another file by then.
struct Found {
    file: File,
    metadata: Metadata,
    identity: Identity,
}

impl Found {
    fn at(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        let identity = Identity::of(&metadata)?;
        Ok(Self { file, metadata, identity })
    }

    /// Path that refers to exactly this file.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// Opens an open disk a second time, for writes that are durable when they return. Returns `None`
/// if the kernel refuses; a durable write is then a write and a flush.
fn open_durable(file: &File) -> Option<File> {
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = (OFlags::DIRECT | OFlags::DSYNC).bits().cast_signed();
    let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(again);
    opened.inspect_err(|error| tracing::debug!(%error, "no O_DSYNC descriptor")).ok()
}

/// True if the disk is set read-only. Weir must check this itself, because root could still write
/// to the disk.
fn is_read_only(metadata: &Metadata, identity: Identity) -> bool {
    match identity {
        // If reading is not permitted either, the open fails with a permission error.
        Identity::File { .. } => metadata.permissions().readonly() && metadata.mode() & 0o444 != 0,
        Identity::Block { number } => {
            let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
            std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"))
                .is_ok_and(|flag| flag.trim() == "1")
        }
    }
}

/// Opens the disk for direct I/O, or through the page cache if the filesystem does not support
/// direct I/O.
fn open_direct(path: &Path, mode: OpenMode, is_block_device: bool) -> io::Result<(File, bool)> {
    let open = |flags: OFlags| {
        let exclusive = is_block_device && mode == OpenMode::ReadWrite;
        let flags = if exclusive { flags | OFlags::EXCL } else { flags };
        OpenOptions::new()
            .read(true)
            .write(mode == OpenMode::ReadWrite)
            .custom_flags(flags.bits().cast_signed())
            .open(path)
            .map_err(|error| match error.kind() {
                ErrorKind::ResourceBusy => refuse(ErrorKind::ResourceBusy, Refusal::Held),
                _ => error,
            })
    };
    match open(OFlags::DIRECT) {
        Ok(file) if is_block_device || fits_direct(&file) => return Ok((file, true)),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::InvalidInput => {}
        Err(error) => return Err(error),
    }
    Ok((open(OFlags::empty())?, false))
}

/// True if buffers aligned to 4096 bytes and sectors of 4096 bytes satisfy the filesystem's rules
/// for direct I/O.
fn fits_direct(file: &File) -> bool {
    let Ok(stat) = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return true };
    // A kernel before 6.1, or the filesystem, may report no rules. In that case assume that the
    // rules are satisfied, because the open with direct I/O succeeded.
    let says = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
    let fits = |align: u32| (1..=IoBuf::ALIGN as u32).contains(&align);
    !says || (fits(stat.stx_dio_mem_align) && fits(stat.stx_dio_offset_align))
}

/// Locks the disk against other processes; fails if another process has locked it.
fn lock(file: &File, mode: OpenMode, is_block_device: bool) -> io::Result<()> {
    // Two kinds of locks disappear after a while: the lock that udev holds while it reads a changed
    // block device, and the lock of a killed process, which the kernel keeps until the last
    // operation of this process has completed.
    const WAIT: Duration = Duration::from_millis(50);
    const TRIES: u32 = 40;

    let operation = match mode {
        OpenMode::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        OpenMode::ReadOnly if is_block_device => return Ok(()),
        OpenMode::ReadOnly => FlockOperation::NonBlockingLockShared,
    };
    let tries = if mode == OpenMode::ReadWrite { TRIES } else { 1 };
    for attempt in 1..=tries {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if attempt < tries => sleep(WAIT),
            Err(rustix::io::Errno::WOULDBLOCK) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Err(refuse(ErrorKind::ResourceBusy, Refusal::InUse))
}

/// Locks the file behind a loop device. A `flock` of the loop device does not affect this file, so
/// it would not exclude a server that uses the file directly. If the file was deleted or is in
/// another mount namespace, it cannot be found, and only the owner slot in the pool's labels
/// protects the pool.
fn lock_behind(number: u64, name: &str) -> io::Result<Option<(File, Claim)>> {
    let Some(path) = file_behind(number) else { return Ok(None) };
    // The file may have been renamed since the kernel recorded the path, so the path may refer to
    // another file now.
    let opened = Found::at(&path).and_then(|found| Ok((File::open(found.path())?, found.identity)));
    let Ok((file, identity)) = opened else {
        let path = path.display();
        tracing::debug!(disk = name, %path, "the file behind the loop device is not found");
        return Ok(None);
    };
    let claim = Claim::take(identity, OpenMode::ReadWrite, name)?;
    lock(&file, OpenMode::ReadWrite, false)?;
    Ok(Some((file, claim)))
}

fn geometry(mut file: &File, is_block_device: bool) -> io::Result<Geometry> {
    // For a file, 4096 bytes: every filesystem, and every disk below it, accepts this unit for
    // direct I/O.
    let sector_bytes = if is_block_device {
        sector_bytes(ioctl_blksszget(file)?, ioctl_blkpbszget(file)?)?
    } else {
        4096
    };
    let len_bytes = file.seek(SeekFrom::End(0))?;
    Ok(Geometry { len_bytes: len_bytes - len_bytes % u64::from(sector_bytes), sector_bytes })
}

/// Sector size for a disk with logical sectors of `logical` bytes and physical sectors of
/// `physical` bytes.
fn sector_bytes(logical: u32, physical: u32) -> io::Result<u32> {
    match (logical, physical) {
        (512, 0..=512) => Ok(512),
        // Use 4096 bytes, because a write that is smaller than a physical sector would make the
        // disk read the sector first.
        (512..=4096, _) => Ok(4096),
        _ => Err(refuse(ErrorKind::Unsupported, Refusal::Sectors(logical))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sector_size_follows_the_physical_sector() {
        for (logical, physical, unit) in
            [(512, 512, 512), (512, 4096, 4096), (4096, 4096, 4096), (2048, 2048, 4096)]
        {
            assert_eq!(sector_bytes(logical, physical).unwrap(), unit);
        }
        let error = sector_bytes(16384, 16384).unwrap_err();
        assert!(error.to_string().contains("16384"), "{error}");
    }
}
