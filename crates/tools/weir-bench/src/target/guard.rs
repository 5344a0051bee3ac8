//! Checks the contents of a target before a run writes to the target for the first time.
//!
//! The caller asks the user for confirmation.
//!
//! Invariant: [`Holds::Nothing`] and [`Holds::Ours`] are based on samples at both ends of the
//! target and between the ends. Samples suffice to find file systems, partition tables and
//! databases, because all of these store data at an end of the target.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use weir_base::file_behind;

use super::address::Address;
use super::error::TargetError;
use super::lane::{Done, Lane, Op, Target, Wait};
use crate::content;
use crate::spec::{DatasetSpec, OpKind};

/// Size of one sample of the target's data.
const SAMPLE_BYTES: u64 = 64 << 10;
/// Number of samples at each end of a target. [`INNER_SAMPLES`] is the number of samples between
/// the ends.
const END_SAMPLES: u64 = 16;
const INNER_SAMPLES: u64 = 64;

/// Kind of data that a target contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// All samples contain only zeros.
    Nothing,
    /// The samples contain blocks of an earlier run of this program, possibly with zeros between
    /// them.
    Ours,
    /// The samples contain data of another program.
    Data,
}

/// Locks a file, directory or device until this process ends, against other runs, mounts, and
/// servers that use it as a disk. For a loop device, also locks the backing file, because `flock`
/// on the device does not affect the file. An NFS target locks its directory when it is opened.
/// Returns false for a file or directory that does not exist yet.
///
/// # Errors
/// `InUse` if another process uses or has locked the target.
pub fn take(address: &Address) -> Result<bool, TargetError> {
    let (Address::File(path) | Address::Directory(path)) = address else { return Ok(true) };
    let in_use = || TargetError::InUse { address: path.display().to_string() };
    let opened = open_exclusive(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::ResourceBusy => return Err(in_use()),
        // Leave the error to the run, which also opens the path and reports the reason.
        Err(_) => return Ok(false),
    };
    let device = file.metadata().ok().filter(|found| found.file_type().is_block_device());
    let behind = device.and_then(|found| file_behind(found.rdev()));
    let behind = behind.and_then(|behind| File::open(behind).ok());
    for file in [Some(file), behind].into_iter().flatten() {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(in_use()),
            // Errors other than `WOULDBLOCK` mean that the file system does not support locks. The
            // lock is released when the process ends.
            Ok(()) | Err(_) => std::mem::forget(file),
        }
    }
    Ok(true)
}

/// Removes the lock file that a killed run left in the directory of an NFS server. The locks of
/// other targets end with their process.
///
/// # Errors
/// If the server cannot be reached, or refuses the removal.
pub fn remove_lock(address: &Address) -> Result<(), TargetError> {
    match address {
        Address::Nfs(url) => super::nfs::remove_lock(url),
        _ => Ok(()),
    }
}

/// Opens the path for locking. `O_EXCL` claims a block device exclusively, as mounts and servers
/// do.
fn open_exclusive(path: &Path) -> std::io::Result<File> {
    let is_device = std::fs::metadata(path)?.file_type().is_block_device();
    let flags = if is_device { OFlags::EXCL } else { OFlags::empty() };
    File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

/// Checks the contents of the target at an address before a run opens the target. Creates and
/// extends no file.
///
/// # Errors
/// If the target cannot be reached or read, or if the run would create a file in `/dev`.
pub fn what_is_at(address: &Address) -> Result<Holds, TargetError> {
    let (dataset, path) = match address {
        // In a directory the run creates its own files, with names that only this program uses.
        Address::Null { .. } | Address::Directory(_) | Address::Nfs(_) => {
            return Ok(Holds::Nothing);
        }
        Address::Nbd(_) | Address::Iscsi(_) => (DatasetSpec { files: 1, file_bytes: 0 }, None),
        Address::File(path) => (DatasetSpec { files: 1, file_bytes: 0 }, Some(path)),
    };
    if let Some(path) = path
        && !path.exists()
    {
        // A misspelt device name must not create a file in `/dev`.
        if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
            let address = path.display().to_string();
            let source = ErrorKind::NotFound.into();
            return Err(TargetError::Io { address, what: "open", source });
        }
        return Ok(Holds::Nothing);
    }
    what_it_holds(&*super::open(address, &dataset)?)
}

/// Reads samples at both ends of a target and between them, and classifies their contents.
///
/// # Errors
/// If the target cannot be read.
pub fn what_it_holds(target: &dyn Target) -> Result<Holds, TargetError> {
    let info = target.info();
    let unit = u64::from(info.block_bytes).max(content::GUARD_BLOCK_BYTES);
    let bytes = info.bytes - info.bytes % unit;
    let look = SAMPLE_BYTES.min(bytes).next_multiple_of(unit).min(bytes);
    if look == 0 || info.kind == "null" {
        return Ok(Holds::Nothing);
    }
    let last = bytes - look;
    let from_start = (0..END_SAMPLES).map(|n| n * look);
    let to_end = (0..END_SAMPLES).map(|n| last.saturating_sub(n * look));
    let between = (0..INNER_SAMPLES).map(|n| last / INNER_SAMPLES * n);
    let mut places: Vec<u64> =
        from_start.chain(to_end).chain(between).map(|at| at.min(last) / unit * unit).collect();
    places.sort_unstable();
    places.dedup();
    let mut lane = target.lane(1, look as usize)?;
    let mut found = Holds::Nothing;
    for offset in places {
        let bytes = read(&mut *lane, &info.address, offset, look as u32)?;
        match content::what_is_in(bytes) {
            Holds::Data => return Ok(Holds::Data),
            Holds::Ours => found = Holds::Ours,
            Holds::Nothing => {}
        }
    }
    Ok(found)
}

fn read<'a>(
    lane: &'a mut dyn Lane,
    address: &str,
    offset: u64,
    len_bytes: u32,
) -> Result<&'a [u8], TargetError> {
    let op = Op { kind: OpKind::Read, offset, len_bytes, durable: false, source: 0 };
    lane.submit(0, &op)?;
    let mut done = Vec::new();
    while done.is_empty() {
        lane.reap(Wait::One, &mut done)?;
    }
    let Done { result, .. } = done.remove(0);
    let (address, what) = (address.to_owned(), "read");
    result.map_err(|source| TargetError::Io { address, what, source })?;
    Ok(&lane.buffer(0)[..len_bytes as usize])
}
