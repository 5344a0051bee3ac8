//! Addresses and listening sockets.
//!
//! Not here: what happens to a connection (`server`).
//!
//! Invariants:
//! - a unix socket somebody answers on is never replaced, and nothing but a socket is ever removed;
//! - a unix socket's file is gone once its listener is dropped, unless another took its place.

use std::fmt;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::error::ServeError;
use crate::limits::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, UNIX_SEND_BUFFER_BYTES};
use crate::places::PeerKey;

/// Owner and group may connect: the group decides who may use the volumes.
const SOCKET_MODE: u32 = 0o660;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and a port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Address {
    /// Reads `tcp:HOST:PORT`, `HOST:PORT`, `HOST` (port `port`) or `unix:PATH`.
    ///
    /// # Errors
    /// `Invalid`, with what a good one looks like.
    pub fn parse(text: &str, port: u16) -> Result<Self, ServeError> {
        let bad = |why: String| ServeError::Address { text: text.to_owned(), why, port };
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(bad("the path is empty".to_owned()));
            }
            return Ok(Self::Unix(path.into()));
        }
        let host = text.strip_prefix("tcp:").unwrap_or(text);
        if host.is_empty() || host.contains('/') {
            return Err(bad("no host".to_owned()));
        }
        if let Ok(address) = host.trim_matches(['[', ']']).parse() {
            return Ok(Self::Tcp(SocketAddr::new(address, port)));
        }
        let found = if host.contains(':') {
            host.to_socket_addrs()
        } else {
            (host, port).to_socket_addrs()
        };
        let first = found.map_err(|error| bad(error.to_string()))?.next();
        first.map(Self::Tcp).ok_or_else(|| bad("the host has no address".to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix { socket: UnixListener, path: PathBuf, inode: u64 },
}

/// Who connected, and where to.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The client's address, or the socket's path.
    pub name: String,
    /// The address of this side, as the client reached it.
    pub local: Address,
    /// Whom its connections are counted for.
    pub key: PeerKey,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The socket of a connection that no worker has.
pub(crate) enum Accepted {
    Tcp(std::net::TcpStream),
    Unix(UnixStream),
}

impl AsFd for Accepted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

impl Listener {
    /// Starts to listen.
    ///
    /// # Errors
    /// `Busy` where another server listens there; that server is not disturbed.
    pub fn bind(address: &Address) -> Result<Self, ServeError> {
        let fail = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ServeError::InUse { address: address.to_string() },
            _ => ServeError::Listen { address: address.to_string(), source },
        };
        let socket = match address {
            Address::Tcp(at) => TcpListener::bind(at).map(Socket::Tcp),
            Address::Unix(path) => bind_unix(path),
        };
        let listener = Self { socket: socket.map_err(fail)? };
        listener.set_nonblocking().map_err(fail)?;
        Ok(listener)
    }

    /// Where it listens; with the real port where port 0 was asked for.
    pub fn address(&self) -> io::Result<Address> {
        match &self.socket {
            Socket::Tcp(socket) => socket.local_addr().map(Address::Tcp),
            Socket::Unix { path, .. } => Ok(Address::Unix(path.clone())),
        }
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match &self.socket {
            Socket::Tcp(socket) => socket.set_nonblocking(true),
            Socket::Unix { socket, .. } => socket.set_nonblocking(true),
        }
    }

    /// Takes a waiting connection and sets it up.
    pub(crate) fn accept(&self) -> io::Result<(Accepted, Peer)> {
        match &self.socket {
            Socket::Tcp(socket) => {
                let (stream, peer) = socket.accept()?;
                stream.set_nodelay(true)?;
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                rustix::net::sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
                rustix::net::sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
                rustix::net::sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
                // Keepalive does not run while sent data is unacknowledged; this does.
                let gone = KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_PROBES;
                rustix::net::sockopt::set_tcp_user_timeout(&stream, gone.as_millis() as u32)?;
                let local = Address::Tcp(stream.local_addr()?);
                let key = PeerKey::of(peer.ip());
                Ok((Accepted::Tcp(stream), Peer { name: peer.to_string(), local, key }))
            }
            Socket::Unix { socket, path, .. } => {
                let (stream, _) = socket.accept()?;
                let room = UNIX_SEND_BUFFER_BYTES;
                rustix::net::sockopt::set_socket_send_buffer_size(&stream, room)?;
                let local = Address::Unix(path.clone());
                let user = rustix::net::sockopt::socket_peercred(&stream);
                let key = user.map_or(PeerKey::Unknown, |user| PeerKey::Uid(user.uid.as_raw()));
                Ok((Accepted::Unix(stream), Peer { name: local.to_string(), local, key }))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(socket) => socket.as_fd(),
            Socket::Unix { socket, .. } => socket.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Socket::Unix { path, inode, .. } = &self.socket {
            let ours = fs::symlink_metadata(path).is_ok_and(|found| found.ino() == *inode);
            if ours && let Err(error) = fs::remove_file(path) {
                tracing::debug!(path = %path.display(), %error, "socket file not removed");
            }
        }
    }
}

fn bind_unix(path: &Path) -> io::Result<Socket> {
    let socket = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path)?;
            UnixListener::bind(path)?
        }
        other => other?,
    };
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
    let inode = fs::symlink_metadata(path)?.ino();
    Ok(Socket::Unix { socket, path: path.to_owned(), inode })
}

/// Removes the socket of a server that is no more.
fn remove_stale(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is no socket has this name",
        ));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // It answered, or it may: leave it.
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::ErrorKind;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("weir-serve-{}-{name}", std::process::id()));
        drop(fs::remove_file(&path));
        path
    }

    #[test]
    fn addresses_are_read_and_printed() {
        for (text, printed) in [
            ("tcp:127.0.0.1:5000", "tcp:127.0.0.1:5000"),
            ("127.0.0.1:5000", "tcp:127.0.0.1:5000"),
            ("127.0.0.1", "tcp:127.0.0.1:10809"),
            ("[::1]:5000", "tcp:[::1]:5000"),
            ("::1", "tcp:[::1]:10809"),
            ("unix:/run/nbd.sock", "unix:/run/nbd.sock"),
        ] {
            assert_eq!(Address::parse(text, 10809).expect(text).to_string(), printed);
        }
        for text in ["", "unix:", "tcp:", "/run/nbd.sock", "127.0.0.1:99999", "127.0.0.1:x"] {
            let error = Address::parse(text, 10809).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
    }

    #[test]
    fn a_port_in_use_is_said_so() {
        let first = Listener::bind(&Address::parse("127.0.0.1:0", 1).unwrap()).unwrap();
        let error = Listener::bind(&first.address().unwrap()).expect_err("in use");
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("in use"), "{error}");
    }

    #[test]
    fn a_live_socket_is_kept_and_a_stale_one_replaced() {
        let path = scratch("live.sock");
        let address = Address::Unix(path.clone());
        let first = Listener::bind(&address).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, SOCKET_MODE);
        assert_eq!(Listener::bind(&address).expect_err("live").kind(), ErrorKind::Busy);
        drop(first);
        assert!(!path.exists(), "removed with its listener");

        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dead server leaves its socket");
        drop(Listener::bind(&address).expect("stale sockets are replaced"));
    }

    #[test]
    fn a_file_in_the_way_is_not_removed() {
        let path = scratch("file");
        fs::write(&path, "precious").unwrap();
        let error = Listener::bind(&Address::Unix(path.clone())).expect_err("a file");
        assert!(error.to_string().contains("cannot listen"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
    }
}
