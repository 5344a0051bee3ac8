//! The inode that a call is about, the share and the user.
//!
//! Invariant: a reply has the attributes that the server knows, also if the call fails.

use std::cell::Cell;
use std::sync::Arc;

use weir_base::ObjectId;
use weir_fs::{Attributes, BeforeAfter, Changed, FileData, Filesystem, FsError, InodeRef};
use weir_nfs_wire::nfs3::{Fattr3, FileHandle, Nfs3Result, Nfsstat3, PostOpAttr, WccData};
use weir_oncrpc::{Encoder, Failed, Opaque, Xdr};

use crate::attributes::{fattr, wcc};
use crate::handle::Handle;
use crate::procedures::view::View;
use crate::share::{Identity, Share};
use crate::status::status;

/// The place of a call: an inode of a share, and the user of the call.
pub(crate) struct At {
    pub(crate) share: Arc<Share>,
    /// Part of the share that has the inode.
    pub(crate) view: View,
    pub(crate) inode: InodeRef,
    pub(crate) user: Identity,
    /// Number of bytes that the call read or wrote so far.
    pub(crate) bytes: Cell<u64>,
    /// Data of a READ, which follows the encoded results.
    pub(crate) data: Cell<FileData>,
}

impl At {
    pub(crate) fn files(&self) -> &Filesystem {
        match &self.view {
            View::Own | View::Virtual(..) => &self.share.files,
            View::Snapshot(_, files) => files,
        }
    }

    /// True if the inode belongs to the filesystem of the share, which clients can change.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.view, View::Own)
    }

    /// True if the inode is the directory that clients mount.
    pub(crate) fn is_root(&self) -> bool {
        self.is_own() && self.inode == self.share.root
    }

    pub(crate) fn fattr(&self, attributes: &Attributes) -> Fattr3 {
        fattr(attributes, self.view.fsid(self.share.fsid))
    }

    pub(crate) fn wcc(&self, change: &BeforeAfter) -> WccData {
        wcc(change, self.share.fsid)
    }

    /// Handle of an inode of the filesystem or snapshot of the call.
    pub(crate) fn handle(&self, inode: InodeRef) -> [u8; Handle::BYTES] {
        self.share.handle(inode, self.view.snapshot())
    }

    /// Attributes of the inode of the call.
    ///
    /// # Errors
    /// `Stale`.
    pub(crate) async fn attributes(&self) -> Result<Attributes, FsError> {
        match &self.view {
            View::Virtual(directory, snapshots) => Ok(directory.attributes(&**snapshots)),
            View::Own | View::Snapshot(..) => self.files().attributes_of(self.inode).await,
        }
    }

    /// Attributes of the inode of the call, for the reply of a failed call.
    pub(crate) async fn known(&self) -> PostOpAttr {
        self.attributes().await.ok().map(|attributes| self.fattr(&attributes))
    }

    /// As [`Self::known`], for a failed change.
    pub(crate) async fn known_wcc(&self) -> WccData {
        WccData { before: None, after: self.known().await }
    }

    /// Reports a change to the watcher of the filesystem, if there is one, and waits for it. A
    /// procedure calls this after each change, before a sync that may fail, so that the watcher
    /// gets also the first changes of a call that then fails.
    pub(crate) async fn changed(&self, changed: impl FnOnce() -> Changed) {
        if let Some(watcher) = self.share.watcher.get() {
            let changed = changed();
            if !changed.is_empty() {
                watcher.changed(changed).await;
            }
        }
    }

    /// Makes a change of names or attributes durable if it succeeded, unless the share says that a
    /// crash may lose it (RFC 1813 section 4.8). `number`: any changed inode.
    ///
    /// # Errors
    /// The error of the change; the pool is suspended.
    pub(crate) async fn durable<T>(
        &self,
        changed: Result<T, FsError>,
        number: impl FnOnce(&T) -> ObjectId,
    ) -> Result<T, FsError> {
        let changed = changed?;
        if self.share.is_sync {
            self.files().sync(number(&changed)).await?;
        }
        Ok(changed)
    }
}

/// A handle for a reply.
pub(crate) fn as_handle(bytes: &[u8; Handle::BYTES]) -> FileHandle<'_> {
    Opaque::new(bytes).expect("handles have 48 bytes")
}

/// Appends a successful result.
pub(crate) fn put<'a>(out: &mut Encoder<'_>, result: &impl Xdr<'a>) {
    out.u32(0);
    result.encode(out);
}

/// Appends a failed result.
pub(crate) fn put_error<'a>(out: &mut Encoder<'_>, error: &FsError, info: impl Xdr<'a>) {
    put_status(out, status(error), info);
}

/// Appends a result that failed with a status.
pub(crate) fn put_status<'a>(out: &mut Encoder<'_>, status: Nfsstat3, info: impl Xdr<'a>) {
    let failed: Nfs3Result<(), _> = Err(Failed { status, info });
    failed.encode(out);
}
