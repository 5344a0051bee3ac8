//! Listening sockets of the management interface.
//!
//! `server` accepts connections from the sockets; `weir_net::bind_unix` creates the file of a unix
//! socket and checks its directory.
//!
//! Invariant: a unix socket is open only to its owner and the group `weir`, in a directory that no
//! other user can write to.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use weir_net::{ServeError, SocketFile};

use crate::guard::HostRule;
use crate::limits::ACCEPT_QUEUE;
use crate::tls::Tls;
use crate::unix_access::UnixAccess;
use crate::{Address, Error};

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    address: Address,
    pub(crate) socket: Socket,
    pub(crate) hosts: HostRule,
}

#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixListener, SocketFile, UnixAccess),
    Tcp(TcpListener, Option<Tls>),
}

/// TLS settings of a listener for TCP.
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// The certificate and its key; without them TCP connections are unencrypted.
    pub tls: Option<Tls>,
    /// Allow unencrypted TCP connections from other machines.
    pub open: bool,
}

impl Listener {
    /// Listens on `address`; with port 0, the system selects a free port.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process listens on the address. The socket file of a process
    /// that has ended is replaced.
    pub fn bind(address: &Address) -> Result<Self, Error> {
        Self::bind_protected(address, &Protection::default())
    }

    /// Listens like [`Self::bind`]; TCP connections use TLS.
    ///
    /// # Errors
    /// [`Error::Plain`] for an address that other machines can reach, without TLS.
    pub fn bind_protected(address: &Address, protection: &Protection) -> Result<Self, Error> {
        match address {
            Address::Unix(path) => Self::bind_behind(path, UnixAccess::of_this_process()),
            Address::Tcp { host, port } => bind_tcp(address, host, *port, protection),
        }
    }

    /// Listens on a unix socket for the users that `unix_access` accepts.
    ///
    /// # Errors
    /// The errors of [`Self::bind`]; [`Error::Directory`] if another user could replace the socket.
    pub fn bind_behind(path: &Path, unix_access: UnixAccess) -> Result<Self, Error> {
        let (listener, file) = weir_net::bind_unix(path, unix_access.group()).map_err(unusable)?;
        lengthen_queue(&listener).map_err(|source| {
            let address = Address::Unix(path.to_owned()).to_string();
            Error::Listen { address, source }
        })?;
        let (address, socket) =
            (Address::Unix(path.to_owned()), Socket::Unix(listener, file, unix_access));
        Ok(Self { address, socket, hosts: HostRule::Any })
    }

    /// Returns the address of the socket, with the port that the system selected.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

/// Lengthens the kernel's accept queue. The standard library requests 128 entries, too few for 200
/// concurrent calls: a unix socket refuses connections that do not fit.
fn lengthen_queue(listener: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::listen(listener, ACCEPT_QUEUE)?)
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
    lengthen_queue(&listener).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let Protection { tls, open } = protection;
    if !bound.ip().is_loopback() && tls.is_none() {
        if !open {
            return Err(Error::Plain { address: address.to_string() });
        }
        tracing::warn!(
            address = %bound,
            "the management interface is reachable from other machines without TLS (--api-open): \
             network traffic exposes all tokens that are used"
        );
    }
    let address = Address::Tcp { host: host.to_owned(), port: bound.port() };
    // With TLS, the client compares the host name with the certificate, so any name is allowed.
    let hosts = match tls {
        Some(_) => HostRule::Any,
        None => HostRule::Known { bound: bound.ip(), name: host.to_ascii_lowercase() },
    };
    Ok(Listener { address, socket: Socket::Tcp(listener, tls.clone()), hosts })
}

/// Converts an error from the creation of a unix socket.
fn unusable(error: ServeError) -> Error {
    match error {
        ServeError::InUse { address } => Error::InUse { address },
        ServeError::NotASocket { path } => Error::NotASocket { path },
        ServeError::Directory { path, why, mend, .. } => Error::Directory { path, why, mend },
        ServeError::Listen { address, source } => Error::Listen { address, source },
        other => Error::Listen { address: "unix".to_owned(), source: io::Error::other(other) },
    }
}

/// Creates the directory of the default socket if it is missing. When the socket is bound, the
/// server checks whether other users may write to the directory.
///
/// # Errors
/// [`Error::Directory`] for a link, a file, or a directory that cannot be created.
pub fn prepare_socket_dir(dir: &Path) -> Result<(), Error> {
    let refused = |why: String| Error::Directory {
        path: dir.to_owned(),
        why,
        mend: format!("ls -ld {0}, then remove it", dir.display()),
    };
    let failed = |error: Errno| refused(error.to_string());
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
    if made && rustix::process::geteuid().is_root() {
        // Members of the group need access to the socket in this directory.
        let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
        rustix::fs::fchmod(&fd, mode).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn unix(dir: &tempfile::TempDir) -> Address {
        Address::Unix(dir.path().join("api.sock"))
    }

    #[test]
    fn socket_is_private_and_removed_on_drop() {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&unix(&dir)).unwrap();
        let path = dir.path().join("api.sock");
        let mode = if UnixAccess::of_this_process().group().is_some() { 0o660 } else { 0o600 };
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn socket_in_a_directory_that_others_write_to_is_refused_with_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let fresh = dir.path().join("run/weir");
        prepare_socket_dir(&fresh).unwrap();
        prepare_socket_dir(&fresh).unwrap();
        let socket = Address::Unix(fresh.join("api.sock"));
        drop(Listener::bind(&socket).unwrap());
        for bits in [0o777, 0o1777] {
            std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(bits)).unwrap();
            let error = crate::ApiError::from(Listener::bind(&socket).expect_err("open to all"));
            assert!(error.message.contains("may write"), "{error}");
            assert!(error.action.contains(&format!("chmod go-w {}", fresh.display())), "{error}");
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(matches!(prepare_socket_dir(&link), Err(Error::Directory { .. })));
    }

    #[test]
    fn stale_socket_is_replaced_and_live_socket_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        // When std drops the listener, the socket file remains, as after a server that was killed.
        drop(UnixListener::bind(&path).unwrap());
        let first = Listener::bind(&unix(&dir)).unwrap();
        assert!(matches!(Listener::bind(&unix(&dir)), Err(Error::InUse { .. })));
        assert!(UnixStream::connect(&path).is_ok(), "the live one was touched");
        // If another process has bound a new socket at this path, dropping the listener must not
        // remove it.
        std::fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(UnixStream::connect(&path).is_ok());
        drop(other);
    }

    #[test]
    fn file_at_the_socket_path_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("api.sock");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&unix(&dir)), Err(Error::NotASocket { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn unencrypted_listener_beyond_this_machine_is_refused() {
        let all = Address::parse("0.0.0.0:0", 0).unwrap();
        let error = crate::ApiError::from(Listener::bind(&all).expect_err("plain"));
        assert!(error.action.contains("--tls-cert"), "{}", error.action);
        let open = Protection { open: true, tls: None };
        Listener::bind_protected(&all, &open).unwrap();
    }

    #[test]
    fn errors_name_the_address() {
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
