//! Sockets the management interface listens on.
//!
//! Not here: what is served on them (`server`).
//!
//! Invariants:
//! - a unix socket is open to its owner and the group `weir`, and never to other users, not even
//!   for a moment: it gets its group and mode before it listens;
//! - mode and group are set on the socket that was made, by descriptor: a link that takes its place
//!   meanwhile is not followed;
//! - a socket file on which a process answers, or a file that is no socket, is never removed.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::door::Door;
use crate::guard::HostRule;
use crate::limits::ACCEPT_QUEUE;
use crate::tls::Tls;
use crate::{Address, Error};

/// A socket that listens.
#[derive(Debug)]
pub struct Listener {
    address: Address,
    pub(crate) socket: Socket,
    pub(crate) hosts: HostRule,
}

#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixListener, SocketFile, Door),
    Tcp(TcpListener, Option<Tls>),
}

/// How TCP is protected.
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// The certificate; without one TCP is plain.
    pub tls: Option<Tls>,
    /// Plain TCP also beyond this machine.
    pub open: bool,
}

impl Listener {
    /// Listens on `address`; port 0 picks a free one.
    ///
    /// # Errors
    /// [`Error::InUse`] when somebody listens there; a socket file left by a process that is gone
    /// is replaced.
    pub fn bind(address: &Address) -> Result<Self, Error> {
        Self::bind_protected(address, &Protection::default())
    }

    /// As [`Self::bind`], over TCP with TLS.
    ///
    /// # Errors
    /// [`Error::Plain`] for an address beyond this machine without TLS.
    pub fn bind_protected(address: &Address, protection: &Protection) -> Result<Self, Error> {
        match address {
            Address::Unix(path) => Self::bind_behind(path, Door::of_this_process()),
            Address::Tcp { host, port } => bind_tcp(address, host, *port, protection),
        }
    }

    /// Listens on a unix socket for the users that `door` lets in.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_behind(path: &Path, door: Door) -> Result<Self, Error> {
        let (listener, file) = bind_unix(path, &door)?;
        let (address, socket) =
            (Address::Unix(path.to_owned()), Socket::Unix(listener, file, door));
        Ok(Self { address, socket, hosts: HostRule::Any })
    }

    /// Where it listens, with the port that was picked.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

fn bind_tcp(
    address: &Address,
    host: &str,
    port: u16,
    protection: &Protection,
) -> Result<Listener, Error> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => Error::InUse { address: address.to_string() },
        _ => Error::Listen { address: address.to_string(), source },
    };
    let listener = TcpListener::bind((host, port)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let Protection { tls, open } = protection;
    if !bound.ip().is_loopback() && tls.is_none() {
        if !open {
            return Err(Error::Plain { address: address.to_string() });
        }
        tracing::warn!(
            address = %bound,
            "the management interface is plain TCP beyond this machine (--api-open): whoever reads \
             the network has every token that is used here"
        );
    }
    let address = Address::Tcp { host: host.to_owned(), port: bound.port() };
    // With TLS the client checks the name, against the certificate.
    let hosts = match tls {
        Some(_) => HostRule::Any,
        None => HostRule::Known { bound: bound.ip(), name: host.to_ascii_lowercase() },
    };
    Ok(Listener { address, socket: Socket::Tcp(listener, tls.clone()), hosts })
}

fn bind_unix(path: &Path, door: &Door) -> Result<(UnixListener, SocketFile), Error> {
    let failed = |source: Errno| Error::Listen {
        address: Address::Unix(path.to_owned()).to_string(),
        source: source.into(),
    };
    let name = SocketAddrUnix::new(path).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(failed)?;
    match rustix::net::bind(&fd, &name) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path)?;
            rustix::net::bind(&fd, &name).map_err(failed)?;
        }
        other => other.map_err(failed)?,
    }
    // A socket that is bound and does not listen yet refuses everybody.
    let file = admit_group(path, door).map_err(failed)?;
    rustix::net::listen(&fd, ACCEPT_QUEUE).map_err(failed)?;
    Ok((UnixListener::from(fd), file))
}

/// Opens the socket at `path` to its owner and to the group, if there is one.
fn admit_group(path: &Path, door: &Door) -> rustix::io::Result<SocketFile> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(Errno::NOTSOCK);
    }
    let mut mode = Mode::RUSR | Mode::WUSR;
    if let Some(group) = door.group() {
        let group = Some(Gid::from_raw(group));
        rustix::fs::chownat(&file, "", None, group, AtFlags::EMPTY_PATH)?;
        mode |= Mode::RGRP | Mode::WGRP;
    }
    // A descriptor that is only a place takes no fchmod; its name under /proc is the file itself.
    rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)?;
    Ok(SocketFile { path: path.to_owned(), dev: stat.st_dev, ino: stat.st_ino })
}

