//! Targets of a benchmark: files, devices, directories of NFS servers, NBD exports, iSCSI logical
//! units, and synthetic targets with known behaviour that measure the generator itself.
//!
//! `load` generates the load on a target; `content` generates and checks the contents of blocks.
//!
//! Invariants:
//! - a target has one address space that starts at 0; files of a directory are consecutive ranges
//!   of it;
//! - a target is opened only if it is at least as large as the dataset.

pub mod address;
mod buffers;
pub(crate) mod caches;
mod calls;
mod directory;
mod error;
mod file;
mod guard;
mod inline;
mod iscsi;
mod lane;
pub mod memory;
pub mod metadata;
mod nbd;
mod nfs;
mod null;
mod parts;
mod psync;
pub mod shaped;
mod tree;
mod uring;

pub use address::Address;
pub use error::TargetError;
pub(crate) use error::WITH_FILES;
pub use guard::{Holds, remove_lock, take, what_is_at, what_it_holds};
pub use lane::{Done, FileTree, Lane, Op, Target, Wait};
pub use metadata::{MetadataCall, MetadataOp};

use crate::spec::DatasetSpec;

/// Opens a target for a dataset. Creates files that are missing.
///
/// # Errors
/// If the target cannot be reached or is too small for the dataset.
pub fn open(address: &Address, dataset: &DatasetSpec) -> Result<Box<dyn Target>, TargetError> {
    open_with(address, dataset, true)
}

/// Opens a target for a dataset; on an NFS server, only if all files exist.
///
/// # Errors
/// If the target cannot be reached, is too small for the dataset, or lacks a file.
pub(crate) fn open_existing(
    address: &Address,
    dataset: &DatasetSpec,
) -> Result<Box<dyn Target>, TargetError> {
    open_with(address, dataset, false)
}

fn open_with(
    address: &Address,
    dataset: &DatasetSpec,
    create: bool,
) -> Result<Box<dyn Target>, TargetError> {
    let opened: Box<dyn Target> = match address {
        Address::Null { bytes } => Box::new(null::Null::new(bytes.unwrap_or(u64::MAX / 2))),
        Address::File(path) => Box::new(file::open(path, dataset.total_bytes())?),
        Address::Directory(path) => Box::new(directory::open(path, dataset)?),
        Address::Nbd(nbd) => Box::new(nbd::Nbd::open(nbd.clone())?),
        Address::Iscsi(url) => Box::new(iscsi::Iscsi::open(url)?),
        Address::Nfs(url) => Box::new(nfs::Nfs::open(url, dataset, create)?),
    };
    let (info, dataset_bytes) = (opened.info(), dataset.total_bytes());
    if info.bytes < dataset_bytes {
        let (address, bytes) = (info.address.clone(), info.bytes);
        return Err(TargetError::TooSmall { address, bytes, dataset_bytes });
    }
    Ok(opened)
}

/// Creates a target that completes every operation at once, without I/O.
pub fn null() -> impl Target {
    null::Null::new(u64::MAX / 2)
}
