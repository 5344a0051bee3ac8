//! Sockets the management interface listens on.
//!
//! Not here: what is served on them (`server`).
//!
//! Invariants:
//! - a unix socket is never open to other users, not even for a moment: it gets its mode before it
//!   listens;
//! - a socket file somebody answers on, or a file that is no socket, is never removed.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::guard::HostRule;
use crate::limits::ACCEPT_QUEUE;
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
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens on `address`; port 0 picks a free one.
    ///
    /// # Errors
    /// [`Error::InUse`] when somebody listens there; a socket file left by a process that is gone
    /// is replaced.
    pub fn bind(address: &Address) -> Result<Self, Error> {
        match address {
            Address::Unix(path) => {
                let (listener, file) = bind_unix(path)?;
                let socket = Socket::Unix(listener, file);
                Ok(Self { address: address.clone(), socket, hosts: HostRule::Any })
            }
            Address::Tcp { host, port } => bind_tcp(address, host, *port),
        }
    }

    /// Where it listens, with the port that was picked.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

fn bind_tcp(address: &Address, host: &str, port: u16) -> Result<Listener, Error> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => Error::InUse { address: address.to_string() },
        _ => Error::Listen { address: address.to_string(), source },
    };
    let listener = TcpListener::bind((host, port)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    if !bound.ip().is_loopback() {
        tracing::warn!(
            address = %bound,
            "the management interface can be reached from other machines and asks for no \
             password: anybody there can destroy pools"
        );
    }
    let address = Address::Tcp { host: host.to_owned(), port: bound.port() };
    let hosts = HostRule::Known { bound: bound.ip(), name: host.to_ascii_lowercase() };
    Ok(Listener { address, socket: Socket::Tcp(listener), hosts })
}

fn bind_unix(path: &Path) -> Result<(UnixListener, SocketFile), Error> {
    let failed = |source: rustix::io::Errno| Error::Listen {
        address: Address::Unix(path.to_owned()).to_string(),
        source: source.into(),
    };
    let name = SocketAddrUnix::new(path).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(failed)?;
    match rustix::net::bind(&fd, &name) {
        Err(rustix::io::Errno::ADDRINUSE) => {
            remove_stale(path)?;
            rustix::net::bind(&fd, &name).map_err(failed)?;
        }
        other => other.map_err(failed)?,
    }
    // A socket that is bound and does not listen yet refuses everybody.
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    rustix::net::listen(&fd, ACCEPT_QUEUE).map_err(failed)?;
    let meta = std::fs::symlink_metadata(path).map_err(|source| Error::Listen {
        address: Address::Unix(path.to_owned()).to_string(),
        source,
    })?;
    let file = SocketFile { path: path.to_owned(), dev: meta.dev(), ino: meta.ino() };
    Ok((UnixListener::from(fd), file))
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
    fn a_socket_is_private_and_goes_away() {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&unix(&dir)).unwrap();
        let path = dir.path().join("api.sock");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
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
