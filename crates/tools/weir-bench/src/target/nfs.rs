//! Target that is a directory of an NFS server, or one in each of several shares. Each lane has one
//! connection of this project's client, so neither kernel client nor page cache is between the
//! generator and the server.
//!
//! `weir-nfs-client` implements the protocol.
//!
//! Invariants:
//! - the target opens and changes only files whose names `parts`, `metadata` and `lock` assign;
//! - file handles are looked up before a run starts; a lane sends only the measured operations.

use std::sync::Arc;

use weir_nfs_client::{Client, Url};

use super::error::TargetError;
use super::lane::{FileTree, Lane, Target};
use crate::result::TargetInfo;
use crate::spec::{DatasetSpec, OpKind};

mod channel;
mod lane;
mod listing;
mod lock;
mod metadata;
mod mount;
mod retries;
mod transfer;
mod tree;
mod verifier;

use lock::Lock;
use mount::{Mount, Share, failed};

/// Block size that the target reports. NFS has none; files of `dir:` report the same value.
const BLOCK_BYTES: u32 = 512;

/// A directory of an NFS server, with the files of a dataset.
pub(super) struct Nfs {
    info: TargetInfo,
    mount: Arc<Mount>,
    /// Locks of the directories; none for a client of a coordinator, which has the locks.
    _locks: Vec<Lock>,
}

impl Nfs {
    /// Mounts the directory and opens the files of the dataset. If `create` is set, creates the
    /// directory and the files if they do not exist, extends files that are too short, and locks
    /// the directory against other runs.
    pub(super) fn open(
        url: &Url,
        dataset: &DatasetSpec,
        create: bool,
    ) -> Result<Self, TargetError> {
        let address = url.to_string();
        let (count, files) = (url.shares().len(), dataset.files.max(1));
        if count > files as usize {
            let why = format!("the dataset has only {files} files for {count} shares");
            return Err(TargetError::Address { text: address, why });
        }
        let error = failed(&address);
        let (mut shares, mut locks) = (Vec::new(), Vec::new());
        for url in url.shares() {
            let mut client = Client::mount(&url).map_err(&error)?;
            let root = client.directory(&url, create).map_err(&error)?;
            let share = Share { url, mounted: client.mounted().clone(), root };
            if create {
                locks.push(Lock::take(&mut client, &share)?);
            }
            shares.push(share);
        }
        let mount = Mount::open(url, shares, dataset, create).map_err(&error)?;
        let source = mount.shares[0].client().map_err(&error)?.connection().source();
        drop(error);
        let info = TargetInfo {
            address,
            kind: "nfs".to_owned(),
            bytes: dataset.file_bytes.saturating_mul(mount.files.len() as u64),
            block_bytes: BLOCK_BYTES,
            driver: "own NFSv3 client, a connection per worker".to_owned(),
            facts: mount.facts(source),
            ..TargetInfo::default()
        };
        Ok(Self { info, mount: Arc::new(mount), _locks: locks })
    }
}

/// Removes the lock file that another run left in the directory.
///
/// # Errors
/// The server cannot be reached, or refuses the removal.
pub(super) fn remove_lock(url: &Url) -> Result<(), TargetError> {
    lock::remove(url).map_err(failed(&url.to_string()))
}

impl FileTree for Nfs {
    fn lane(
        &self,
        slots: usize,
        _depth: usize,
        buffer_bytes: usize,
    ) -> Result<Box<dyn Lane>, TargetError> {
        Target::lane(self, slots, buffer_bytes)
    }

    fn make_directory(&self, path: &str) -> Result<(), TargetError> {
        tree::make_directory(&self.mount, path).map_err(failed(&self.info.address))
    }

    fn remove_directory(&self, path: &str) -> Result<(), TargetError> {
        tree::remove_directory(&self.mount, path).map_err(failed(&self.info.address))
    }

    fn list(&self, path: &str, each: &mut dyn FnMut(&str)) -> Result<bool, TargetError> {
        tree::list(&self.mount, path, each).map_err(failed(&self.info.address))
    }
}

impl Target for Nfs {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn lane(&self, slots: usize, buffer_bytes: usize) -> Result<Box<dyn Lane>, TargetError> {
        Ok(Box::new(lane::NfsLane::open(Arc::clone(&self.mount), slots, buffer_bytes)?))
    }

    fn op_bytes_max(&self, kind: OpKind) -> u64 {
        match kind {
            OpKind::Read | OpKind::Write | OpKind::Flush => u64::MAX,
            _ => 0,
        }
    }

    fn files(&self) -> Option<&dyn FileTree> {
        Some(self)
    }
}

#[cfg(test)]
mod tests;
