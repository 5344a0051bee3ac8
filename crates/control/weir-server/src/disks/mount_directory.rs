//! Checks the directory of a new mount.
//!
//! Invariant: a mount hides neither a file nor another mount. A mount is never inside a mount of
//! Weir, because the server would then wait for itself.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use weir_api::ApiError;
use weir_base::ErrorKind;
use weir_fuse::MountedAt;

use crate::answer::errors::internal;

/// Write permission of a directory: of all users, and of the owner.
const WRITE: u32 = 0o222;
const OWNER_WRITE: u32 = 0o200;

fn invalid(message: String, action: impl Into<String>) -> ApiError {
    ApiError::new(ErrorKind::Invalid, message).with_action(action.into())
}

fn table() -> Result<Vec<MountedAt>, ApiError> {
    weir_fuse::mounts().map_err(|error| internal("the mounts of this machine", &error))
}

/// Unmounts the mounts of `sources` whose server has ended.
pub(crate) fn clear_dead(is_source: impl Fn(&str) -> bool) -> Result<(), ApiError> {
    let dead = |mount: &&MountedAt| {
        mount.is_weir && is_source(&mount.source) && weir_fuse::is_dead(&mount.directory)
    };
    for mount in table()?.iter().rev().filter(dead) {
        let directory = &mount.directory;
        match weir_fuse::unmount(directory, true) {
            Ok(()) => tracing::info!(directory = %directory.display(), "dead mount unmounted"),
            Err(error) => {
                tracing::warn!(directory = %directory.display(), %error, "dead mount stays");
            }
        }
    }
    Ok(())
}

/// Checks that a filesystem can be mounted at a directory. The caller must not be on the thread of
/// the management interface: the directory may be on an unresponsive file system.
///
/// # Errors
/// An error with the reason why the directory cannot be used, and with the next command.
pub(crate) fn check(directory: &Path) -> Result<(), ApiError> {
    let text = directory.display();
    let other = "name another, empty directory";
    // Compare texts before any access: an access to a stuck mount would wait for this server.
    refuse_mounts(directory)?;
    let real = fs::canonicalize(directory).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            ApiError::new(ErrorKind::NotFound, format!("directory {text} does not exist"))
                .with_action(format!("mkdir -p {text}"))
        }
        io::ErrorKind::NotADirectory => invalid(format!("{text} is below a file"), other),
        _ => ApiError::new(ErrorKind::Unavailable, format!("{text}: {error}")),
    })?;
    if real != directory {
        let real = real.display();
        return Err(invalid(
            format!("{text} contains a symbolic link"),
            format!("name the directory itself: {real}"),
        ));
    }
    let failed = |error: io::Error| {
        ApiError::new(ErrorKind::Unavailable, format!("{text} cannot be read: {error}"))
    };
    if !fs::metadata(directory).map_err(failed)?.is_dir() {
        return Err(invalid(format!("{text} is not a directory"), other));
    }
    if fs::read_dir(directory).map_err(failed)?.next().is_some() {
        let message = format!("directory {text} is not empty: a mount would hide its files");
        return Err(invalid(message, other));
    }
    Ok(())
}

/// The directory below a mount that the server repeats at its next start. Without write permission
/// for its users, programs cannot put files there while the filesystem is not mounted: the files
/// would be hidden later, and the mount refused.
pub(crate) struct Below(File);

impl Below {
    /// Opens the directory, before the mount hides it. `None` for a server without root: it can
    /// mount only over a writable directory.
    pub(crate) fn open(directory: &Path) -> Option<Self> {
        let is_root = rustix::process::geteuid().is_root();
        is_root.then(|| File::open(directory).ok().map(Self)).flatten()
    }

    /// Removes the write permission of all users. Root still can write.
    pub(crate) fn guard(&self) {
        self.change_mode(|mode| mode & !WRITE);
    }

    /// Restores the write permission of the owner.
    pub(crate) fn release(&self) {
        self.change_mode(|mode| mode | OWNER_WRITE);
    }

    fn change_mode(&self, change: impl Fn(u32) -> u32) {
        let changed = self.0.metadata().and_then(|found| {
            let mode = change(found.permissions().mode());
            self.0.set_permissions(Permissions::from_mode(mode))
        });
        if let Err(error) = changed {
            tracing::debug!(%error, "the mode of the directory below a mount stays");
        }
    }
}

/// Refuses a directory at which something is mounted, and one inside a mount of Weir.
fn refuse_mounts(directory: &Path) -> Result<(), ApiError> {
    let text = directory.display();
    for mount in table()?.iter().rev() {
        if mount.directory == directory {
            let message = format!("{} is mounted at {text} already", mount.source);
            return Err(ApiError::new(ErrorKind::Exists, message)
                .with_action("name another directory, or unmount that one first"));
        }
        if mount.is_weir && mount.contains(directory) {
            let (source, at) = (&mount.source, mount.directory.display());
            let message = format!("{text} is inside the mount of {source} at {at}");
            return Err(invalid(message, "name a directory outside the mounts of Weir"));
        }
    }
    Ok(())
}

/// Refuses a path inside a mount of Weir for a disk: a server cannot store a pool in its own files.
///
/// # Errors
/// An error that names the mount.
pub(crate) fn refuse_disk(path: &Path) -> io::Result<()> {
    let all = weir_fuse::mounts()?;
    let within = |path: &Path| {
        let mount = all.iter().find(|mount| mount.is_weir && mount.contains(path))?;
        Some(mount.source.clone())
    };
    let real = || fs::canonicalize(path).ok().and_then(|real| within(&real));
    match within(path).or_else(real) {
        None => Ok(()),
        Some(source) => {
            let why = format!("it is a file of {source}, a mounted filesystem of Weir");
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_with_files_links_and_mounts_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        let at = |name: &str| root.join(name);
        fs::create_dir(at("empty")).unwrap();
        fs::create_dir(at("full")).unwrap();
        fs::write(at("full/file"), "x").unwrap();
        std::os::unix::fs::symlink(at("empty"), at("link")).unwrap();
        check(&at("empty")).unwrap();
        let refused = |name: &str| check(&at(name)).unwrap_err().to_string();
        assert!(refused("full").contains("is not empty"), "{}", refused("full"));
        assert!(refused("full/file").contains("not a directory"), "{}", refused("full/file"));
        assert!(refused("full/file/x").contains("below a file"), "{}", refused("full/file/x"));
        assert!(refused("link").contains("symbolic link"), "{}", refused("link"));
        assert!(refused("absent").contains("does not exist"), "{}", refused("absent"));
        let proc = check(Path::new("/proc")).unwrap_err();
        assert_eq!(proc.kind, ErrorKind::Exists, "{proc}");
    }
}
