//! The filesystem that a mount serves.
//!
//! Invariant: all operations of a mount run on one open filesystem, which shares may use too, so
//! that they see the same inodes in memory.

use std::sync::Arc;
use std::time::Duration;

use fuser::{Errno, FileAttr, INodeNo};
use weir_base::{BLOCK_BYTES, LogLimiter, ObjectId};
use weir_dataset::{Engine, Volume};
use weir_fs::{Attributes, Filesystem, FsError, NameCase, Statistics};

use crate::attributes::{cache_time, file_attr};
use crate::errno::errno;
use crate::limits::KERNEL_CACHE;
use crate::operations::opens::Opens;
use crate::operations::other_changes::OtherChanges;
use crate::operations::places::{SnapshotsBelow, is_own, is_snapshot_root, is_virtual};

/// Maximum length of a name (statvfs(3)).
const NAME_BYTES_MAX: u32 = 255;

/// Result of an operation, with the error number for the kernel.
pub(crate) type Done<T> = Result<T, Errno>;

/// The filesystem of a mount.
pub(crate) struct Served {
    pub(crate) files: Arc<Filesystem>,
    /// The directory of snapshots; `None` if the mount shows a snapshot.
    pub(crate) snapshots: Option<SnapshotsBelow>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) opens: Opens,
    pub(crate) other_changes: OtherChanges,
}

/// Space of a filesystem, in blocks of 4 KiB.
pub(crate) struct Space {
    pub(crate) blocks: u64,
    pub(crate) free: u64,
    pub(crate) files: u64,
    pub(crate) files_free: u64,
    pub(crate) block_bytes: u32,
    pub(crate) name_bytes_max: u32,
}

/// Returns the number of an inode.
pub(crate) fn number(inode: INodeNo) -> ObjectId {
    ObjectId(inode.0)
}

/// Minimum time between two lines in the log about failed requests. A program that reads a damaged
/// file in a loop must not fill the log.
pub(crate) const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Converts the error of an operation; logs errors that show a fault of the pool.
pub(crate) fn done<T>(result: Result<T, FsError>) -> Done<T> {
    static LOG: LogLimiter<()> = LogLimiter::new(LOG_INTERVAL);
    result.map_err(|error| {
        let number = errno(&error);
        if number.code() == Errno::EIO.code()
            && let Some(more) = LOG.pass(())
        {
            tracing::warn!(%error, more, "a request of a mount fails");
        }
        number
    })
}

impl Served {
    /// Returns the attributes in the form of the kernel.
    pub(crate) fn file_attr(&self, attributes: &Attributes) -> FileAttr {
        file_attr(attributes, self.files.record_size().bytes() as u32)
    }

    /// Time for which the kernel may use the attributes of an answer to GETATTR without a request.
    pub(crate) fn attributes_time(attributes: &Attributes) -> Duration {
        if is_virtual(attributes.number) { Duration::ZERO } else { cache_time(attributes) }
    }

    /// As [`Self::attributes_time`], for any other answer ([`OtherChanges`]). No protocol changes a
    /// snapshot.
    pub(crate) fn answer_time(&self, attributes: &Attributes) -> Duration {
        if is_own(attributes.number) && self.other_changes.exist() {
            Duration::ZERO
        } else {
            Self::attributes_time(attributes)
        }
    }

    /// Time for which the kernel may use the name of an inode without a request. The server
    /// destroys and renames snapshots without a notification of the kernel.
    pub(crate) fn entry_time(&self, found: &Attributes) -> Duration {
        if is_snapshot_root(found.number) { Duration::ZERO } else { self.name_cache() }
    }

    /// Time for which the kernel may use a name without a request. The kernel compares names byte
    /// for byte: after a change by one spelling of a name, it keeps the entries of the others.
    pub(crate) fn name_cache(&self) -> Duration {
        match self.files.case() {
            NameCase::Sensitive => KERNEL_CACHE,
            NameCase::Insensitive => Duration::ZERO,
        }
    }

    /// Returns the space of the filesystem for statvfs(3). The size is the space that the data
    /// uses, plus the available space.
    pub(crate) async fn space(&self) -> Done<Space> {
        let statistics = done(self.files.statistics().await)?;
        let Statistics { total_bytes, available_bytes, files, files_available } = statistics;
        let block = BLOCK_BYTES as u64;
        Ok(Space {
            blocks: total_bytes.div_ceil(block),
            free: available_bytes / block,
            files: files.saturating_add(files_available),
            files_free: files_available,
            block_bytes: BLOCK_BYTES as u32,
            name_bytes_max: NAME_BYTES_MAX,
        })
    }
}
