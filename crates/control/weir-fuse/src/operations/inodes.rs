//! Attributes, opens and syncs of inodes.
//!
//! Invariant: a change of the owner or size of a file clears its set-id bits as Linux does.

use fuser::{Errno, TimeOrNow};
use weir_base::ObjectId;
use weir_format::files::TimeStamp;
use weir_fs::{Attributes, SetAttributes};

use crate::attributes::{now, requested_time};
use crate::limits::OPENS_MAX;
use crate::operations::places::{Place, changeable, is_own};
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
        match self.place(number)? {
            Place::Files(at) => Ok(at.shown(done(at.files.attributes(at.number).await)?)),
            Place::Virtual(kind, below) => Ok(Self::virtual_attributes((kind, below))),
        }
    }

    pub(crate) async fn set_attributes(
        &self,
        number: ObjectId,
        requested: Requested,
    ) -> Done<Attributes> {
        let number = changeable(number)?;
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

    /// Opens an inode for a program of a user. weir-fs counts only the opens of inodes that can be
    /// removed, so a snapshot can be closed while programs have its files open.
    ///
    /// # Errors
    /// EROFS if the program opens a file of a snapshot to write.
    pub(crate) async fn open(&self, number: ObjectId, uid: u32, writes: bool) -> Done<()> {
        if writes {
            changeable(number)?;
        }
        if !self.opens.add(number, uid, OPENS_MAX) {
            return Err(Errno::ENFILE);
        }
        let opened = if is_own(number) {
            done(self.files.open_inode(number).await).map(drop)
        } else {
            self.attributes(number).await.map(drop)
        };
        if opened.is_err() {
            self.opens.remove(number, uid);
        }
        opened
    }

    /// Closes an inode that a program of a user opened.
    pub(crate) async fn close(&self, number: ObjectId, uid: u32) -> Done<()> {
        if !self.opens.remove(number, uid) {
            return Err(Errno::EBADF);
        }
        if is_own(number) { done(self.files.close(number).await) } else { Ok(()) }
    }

    /// Closes all inodes at the end of the mount.
    pub(crate) async fn close_all(&self) {
        for number in self.opens.take().into_iter().filter(|number| is_own(*number)) {
            if let Err(error) = self.files.close(number).await {
                // The next open of the filesystem frees an inode without a name.
                tracing::debug!(%error, "an open file is not closed");
            }
        }
    }

    /// Makes the changes of an inode durable. Snapshots have none.
    pub(crate) async fn sync(&self, number: ObjectId) -> Done<()> {
        if !is_own(number) {
            return Ok(());
        }
        let synced = done(self.files.sync(number).await);
        self.engine.traffic().flushed();
        synced
    }
}
