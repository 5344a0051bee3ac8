//! Attributes, opens and syncs of inodes.
//!
//! Invariant: a change of the owner or size of a file clears its set-id bits as Linux does.

use fuser::{Errno, TimeOrNow};
use weir_base::ObjectId;
use weir_format::files::TimeStamp;
use weir_fs::{Attributes, SetAttributes};

use crate::attributes::{now, requested_time};
use crate::limits::OPENS_MAX;
use crate::operations::served::{Done, Served, done};

/// Changes of attributes that a program requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requested {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<TimeOrNow>,
    pub(crate) mtime: Option<TimeOrNow>,
    /// True if the program has the capability CAP_FSETID.
    pub(crate) keeps_set_id: bool,
}

fn time(time: TimeOrNow) -> TimeStamp {
    match time {
        TimeOrNow::Now => now(),
        TimeOrNow::SpecificTime(time) => requested_time(time),
    }
}

impl Served {
    pub(crate) async fn attributes(&self, number: ObjectId) -> Done<Attributes> {
        done(self.files.attributes(number).await)
    }

    pub(crate) async fn set_attributes(
        &self,
        number: ObjectId,
        requested: Requested,
    ) -> Done<Attributes> {
        let Requested { mode, uid, gid, size, atime, mtime, keeps_set_id } = requested;
        let is_chown = uid.is_some() || gid.is_some();
        let clears = is_chown || (size.is_some() && !keeps_set_id);
        let changes = SetAttributes {
            permissions: mode,
            uid,
            gid,
            size,
            atime: atime.map(time),
            mtime: mtime.map(time),
            ..SetAttributes::default()
        };
        done(self.files.set_attributes(number, &changes, clears).await)
    }

    /// Opens an inode for a program of a user.
    pub(crate) async fn open(&self, number: ObjectId, uid: u32) -> Done<()> {
        if !self.opens.add(number, uid, OPENS_MAX) {
            return Err(Errno::ENFILE);
        }
        let opened = done(self.files.open_inode(number).await);
        if opened.is_err() {
            self.opens.remove(number, uid);
        }
        opened.map(drop)
    }

    /// Closes an inode that a program of a user opened.
    pub(crate) async fn close(&self, number: ObjectId, uid: u32) -> Done<()> {
        if !self.opens.remove(number, uid) {
            return Err(Errno::EBADF);
        }
        done(self.files.close(number).await)
    }

    /// Closes all inodes at the end of the mount.
    pub(crate) async fn close_all(&self) {
        for number in self.opens.take() {
            if let Err(error) = self.files.close(number).await {
                // The next open of the filesystem frees an inode without a name.
                tracing::debug!(%error, "an open file is not closed");
            }
        }
    }

    pub(crate) async fn sync(&self, number: ObjectId) -> Done<()> {
        let synced = done(self.files.sync(number).await);
        self.engine.traffic().flushed();
        synced
    }
}
