//! Names of the directories above the snapshots of a share, and of the snapshots.
//!
//! weir-fs has the names of the directories, the server opens the snapshots.
//!
//! Invariant: a client finds snapshots only through a share of the root of their filesystem.

use std::sync::Arc;

use weir_fs::{
    Attributes, FsError, InodeRef, ROOT, SNAPSHOTS_NAME, Snapshots, VirtualDirectory, WEIR_NAME,
};
use weir_nfs_wire::nfs3::LookupResok;
use weir_oncrpc::Encoder;

use crate::attributes::fattr;
use crate::handle::Handle;
use crate::procedures::at::{At, as_handle, put, put_error};
use crate::procedures::view::View;
use crate::share::Share;

impl At {
    /// True if the list of the directory of the call has `.weir`.
    pub(crate) async fn lists_weir(&self) -> Result<bool, FsError> {
        let is_own = matches!(self.view, View::Own);
        let weir = self.share.weir(self.inode, WEIR_NAME).filter(|all| all.is_visible());
        if is_own && weir.is_some() { self.share.has_weir().await } else { Ok(false) }
    }

    /// True if the inode of the call is the root directory of a snapshot.
    pub(crate) fn is_snapshot_root(&self) -> bool {
        matches!(self.view, View::Snapshot(..)) && self.inode.number == ROOT
    }
}

/// Appends the result of a lookup that found a directory above the snapshots.
async fn put_virtual(
    at: &At,
    (found, all): (VirtualDirectory, &dyn Snapshots),
    out: &mut Encoder<'_>,
) {
    let attributes = Some(fattr(&found.attributes(all), at.share.fsid));
    let handle = at.share.virtual_handle(found);
    let (object, dir_attributes) = (as_handle(&handle), at.known().await);
    put(out, &LookupResok { object, attributes, dir_attributes });
}

/// Looks up the names of directories above the snapshots, the names of snapshots, and `..` in these
/// directories. Returns false, without a result, for other names.
pub(super) async fn lookup(at: &At, name: &[u8], out: &mut Encoder<'_>) -> bool {
    use VirtualDirectory as V;
    let found = match (&at.view, name) {
        (View::Own, name) => match at.share.weir(at.inode, name) {
            // The caller has looked for an entry with this name.
            Some(all) => (V::Weir, all),
            None => return false,
        },
        (View::Snapshot(..), b"..") if at.is_snapshot_root() => match &at.share.snapshots {
            Some(all) => (V::Snapshots, all),
            None => return false,
        },
        (View::Snapshot(..), _) => return false,
        (View::Virtual(directory, all), b".") => (*directory, all),
        (View::Virtual(V::Weir, all), name) if name == SNAPSHOTS_NAME => (V::Snapshots, all),
        (View::Virtual(V::Snapshots, all), b"..") => (V::Weir, all),
        (View::Virtual(directory, all), name) => {
            let found = match directory {
                V::Weir => root_of_share(at, name).await,
                V::Snapshots => root_of_snapshot(&at.share, all, name).await,
            };
            match found {
                Ok((found, view)) => {
                    let handle = at.share.handle(InodeRef::from(&found), view.snapshot());
                    let attributes = Some(fattr(&found, view.fsid(at.share.fsid)));
                    let (object, dir_attributes) = (as_handle(&handle), at.known().await);
                    put(out, &LookupResok { object, attributes, dir_attributes });
                }
                Err(error) => put_error(out, &error, at.known().await),
            }
            return true;
        }
    };
    put_virtual(at, (found.0, &**found.1), out).await;
    true
}

/// Looks up a name in `.weir` that leads back to the root.
async fn root_of_share(at: &At, name: &[u8]) -> Result<(Attributes, View), FsError> {
    if name != b".." {
        return Err(FsError::NotFound);
    }
    Ok((at.share.files.attributes_of(at.share.root).await?, View::Own))
}

/// Looks up the name of a snapshot.
pub(super) async fn root_of_snapshot(
    share: &Share,
    all: &Arc<dyn Snapshots>,
    name: &[u8],
) -> Result<(Attributes, View), FsError> {
    let entry = all.find(name).ok_or(FsError::NotFound)?;
    let handle =
        Handle { share: share.id, fsid: share.fsid, inode: share.root, snapshot: entry.dataset.0 };
    let view = View::of(share, &handle)?;
    let View::Snapshot(_, files) = &view else { return Err(FsError::NotFound) };
    let found = files.attributes(ROOT).await?;
    Ok((found, view))
}
