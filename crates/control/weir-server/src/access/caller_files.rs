//! Files that the server opens because a caller named them.
//!
//! Disks are opened in `disks`, secrets are read in weir-base, callers are identified in weir-api.
//!
//! A server that runs as root can access every file. Root and the user of the server could open any
//! such file themselves. For every other caller the server opens only block devices below `/dev`,
//! and files below `/etc/weir` and the directories of `weir serve --disk-dir`.
//!
//! Invariants:
//! - the kernel resolves the path below the directory (`RESOLVE_BENEATH`): neither `..` nor a link
//!   can leave it, even if the directory is changed meanwhile;
//! - the server opens exactly the resolved file: by descriptor, never by name a second time.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use weir_api::{ApiError, caller};
use weir_base::{ErrorKind, named_file};

use crate::access::aside::aside;
use crate::access::secrets::Secrets;

/// Directory of the device nodes.
const DEVICES: &str = "/dev";

/// Directory of files for the server, in which callers may name files; only root can write to it.
const CONFIG: &str = "/etc/weir";

/// The directories in which callers may name files.
#[derive(Debug, Default)]
pub(crate) struct NamedDirs {
    /// Pairs of paths: the directory as given on the command line, and with its links resolved.
    dirs: Vec<(PathBuf, PathBuf)>,
}

/// A caller named a file outside the directories in which it may name files.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} is not below /dev, {CONFIG} or a directory of weir serve --disk-dir, and only root and the \
     user of the server may name other files",
    path.display()
)]
pub(crate) struct FileRefused {
    path: PathBuf,
}

/// The remedy for [`FileRefused`].
pub(crate) const REFUSED_ACTION: &str =
    "run it as root over the unix socket, or start the server with --disk-dir DIR";

/// A resolved path. The path refers to the same file while this value exists.
pub(crate) struct Place {
    fd: OwnedFd,
}

/// A file in a request.
pub(crate) struct Given {
    /// The content, if the request contains it.
    pub(crate) sent: Option<Vec<u8>>,
    /// The path, if the request names it.
    pub(crate) named: Option<String>,
    /// File with the old secret or certificate, which the file of this request replaces.
    pub(crate) before: Option<String>,
}

/// The directories in which callers may name files, and the directory of the secrets that callers
/// send.
#[derive(Clone)]
pub(crate) struct CallerFiles {
    pub(crate) dirs: Arc<NamedDirs>,
    pub(crate) secrets: Secrets,
}

impl CallerFiles {
    /// Returns the path of a file with the certificates that a caller sent or named. `before` in
    /// the request is the file that the new file replaces.
    ///
    /// If root or the user of the server named the file, returns its path; the server reads the
    /// file again at each use. For another caller the server opens the named file below its allowed
    /// directory, reads the file now, and saves a copy.
    ///
    /// # Errors
    /// `Invalid` if the request has neither content nor path, or has both; `Permission` for a file
    /// that the caller may not name.
    pub(crate) async fn public(&self, given: Given) -> Result<String, ApiError> {
        let files = self.clone();
        let Given { sent, named, before } = given;
        let named = match (sent, named) {
            (Some(content), None) => {
                let keep = move || files.secrets.keep(&content, before.as_deref());
                return aside("the state directory", keep).await;
            }
            (None, Some(named)) => named,
            _ => {
                let message = "give the certificate either in the call or in a file";
                return Err(ApiError::new(ErrorKind::Invalid, message));
            }
        };
        if caller_names_any() {
            return Ok(named);
        }
        let files = self.clone();
        let path = PathBuf::from(&named);
        let keep = move || {
            let read = || {
                let place = files.dirs.place(&path)?;
                Ok(named_file::read(&place.path(), named_file::CERTIFICATES_BYTES_MAX)?.1)
            };
            let content = read().map_err(|error: io::Error| api_error(&path, &error))?;
            files.secrets.keep(&content, before.as_deref())
        };
        aside(&named, keep).await
    }

    /// Returns the path of a file with the secret that a caller sent or named.
    ///
    /// If root or the user of the server named the file, returns its path; the server reads the
    /// file again at each use. Every other caller must send the secret. Otherwise a caller could
    /// name a file that it may not read, and the server would send the content to a machine of the
    /// caller's choice.
    ///
    /// # Errors
    /// `Invalid` if the request has neither content nor path, or has both; `Permission` for a file
    /// that the caller may not name.
    pub(crate) async fn secret(&self, given: Given) -> Result<String, ApiError> {
        let Given { sent, named, before } = given;
        match (sent, named) {
            (Some(content), None) => {
                let files = self.clone();
                let keep = move || files.secrets.keep(&content, before.as_deref());
                aside("the state directory", keep).await
            }
            (None, Some(named)) if caller_names_any() => Ok(named),
            (None, Some(named)) => {
                let message = format!(
                    "{named} is a secret of the server, and only root and the user of the server \
                     may name it, over the unix socket"
                );
                Err(ApiError::new(ErrorKind::Permission, message)
                    .with_action("send the secret in the call: weir does so with --secret-file"))
            }
            _ => {
                let message = "give the secret either in the call or in a file";
                Err(ApiError::new(ErrorKind::Invalid, message))
            }
        }
    }
}

impl Place {
    /// Returns a path to exactly this file.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }
}

