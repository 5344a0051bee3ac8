//! Directories of the metadata operations of a run, on all shares of an NFS target.
//!
//! `mount` has the files of the dataset; `metadata` has the operations in these directories.
//!
//! Invariants: the directory of a worker is in the share whose index is the number of the worker,
//! modulo the number of shares; the directory of a client is in every share.

use weir_nfs_client::{Client, Handle, NfsError};
use weir_nfs_wire::nfs3::{Ftype3, Nfsstat3};

use super::mount::{Mount, Share};
use crate::target::metadata::Directory;

/// Shares that have the directory with a path below the root.
fn shares_of<'m>(mount: &'m Mount, path: &str) -> &'m [Share] {
    let Some((_, name)) = path.split_once('/') else { return &mount.shares };
    // The number of the client has no influence on the name.
    let worker = Directory::parse(0, name).and_then(|directory| directory.worker);
    let index = worker.unwrap_or(0) as usize % mount.shares.len();
    &mount.shares[index..=index]
}

/// Handle of the parent of a directory in a share, and the name of the directory; `None` if the
/// parent does not exist.
fn parent<'p>(
    client: &mut Client,
    share: &Share,
    path: &'p str,
) -> Result<Option<(Handle, &'p str)>, NfsError> {
    let Some((parent, name)) = path.split_once('/') else { return Ok(Some((share.root, path))) };
    let found = client.lookup(&share.root, parent)?;
    Ok(found.map(|found| (found.handle, name)))
}

/// Creates a directory. An existing directory is no error.
pub(super) fn make_directory(mount: &Mount, path: &str) -> Result<(), NfsError> {
    for share in shares_of(mount, path) {
        let mut client = share.client()?;
        let missing =
            NfsError::Failed { what: "LOOKUP", status: Nfsstat3::Noent, unreserved_port: None };
        let (parent, name) = parent(&mut client, share, path)?.ok_or(missing)?;
        let handle = client.make_directory(&parent, name)?;
        if client.attributes(&handle)?.kind != Ftype3::Dir {
            // A file or a link is not a directory of this program.
            let (what, status) = ("MKDIR", Nfsstat3::Notdir);
            return Err(NfsError::Failed { what, status, unreserved_port: None });
        }
        mount.directories.write().insert(path.to_owned(), handle);
    }
    Ok(())
}

/// Removes an empty directory. A missing directory is no error.
pub(super) fn remove_directory(mount: &Mount, path: &str) -> Result<(), NfsError> {
    mount.directories.write().remove(path);
    for share in shares_of(mount, path) {
        let mut client = share.client()?;
        if let Some((parent, name)) = parent(&mut client, share, path)? {
            client.remove_directory(&parent, name)?;
        }
    }
    Ok(())
}

/// Passes the names in a directory to `each`. For the directory of a client, these are the names in
/// all shares. Returns false if no share has the directory.
pub(super) fn list(
    mount: &Mount,
    path: &str,
    each: &mut dyn FnMut(&str),
) -> Result<bool, NfsError> {
    let mut is_there = false;
    for share in shares_of(mount, path) {
        let mut client = share.client()?;
        let Some((parent, name)) = parent(&mut client, share, path)? else { continue };
        let Some(found) = client.lookup(&parent, name)? else { continue };
        is_there = true;
        // A run that removes files of an earlier run uses this handle for its lanes.
        mount.directories.write().insert(path.to_owned(), found.handle);
        client.list(&found.handle, &mut |name| each(&String::from_utf8_lossy(name)))?;
    }
    Ok(is_there)
}
