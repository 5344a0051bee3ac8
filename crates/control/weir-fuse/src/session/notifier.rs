//! The thread that sends notifications to the kernel, which drop names, attributes and pages from
//! its caches.
//!
//! - `FUSE_NOTIFY_INVAL_ENTRY` drops a name. It waits for the requests of the directory, so that a
//!   lookup with the old answer cannot bring the name back.
//! - `FUSE_NOTIFY_INVAL_INODE` drops attributes and ACLs and, if it has a range, pages. It writes
//!   back changed pages of mappings, and waits for reads and writes of these pages.
//!
//! Spec: Linux `fs/fuse/dev.c` (`fuse_notify`), `fs/fuse/inode.c` (`fuse_reverse_inval_inode`).
//!
//! Invariant: this thread holds no lock and serves no request, so it may wait in the kernel.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::mpsc::Receiver;

use fuser::{INodeNo, Notifier};
use weir_base::{LogLimiter, ObjectId};
use weir_fs::{Changed, ChangedInode};

use crate::operations::served::LOG_INTERVAL;
use crate::session::kernel_caches::{Message, Order};

/// The kernel, as the notifier uses it. A kernel that has nothing to drop succeeds.
pub(super) trait Kernel {
    /// Drops a name. `FUSE_NOTIFY_DELETE` would also report the deletion to inotify(7). But it sets
    /// the link count of the inode to zero, although the inode may have other names, and waits also
    /// for the requests of the inode.
    fn drop_name(&self, directory: ObjectId, name: &[u8]) -> io::Result<()>;

    /// Drops the attributes and ACLs of an inode, and the pages with bytes of `data`.
    fn drop_inode(&self, number: ObjectId, data: Option<&Range<u64>>) -> io::Result<()>;
}

impl Kernel for Notifier {
    fn drop_name(&self, directory: ObjectId, name: &[u8]) -> io::Result<()> {
        self.inval_entry(INodeNo(directory.0), OsStr::from_bytes(name))
    }

    fn drop_inode(&self, number: ObjectId, data: Option<&Range<u64>>) -> io::Result<()> {
        let (offset, length) = data.map_or((NO_PAGES, 0), kernel_range);
        self.inval_inode(INodeNo(number.0), offset, length)
    }
}

/// Offset of a notification that drops attributes but no pages.
const NO_PAGES: i64 = -1;

/// Returns the offset and length of a range. The kernel takes length 0 as the rest of the file.
fn kernel_range(data: &Range<u64>) -> (i64, i64) {
    let offset = i64::try_from(data.start).unwrap_or(i64::MAX);
    let end = i64::try_from(data.end).ok();
    (offset, end.map_or(0, |end| (end - offset).max(1)))
}

/// Runs the notifier until the end of the mount.
pub(super) fn run(kernel: &impl Kernel, queue: &Receiver<Message>) {
    let log = LogLimiter::new(LOG_INTERVAL);
    while let Ok(Message::Changed(Order { changed, done, .. })) = queue.recv() {
        drop_changed(kernel, &changed, &log);
        // Ignore a failure: the caller has stopped to wait.
        done.send(()).ok();
    }
}

fn drop_changed(kernel: &impl Kernel, changed: &Changed, log: &LogLimiter<()>) {
    for (directory, name) in &changed.names {
        log_failure(log, kernel.drop_name(*directory, name));
    }
    for ChangedInode { number, data } in &changed.inodes {
        log_failure(log, kernel.drop_inode(*number, data.as_ref()));
    }
}

/// Logs a failed notification, at a limited rate.
fn log_failure(log: &LogLimiter<()>, sent: io::Result<()>) {
    if let Err(error) = sent
        && let Some(more) = log.pass(())
    {
        tracing::warn!(%error, more, "the kernel refused to drop cached files of a mount");
    }
}

#[cfg(test)]
mod tests;
