//! Space and number of inodes of a filesystem (statfs).
//!
//! Invariant: the available space is the space that clients can write now, with an error of at most
//! one record for each open file. It accounts for quotas, reservations and data in memory.

use async_recursion::async_recursion as boxed;
use weir_format::{OBJECTS_MAX, ObjectSlot};

use crate::error::FsError;
use crate::filesystem::state::Filesystem;

/// Space and inodes of a filesystem, as `struct statvfs` (POSIX.1-2017, sys/statvfs.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Used and available space, in bytes.
    pub total_bytes: u64,
    /// Space that clients can still write, in bytes.
    pub available_bytes: u64,
    /// Inodes in use.
    pub files: u64,
    /// Inodes that the available space holds.
    pub files_available: u64,
}

impl Filesystem {
    /// Returns the space and the number of inodes.
    ///
    /// # Errors
    /// The errors of reads of the bitmap of inode numbers, which only the first call makes.
    #[boxed(?Send)]
    pub async fn statistics(&self) -> Result<Statistics, FsError> {
        let files = self.numbers.lock().await.count(self.reads()).await?;
        let available_bytes = self.volume.available_bytes();
        let used_bytes = self.volume.info().space.used;
        let slots = available_bytes / ObjectSlot::BYTES as u64;
        Ok(Statistics {
            total_bytes: used_bytes.saturating_add(available_bytes),
            available_bytes,
            files,
            files_available: slots.min(OBJECTS_MAX.saturating_sub(files)),
        })
    }
}