impl NamedDirs {
    /// Returns the directories of `--disk-dir` (`given`), and `/etc/weir`, which every server
    /// allows.
    ///
    /// # Errors
    /// `NotFound` for a directory that does not exist.
    pub(crate) fn new(given: &[PathBuf]) -> Result<Self, ApiError> {
        let mut dirs = vec![(PathBuf::from(CONFIG), PathBuf::from(CONFIG))];
        for dir in given {
            let whole = dir.canonicalize().ok().filter(|whole| whole.is_dir());
            let Some(whole) = whole else {
                let message = format!("--disk-dir {}: there is no such directory", dir.display());
                return Err(ApiError::new(ErrorKind::NotFound, message)
                    .with_action(format!("mkdir -p {}", dir.display())));
            };
            dirs.push((dir.clone(), whole));
        }
        Ok(Self { dirs })
    }

    /// Resolves a path from a caller.
    ///
    /// # Errors
    /// `PermissionDenied` with [`FileRefused`] for a path outside `/dev` and the allowed
    /// directories ([`NamedDirs`]); the kernel's error for a path inside.
    pub(crate) fn place(&self, path: &Path) -> io::Result<Place> {
        if let Ok(rest) = path.strip_prefix(DEVICES) {
            // File systems that are mounted below /dev, such as /dev/shm, contain files of users.
            let fd = beneath(Path::new(DEVICES), rest, ResolveFlags::NO_XDEV)?;
            let kind = FileType::from_raw_mode(fstat(&fd)?.st_mode);
            return match kind {
                FileType::BlockDevice | FileType::Directory => Ok(Place { fd }),
                _ => Err(refused(path)),
            };
        }
        let below = |dir: &(PathBuf, PathBuf)| {
            let rest = path.strip_prefix(&dir.0).or_else(|_| path.strip_prefix(&dir.1)).ok()?;
            Some((dir.1.clone(), rest.to_owned()))
        };
        let Some((dir, rest)) = self.dirs.iter().find_map(below) else {
            return Err(refused(path));
        };
        match beneath(&dir, &rest, ResolveFlags::empty()) {
            Ok(fd) => Ok(Place { fd }),
            // The path has a link or `..` that leaves the directory.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::XDEV.raw_os_error()) => {
                Err(refused(path))
            }
            Err(error) => Err(error),
        }
    }
}

fn refused(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, FileRefused { path: path.to_owned() })
}

fn beneath(dir: &Path, rest: &Path, more: ResolveFlags) -> io::Result<OwnedFd> {
    let dir = openat(CWD, dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | more;
    Ok(openat2(&dir, rest, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// True if an error is [`FileRefused`].
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<FileRefused>()).is_some()
}

/// True if the caller of the current call may name any file on this machine.
pub(crate) fn caller_names_any() -> bool {
    caller::current().names_any_file()
}

/// Converts an error of a named file, with the remedy.
pub(crate) fn api_error(path: &Path, error: &io::Error) -> ApiError {
    if is_refusal(error) {
        return ApiError::new(ErrorKind::Permission, error.to_string()).with_action(REFUSED_ACTION);
    }
    let kind = match error.kind() {
        // The caller named a file that is too long for its purpose.
        io::ErrorKind::FileTooLarge => ErrorKind::Invalid,
        other => ErrorKind::of_file(other),
    };
    ApiError::new(kind, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn is_refused(dirs: &NamedDirs, path: &Path) -> bool {
        match dirs.place(path) {
            Ok(_) => false,
            Err(error) => {
                assert!(is_refusal(&error), "{}: {error}", path.display());
                true
            }
        }
    }

    #[test]
    fn only_files_below_named_directories_are_opened() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("in"), root.path().join("out"));
        fs::create_dir_all(inside.join("deep")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), "x").unwrap();
        fs::write(inside.join("deep/disk"), "mine").unwrap();
        symlink("deep/disk", inside.join("near")).unwrap();
        symlink(outside.join("secret"), inside.join("far")).unwrap();
        symlink("../out/secret", inside.join("up")).unwrap();
        symlink(&outside, inside.join("away")).unwrap();
        symlink(&inside, root.path().join("alias")).unwrap();
        let dirs = NamedDirs::new(&[root.path().join("alias")]).unwrap();

        for good in ["in/deep/disk", "in/near", "alias/deep/disk", "alias/near"] {
            let place = dirs.place(&root.path().join(good)).expect(good);
            assert_eq!(fs::read_to_string(place.path()).unwrap(), "mine");
        }
        let bad = ["out/secret", "in/far", "in/up", "in/away/secret", "in/../out/secret"];
        for bad in bad {
            assert!(is_refused(&dirs, &root.path().join(bad)), "{bad}");
        }
        for bad in ["/etc/shadow", "/proc/self/environ", "relative", "/"] {
            assert!(is_refused(&dirs, Path::new(bad)), "{bad}");
        }
        assert!(NamedDirs::new(&[root.path().join("absent")]).is_err());
    }

    #[test]
    fn only_block_devices_below_dev_are_opened() {
        let dirs = NamedDirs::new(&[]).unwrap();
        for bad in ["/dev/null", "/dev/zero"] {
            assert!(is_refused(&dirs, Path::new(bad)), "{bad}");
        }
        // The server refuses links to its own descriptors, and file systems that users can write
        // to.
        for bad in ["/dev/fd/0", "/dev/stdin", "/dev/shm/x", "/dev/../etc/shadow"] {
            assert!(dirs.place(Path::new(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn file_replaced_by_a_link_after_the_check_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let dirs = NamedDirs::new(&[root.path().to_owned()]).unwrap();
        let disk = root.path().join("disk");
        fs::write(&disk, "mine").unwrap();
        let place = dirs.place(&disk).unwrap();
        fs::remove_file(&disk).unwrap();
        symlink("/etc/passwd", &disk).unwrap();
        assert_eq!(fs::read_to_string(place.path()).unwrap(), "mine");
    }
}