/// Makes the directory of the default socket, or checks the one that is there: another user who
/// could write to it could put a socket of its own in the place of the server's.
///
/// # Errors
/// [`Error::Directory`] for a link, a file, or a directory that other users may write to.
pub fn prepare_socket_dir(dir: &Path) -> Result<(), Error> {
    let refused = |why: String| Error::Directory { path: dir.to_owned(), why };
    let failed = |error: Errno| refused(error.to_string());
    let own = rustix::process::geteuid();
    if let Some(parent) = dir.parent() {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(|error| refused(error.to_string()))?;
    }
    let made = match rustix::fs::mkdir(dir, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(failed(error)),
    };
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(CWD, dir, flags, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return Err(refused("it is a link or a file".to_owned()));
        }
        other => other.map_err(failed)?,
    };
    let stat = rustix::fs::fstat(&fd).map_err(failed)?;
    if stat.st_uid != 0 && stat.st_uid != own.as_raw() {
        return Err(refused(format!("it belongs to the user {}", stat.st_uid)));
    }
    if made && own.is_root() {
        // Members of the group pass through it to the socket.
        let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
        rustix::fs::fchmod(&fd, mode).map_err(failed)?;
    } else if stat.st_mode & 0o022 != 0 {
        return Err(refused("other users may write to it".to_owned()));
    }
    Ok(())
}

fn remove_stale(path: &Path) -> Result<(), Error> {
    let address = || Address::Unix(path.to_owned()).to_string();
    let failed = |source| Error::Listen { address: address(), source };
    let meta = std::fs::symlink_metadata(path).map_err(failed)?;
    if !meta.file_type().is_socket() {
        return Err(Error::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(_) => Err(Error::InUse { address: address() }),
    }
}

/// Removes the socket's file when dropped, unless it is another one by then.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    dev: u64,
    ino: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| meta.dev() == self.dev && meta.ino() == self.ino);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket file");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn unix(dir: &tempfile::TempDir) -> Address {
        Address::Unix(dir.path().join("api.sock"))
    }

    #[test]
    fn socket_is_closed_to_other_users_and_goes_away() {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&unix(&dir)).unwrap();
        let path = dir.path().join("api.sock");
        let mode = if Door::of_this_process().group().is_some() { 0o660 } else { 0o600 };
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn group_gets_the_socket_and_a_link_in_its_place_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        let _socket = UnixListener::bind(&path).unwrap();
        let own = rustix::process::getegid().as_raw();
        let group = if rustix::process::geteuid().is_root() { 990 } else { own };
        let _file = admit_group(&path, &Door::new(0, Some(group))).unwrap();
        let meta = path.metadata().unwrap();
        assert_eq!((meta.gid(), meta.permissions().mode() & 0o777), (group, 0o660));
        // A stranger's link, put there between bind and chmod, once opened its target to the group.
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "").unwrap();
        std::fs::set_permissions(&victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        assert_eq!(admit_group(&link, &Door::new(0, Some(group))).unwrap_err(), Errno::NOTSOCK);
        assert_eq!(victim.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn directory_of_the_default_socket_that_others_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let fresh = dir.path().join("run/weir");
        prepare_socket_dir(&fresh).unwrap();
        prepare_socket_dir(&fresh).unwrap();
        assert_eq!(fresh.metadata().unwrap().permissions().mode() & 0o022, 0);
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = prepare_socket_dir(&fresh).expect_err("open to all");
        assert!(error.to_string().contains("may write"), "{error}");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(matches!(prepare_socket_dir(&link), Err(Error::Directory { .. })));
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        // std leaves the file behind, like a process that was killed.
        drop(UnixListener::bind(&path).unwrap());
        let first = Listener::bind(&unix(&dir)).unwrap();
        assert!(matches!(Listener::bind(&unix(&dir)), Err(Error::InUse { .. })));
        assert!(UnixStream::connect(&path).is_ok(), "the live one was touched");
        // Somebody else's socket at the same path outlives ours.
        std::fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(UnixStream::connect(&path).is_ok());
        drop(other);
    }

    #[test]
    fn other_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&unix(&dir)), Err(Error::NotASocket { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn plain_listener_beyond_this_machine_is_refused_with_the_command() {
        let all = Address::parse("0.0.0.0:0", 0).unwrap();
        let error = crate::ApiError::from(Listener::bind(&all).expect_err("plain"));
        assert!(error.action.contains("--tls-cert"), "{}", error.action);
        let open = Protection { open: true, tls: None };
        Listener::bind_protected(&all, &open).unwrap();
    }

    #[test]
    fn errors_name_the_place() {
        let dir = tempfile::tempdir().unwrap();
        let absent = Address::Unix(dir.path().join("absent/api.sock"));
        let long = Address::Unix(dir.path().join("a".repeat(200)));
        for address in [absent, long] {
            let error = Listener::bind(&address).expect_err("refused").to_string();
            assert!(error.contains(&address.to_string()), "{error}");
        }
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = Address::loopback(taken.local_addr().unwrap().port());
        assert!(matches!(Listener::bind(&address), Err(Error::InUse { .. })));
    }
}
