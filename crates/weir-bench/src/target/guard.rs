//! What a target holds, before anything is written to it.
//!
//! Not here: asking the user.
//!
//! Invariant: "nothing" and "ours" are said only of what was looked at: both ends and samples
//! between them. That is enough for file systems, partition tables and databases, which all put
//! something at an end.

use super::{Address, Done, Lane, Op, Target, TargetError, Wait};
use crate::content;
use crate::spec::{DatasetSpec, OpKind};

/// Bytes of one look.
const LOOK_BYTES: u64 = 64 << 10;
/// Looks from each end on, and over all of it.
const LOOKS_AT_ENDS: u64 = 16;
const LOOKS_BETWEEN: u64 = 64;

/// What a target holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Zeros, as far as it was looked at.
    Nothing,
    /// Blocks of an earlier run of this program, and perhaps zeros.
    Ours,
    /// Something else.
    Data,
}

/// Takes a file or device for this process until it ends, against other runs and against servers
/// that have it as a disk. Returns false for what cannot be taken yet, a file that is to be made.
///
/// # Errors
/// `InUse`; or it cannot be opened.
pub fn take(address: &Address) -> Result<bool, TargetError> {
    let Address::File(path) = address else { return Ok(true) };
    let Ok(file) = std::fs::File::open(path) else { return Ok(false) };
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            // The lock goes with the process: no run may begin on it before this one is over.
            std::mem::forget(file);
            Ok(true)
        }
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(TargetError::InUse { address: path.display().to_string() })
        }
        // A file system without locks.
        Err(_) => Ok(true),
    }
}

/// What is at an address, before it is opened for a run: nothing is made or made longer by this.
///
/// # Errors
/// It cannot be reached or read, or would be made where no files belong.
pub fn what_is_at(address: &Address) -> Result<Holds, TargetError> {
    let (dataset, path) = match address {
        // The files in it are ours by name.
        Address::Null { .. } | Address::Directory(_) => return Ok(Holds::Nothing),
        Address::Nbd(_) | Address::Iscsi(_) => (DatasetSpec { files: 1, file_bytes: 0 }, None),
        Address::File(path) => (DatasetSpec { files: 1, file_bytes: 0 }, Some(path)),
    };
    if let Some(path) = path
        && !path.exists()
    {
        // A device that is misspelt must not become a file.
        if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
            let address = path.display().to_string();
            let source = std::io::ErrorKind::NotFound.into();
            return Err(TargetError::Io { address, what: "open", source });
        }
        return Ok(Holds::Nothing);
    }
    what_it_holds(&*super::open(address, &dataset)?)
}

/// Looks at both ends of a target, and here and there between.
///
/// # Errors
/// It cannot be read.
pub fn what_it_holds(target: &dyn Target) -> Result<Holds, TargetError> {
    let info = target.info();
    let unit = u64::from(info.block_bytes).max(content::GUARD_BLOCK_BYTES);
    let bytes = info.bytes - info.bytes % unit;
    let look = LOOK_BYTES.min(bytes).next_multiple_of(unit).min(bytes);
    if look == 0 || info.kind == "null" {
        return Ok(Holds::Nothing);
    }
    let last = bytes - look;
    let from_start = (0..LOOKS_AT_ENDS).map(|n| n * look);
    let to_end = (0..LOOKS_AT_ENDS).map(|n| last.saturating_sub(n * look));
    let between = (0..LOOKS_BETWEEN).map(|n| last / LOOKS_BETWEEN * n);
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
