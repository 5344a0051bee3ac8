//! Addresses and listening sockets.
//!
//! `socket_file` handles the file of a unix socket; `server` handles accepted connections.
//!
//! Invariant: a TCP client that is not on the allow list receives no byte and gets no slot.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::{fmt, io};

use crate::connections::connection_table::PeerKey;
use crate::error::ServeError;
use crate::limits::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, UNIX_SEND_BUFFER_BYTES};
use crate::listen::allow::LiveAllowList;
use crate::listen::socket_file::{self, SocketFile};

/// Listening address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and a port.
    Tcp(SocketAddr),
    /// A unix socket in the file system.
    Unix(PathBuf),
}

impl Address {
    /// Parses `tcp:HOST:PORT`, `HOST:PORT`, `HOST` (with the default `port`) or `unix:PATH`.
    ///
    /// # Errors
    /// `Invalid`, with an example of a valid address.
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

/// Listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener, Option<LiveAllowList>),
    Unix(UnixListener, SocketFile),
}

/// Clients that may connect to a listener.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    /// Client addresses that may connect over TCP. `None` allows every address; only a protocol
    /// that authenticates its clients uses `None`.
    pub addresses: Option<LiveAllowList>,
    /// Group whose members may connect to a unix socket, in addition to the server's user.
    pub group: Option<u32>,
}

/// Accepted connection.
pub(crate) enum Incoming {
    Client(Accepted, Peer),
    /// The connection is already closed, because the client's address is not on the allow list.
    Stranger(SocketAddr),
}

/// Client of a connection, with the client's address and the local address.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Address of the client, or path of the unix socket.
    pub name: String,
    /// Local address that the client connected to.
    pub local: Address,
    /// IP address of the client; `None` for a unix socket.
    pub address: Option<IpAddr>,
    /// TCP port of the client; 0 for a unix socket.
    pub port: u16,
    /// Key of the peer. The limits for each peer count all connections with the same key.
    pub key: PeerKey,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Socket of a connection that no worker serves yet.
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
    /// Starts to listen: on TCP for clients with any address, on a unix socket only for the
    /// server's own user.
    ///
    /// # Errors
    /// `Busy` if another server listens on the address; the other server continues undisturbed.
    pub fn bind(address: &Address) -> Result<Self, ServeError> {
        Self::bind_for(address, Clients::default())
    }

    /// Starts to listen for the connections of `clients`.
    ///
    /// # Errors
    /// As for [`Self::bind`]; and `Permission` for a unix socket in a directory to which other
    /// users can write.
    pub fn bind_for(address: &Address, clients: Clients) -> Result<Self, ServeError> {
        let socket = match address {
            Address::Unix(path) => {
                let (socket, file) = socket_file::bind(path, clients.group)?;
                Socket::Unix(socket, file)
            }
            Address::Tcp(at) => {
                let fail = |source: io::Error| match source.kind() {
                    io::ErrorKind::AddrInUse => ServeError::InUse { address: address.to_string() },
                    _ => ServeError::Listen { address: address.to_string(), source },
                };
                let socket = TcpListener::bind(at).map_err(fail)?;
                socket.set_nonblocking(true).map_err(fail)?;
                Socket::Tcp(socket, clients.addresses)
            }
        };
        Ok(Self { socket })
    }

    /// Local address of the socket, with the actual port if port 0 was requested.
    pub fn address(&self) -> io::Result<Address> {
        match &self.socket {
            Socket::Tcp(socket, _) => socket.local_addr().map(Address::Tcp),
            Socket::Unix(_, file) => Ok(Address::Unix(file.path().to_owned())),
        }
    }

    /// Accepts a waiting connection and sets its socket options.
    pub(crate) fn accept(&self) -> io::Result<Incoming> {
        match &self.socket {
            Socket::Tcp(socket, allowed) => {
                let (stream, peer) = socket.accept()?;
                if allowed.as_ref().is_some_and(|allowed| !allowed.contains(peer.ip())) {
                    return Ok(Incoming::Stranger(peer));
                }
                stream.set_nodelay(true)?;
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                rustix::net::sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
                rustix::net::sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
                rustix::net::sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
                // The kernel sends no keepalive probes while sent data is unacknowledged, so limit
                // that time with TCP_USER_TIMEOUT.
                let gone = KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_PROBES;
                rustix::net::sockopt::set_tcp_user_timeout(&stream, gone.as_millis() as u32)?;
                let local = Address::Tcp(stream.local_addr()?);
                let key = PeerKey::of(peer.ip());
                let address = Some(peer.ip().to_canonical());
                let (name, port) = (peer.to_string(), peer.port());
                let peer = Peer { name, local, address, port, key };
                Ok(Incoming::Client(Accepted::Tcp(stream), peer))
            }
            Socket::Unix(socket, file) => {
                let (stream, _) = socket.accept()?;
                let room = UNIX_SEND_BUFFER_BYTES;
                rustix::net::sockopt::set_socket_send_buffer_size(&stream, room)?;
                let local = Address::Unix(file.path().to_owned());
                let user = rustix::net::sockopt::socket_peercred(&stream);
                let key = user.map_or(PeerKey::Unknown, |user| PeerKey::Uid(user.uid.as_raw()));
                let peer = Peer { name: local.to_string(), local, address: None, port: 0, key };
                Ok(Incoming::Client(Accepted::Unix(stream), peer))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(socket, _) => socket.as_fd(),
            Socket::Unix(socket, _) => socket.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::allow::AllowList;
    use weir_base::ErrorKind;

    #[test]
    fn addresses_are_parsed_and_printed() {
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
    fn port_in_use_is_reported_as_busy() {
        let first = Listener::bind(&Address::parse("127.0.0.1:0", 1).unwrap()).unwrap();
        let error = Listener::bind(&first.address().unwrap()).expect_err("in use");
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("in use"), "{error}");
    }

    #[test]
    fn client_outside_the_allow_list_is_closed_at_accept() {
        let at = Address::parse("127.0.0.1:0", 1).unwrap();
        let only = |entry: &str| Clients {
            addresses: Some(AllowList::parse([entry]).unwrap().into()),
            group: None,
        };
        for (entry, is_allowed) in [("127.0.0.0/8", true), ("127.0.0.2", false)] {
            let listener = Listener::bind_for(&at, only(entry)).unwrap();
            let Ok(Address::Tcp(port)) = listener.address() else { panic!("no port") };
            let client = std::net::TcpStream::connect(port).unwrap();
            let mut ready = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut ready, None).unwrap();
            match listener.accept().unwrap() {
                Incoming::Client(..) => assert!(is_allowed),
                Incoming::Stranger(peer) => {
                    assert!(!is_allowed);
                    assert_eq!(peer, client.local_addr().unwrap());
                }
            }
        }
    }

    #[test]
    fn accepted_sockets_have_keepalive_and_user_timeout() {
        use rustix::net::sockopt;

        let listener = Listener::bind(&Address::parse("127.0.0.1:0", 1).unwrap()).unwrap();
        let Ok(Address::Tcp(port)) = listener.address() else { panic!("no port") };
        let _client = std::net::TcpStream::connect(port).unwrap();
        let mut ready = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ready, None).unwrap();
        let Incoming::Client(Accepted::Tcp(socket), _) = listener.accept().unwrap() else {
            panic!("a client over TCP");
        };
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        let second = std::time::Duration::from_secs(1);
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), 30 * second);
        assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), 10 * second);
        assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 3);
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 60_000, "of data without an ACK");
    }
}
