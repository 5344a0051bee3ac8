//! Paths of directories, for MOUNT and for the creation of shares.
//!
//! Invariant: no path leads out of the directory at which it begins, except into the snapshots of
//! the filesystem.

use weir_fs::{
    Credentials, Filesystem, FsError, InodeRef, Looked, SNAPSHOTS_NAME, VirtualDirectory,
};

use crate::handle::Handle;
use crate::procedures::snapshots::root_of_snapshot;
use crate::procedures::view::View;
use crate::share::Share;

/// User that walks the path of a mount. The rules of the share, which the server checks before,
/// decide about the mount.
const WALKER: Credentials<'static> = Credentials::SUPERUSER;

/// Finds the directory with a path below the directory `root`, with the rights of the superuser.
///
/// # Errors
/// `NotFound` also for a path with `.` or `..`; `NotDirectory`; `Stale` if `root` is gone.
pub async fn find_directory(
    files: &Filesystem,
    root: InodeRef,
    path: &[u8],
) -> Result<InodeRef, FsError> {
    let mut at = root;
    files.attributes_of(at).await?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        if [&b"."[..], b".."].contains(&name) {
            return Err(FsError::NotFound);
        }
        let Looked { found, .. } = files.lookup_for(&WALKER, at, name).await?;
        at = InodeRef::from(&found);
        if found.file_type != weir_format::files::FileType::Directory {
            return Err(FsError::NotDirectory);
        }
    }
    Ok(at)
}

/// Returns the handle of the directory with a path below the root of a share, also in a snapshot.
///
/// # Errors
/// As [`find_directory`].
pub(crate) async fn find_place(share: &Share, path: &[u8]) -> Result<[u8; Handle::BYTES], FsError> {
    match find_directory(&share.files, share.root, path).await {
        Err(FsError::NotFound) => {}
        found => return Ok(share.handle(found?, Handle::OF_FILESYSTEM)),
    }
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let all = names.next().and_then(|name| share.weir(share.root, name));
    let all = all.ok_or(FsError::NotFound)?;
    if !share.has_weir().await? {
        return Err(FsError::NotFound);
    }
    match names.next() {
        None => return Ok(share.virtual_handle(VirtualDirectory::Weir)),
        Some(name) if name == SNAPSHOTS_NAME => {}
        Some(_) => return Err(FsError::NotFound),
    }
    let Some(name) = names.next() else {
        return Ok(share.virtual_handle(VirtualDirectory::Snapshots));
    };
    let (root, view) = root_of_snapshot(share, all, name).await?;
    let View::Snapshot(_, files) = &view else { return Err(FsError::NotFound) };
    let rest = names.collect::<Vec<_>>().join(&b"/"[..]);
    let inode = find_directory(files, InodeRef::from(&root), &rest).await?;
    Ok(share.handle(inode, view.snapshot()))
}
