//! TCP connections from a reserved source port.
//!
//! `connection` uses the socket.
//!
//! Invariants: every attempt to connect ends at its deadline; the socket is non-blocking.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};

use crate::error::NfsError;
use crate::limits::RESERVED_PORTS;

/// Source port of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePort(pub u16);

impl SourcePort {
    /// True if only a privileged process can bind the port. Servers without the option `insecure`
    /// require such a port.
    pub const fn is_reserved(self) -> bool {
        self.0 < 1024
    }

    /// The port, if it is no reserved port.
    pub(crate) const fn unreserved(self) -> Option<u16> {
        if self.is_reserved() { None } else { Some(self.0) }
    }
}

/// Connects to a server from the address `source`, and from a reserved port if this process may
/// bind one.
pub(crate) fn open(
    host: &str,
    port: u16,
    source: Option<IpAddr>,
    deadline: Instant,
) -> Result<(TcpStream, SourcePort), NfsError> {
    let failed = |source| NfsError::Connect { server: format!("{host}:{port}"), source };
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs().map_err(failed)? {
        match open_to(address, source, deadline) {
            Ok(stream) => {
                let source = stream.local_addr().map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                return Ok((stream, SourcePort(source.port())));
            }
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

fn open_to(
    address: SocketAddr,
    source: Option<IpAddr>,
    deadline: Instant,
) -> io::Result<TcpStream> {
    let any = match address {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let from = |port| SocketAddr::new(source.unwrap_or(any), port);
    for port in RESERVED_PORTS.rev() {
        match open_from(Some(from(port)), address, deadline) {
            Ok(stream) => return Ok(stream),
            // Another socket has the port, or a connection between these ports has just ended.
            Err(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL) => {}
            Err(Errno::ACCESS | Errno::PERM) => break,
            Err(error) => return Err(error.into()),
        }
    }
    // The kernel chooses port 0 of a given address, and both without one.
    let from = source.map(|_| from(0));
    open_from(from, address, deadline).map_err(Into::into)
}

/// Connects to `address` from `source`; `None`: from any address and port.
fn open_from(
    source: Option<SocketAddr>,
    address: SocketAddr,
    deadline: Instant,
) -> Result<TcpStream, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    if let Some(source) = source {
        bind(&socket, &source)?;
    }
    match connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => wait_connected(&socket, deadline)?,
        Err(error) => return Err(error),
    }
    Ok(TcpStream::from(socket))
}

fn wait_connected(socket: &OwnedFd, deadline: Instant) -> Result<(), Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        match poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&timespec(left))) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return sockopt::socket_error(socket)?,
            Err(error) => return Err(error),
        }
    }
}

pub(crate) fn timespec(limit: Duration) -> Timespec {
    Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: i64::from(limit.subsec_nanos()) }
}
