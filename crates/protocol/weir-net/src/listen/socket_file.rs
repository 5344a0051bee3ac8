//! Listening unix socket and the socket's file.
//!
//! `listener` accepts the connections; the caller chooses the group of users that may connect.
//!
//! Invariants:
//! - other users can never connect to the socket, not even briefly: the socket gets its group and
//!   mode before it listens;
//! - mode and group are set through a descriptor of the created socket, so that they never apply to
//!   a link with which another user replaces the socket;
//! - the socket is in a directory in which no other user can replace it;
//! - the server replaces no socket on which a process answers, and removes no file that is not a
//!   socket.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::ServeError;
use crate::limits::ACCEPT_QUEUE;

/// Permission bits that let the group or other users create files in a directory.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// File of the socket. Dropping this value removes the file, unless another file replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    dev: u64,
    ino: u64,
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Listens at `path` for the server's user and the members of `group`.
///
/// # Errors
/// `Permission` if another user could replace the socket in its directory; `Busy` if a process
/// answers on the socket; `Exists` if the file at `path` is not a socket.
pub fn bind(path: &Path, group: Option<u32>) -> Result<(UnixListener, SocketFile), ServeError> {
    refuse_open_directory(path)?;
    let address = || format!("unix:{}", path.display());
    listen(path, group).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::InUse { address: address() },
        io::ErrorKind::AlreadyExists => ServeError::NotASocket { path: path.to_owned() },
        _ => ServeError::Listen { address: address(), source },
    })
}

fn listen(path: &Path, group: Option<u32>) -> io::Result<(UnixListener, SocketFile)> {
    let name = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::bind(&fd, &name) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path)?;
            rustix::net::bind(&fd, &name)?;
        }
        other => other?,
    }
    // Set group and mode now: a socket that is bound but does not listen yet refuses every client.
    let file = admit(path, group)?;
    rustix::net::listen(&fd, ACCEPT_QUEUE)?;
    Ok((UnixListener::from(fd), file))
}

/// Gives access to the socket at `path` to its owner, and to `group` if there is one.
fn admit(path: &Path, group: Option<u32>) -> rustix::io::Result<SocketFile> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(Errno::NOTSOCK);
    }
    let mut mode = Mode::RUSR | Mode::WUSR;
    if let Some(group) = group {
        let group = Some(Gid::from_raw(group));
        rustix::fs::chownat(&file, "", None, group, AtFlags::EMPTY_PATH)?;
        mode |= Mode::RGRP | Mode::WGRP;
    }
    // `fchmod` refuses an `O_PATH` descriptor, so change the mode through the descriptor's name
    // under /proc, which refers to the same file.
    rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?;
    Ok(SocketFile { path: path.to_owned(), dev: stat.st_dev, ino: stat.st_ino })
}

/// Refuses a directory in which another user could replace the server's socket, because clients
/// would send their data to the replacement. The server's own group may have write permission: many
/// systems give each user a group of the same name that can write to the user's directories.
fn refuse_open_directory(path: &Path) -> Result<(), ServeError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let dir = parent.unwrap_or_else(|| Path::new("."));
    let address = || format!("unix:{}", path.display());
    let failed = |source| ServeError::Listen { address: address(), source };
    let meta = fs::metadata(dir).map_err(failed)?;
    let refused = |why: String, mend: String| ServeError::Directory {
        address: address(),
        path: dir.to_owned(),
        why,
        mend,
    };
    let own = rustix::process::geteuid().as_raw();
    let shown = dir.display();
    if meta.uid() != 0 && meta.uid() != own {
        let why = format!("it belongs to user {}", meta.uid());
        return Err(refused(why, format!("chown {own} {shown}")));
    }
    let own_group = rustix::process::getegid().as_raw();
    let group_writes = meta.mode() & GROUP_WRITES != 0 && meta.gid() != own_group;
    if group_writes || meta.mode() & OTHERS_WRITE != 0 {
        let why = "other users may write to it".to_owned();
        return Err(refused(why, format!("chmod go-w {shown}")));
    }
    Ok(())
}

/// Removes the socket that a server left when it ended, if no process answers on it.
fn remove_stale(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is not a socket has this name",
        ));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // The server that owned the socket has removed it in the meantime.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A server answered, or may still answer: keep the socket.
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) => Err(error),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| meta.dev() == self.dev && meta.ino() == self.ino);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "socket file not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use weir_base::ErrorKind;

    use super::*;

    /// Creates an empty directory that only this user can enter.
    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("weir-net-{}-{name}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        fs::create_dir(&path).unwrap();
        set_mode(&path, 0o700);
        path
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn live_socket_is_kept_and_stale_one_replaced() {
        let dir = scratch("live");
        let path = dir.join("nbd.sock");
        let first = bind(&path, None).unwrap();
        assert_eq!(mode(&path), 0o600, "without a group only its owner connects");
        assert_eq!(bind(&path, None).expect_err("live").kind(), ErrorKind::Busy);
        drop(first);
        assert!(!path.exists(), "removed with its listener");

        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dead server leaves its socket");
        drop(bind(&path, None).expect("stale sockets are replaced"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn group_owns_the_socket_and_links_are_not_followed() {
        let dir = scratch("group");
        let path = dir.join("nbd.sock");
        let own = rustix::process::getegid().as_raw();
        let group = if rustix::process::geteuid().is_root() { 990 } else { own };
        let _bound = bind(&path, Some(group)).unwrap();
        assert_eq!((fs::metadata(&path).unwrap().gid(), mode(&path)), (group, 0o660));
        // Regression: another user placed a link between bind and chmod, and the link's target
        // became accessible to the group.
        let (victim, link) = (dir.join("victim"), dir.join("link"));
        fs::write(&victim, "").unwrap();
        set_mode(&victim, 0o600);
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert_eq!(admit(&link, Some(group)).expect_err("a link"), Errno::NOTSOCK);
        assert_eq!(mode(&victim), 0o600);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn regular_file_at_the_path_is_not_removed() {
        let dir = scratch("file");
        let path = dir.join("nbd.sock");
        fs::write(&path, "precious").unwrap();
        let error = bind(&path, None).expect_err("a file");
        assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_dir_all(dir).unwrap();
    }

    // Regression: another user replaced the server's socket with their own socket, and received the
    // clients' writes.
    #[test]
    fn directory_writable_by_others_is_refused_with_the_repair() {
        let dir = scratch("open");
        let path = dir.join("nbd.sock");
        for bits in [0o777, 0o1777, 0o707] {
            set_mode(&dir, bits);
            let error = bind(&path, None).expect_err("open to all");
            assert_eq!(error.kind(), ErrorKind::Permission);
            let mend = error.action().expect("a command");
            assert!(mend.contains(&format!("chmod go-w {}", dir.display())), "{mend}");
            assert!(!path.exists());
        }
        set_mode(&dir, 0o755);
        drop(bind(&path, None).expect("others only look"));
        fs::remove_dir_all(dir).unwrap();
    }
}
