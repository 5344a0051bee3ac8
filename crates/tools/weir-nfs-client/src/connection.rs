//! Connection: a non-blocking socket with an exchange. Sends as much as the socket accepts, and
//! receives as much as is available.
//!
//! [`Client`](crate::Client) runs calls one after the other; `exchange` interprets the replies.
//!
//! Invariants: large read data is received directly into the caller's buffer; after an error, the
//! caller must not use the connection again.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;

use crate::error::NfsError;
use crate::exchange::{Buffers, Done, Exchange, Identity, Request};
use crate::limits::{DIRECT_BYTES_MIN, MOUNT_LIMIT, RECEIVE_BYTES};
use crate::socket::{self, SourcePort, timespec};

/// Maximum number of slices in one send: 32 writes, each with a header, its data and padding.
const PIECES: usize = 96;

/// Connection to a server.
pub struct Connection {
    stream: TcpStream,
    source: SourcePort,
    exchange: Exchange,
    received: Vec<u8>,
    /// Start of the received bytes that are not processed yet, in `received`.
    from: usize,
    /// End of the received bytes that are not processed yet, in `received`.
    to: usize,
}

impl Connection {
    /// Connects to a server from the address `source`, for at most `calls_max` calls in flight.
    /// Takes at most 10 s ([`MOUNT_LIMIT`]).
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn open(
        host: &str,
        port: u16,
        source: Option<IpAddr>,
        identity: Identity,
        calls_max: usize,
    ) -> Result<Self, NfsError> {
        let (stream, source) = socket::open(host, port, source, Instant::now() + MOUNT_LIMIT)?;
        // Servers recognize a repeated call by its transaction id and the address of the client.
        // With a random first number, a call never equals one of an earlier connection.
        let xid = getrandom::u32().map_err(|error| io::Error::other(error.to_string()))?;
        let exchange = Exchange::new(identity, xid, calls_max);
        Ok(Self { stream, source, exchange, received: vec![0; RECEIVE_BYTES], from: 0, to: 0 })
    }

    /// Source port of the connection.
    pub const fn source(&self) -> SourcePort {
        self.source
    }

    /// Exchange that this connection runs.
    pub const fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Submits a call; a later [`Self::send`] sends it.
    ///
    /// # Panics
    /// See [`Exchange::submit`].
    pub fn submit(&mut self, tag: u64, request: &Request<'_>, buffers: &impl Buffers) {
        self.exchange.submit(tag, request, buffers);
    }

    /// Sends as many queued bytes as the socket accepts.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn send(&mut self, buffers: &impl Buffers) -> Result<(), NfsError> {
        while self.exchange.has_outgoing() {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let count = self.exchange.outgoing(buffers, &mut pieces);
            let sent = self.stream.write_vectored(pieces.get(..count).unwrap_or_default());
            match sent {
                Ok(0) => return Err(NfsError::Closed),
                Ok(sent) => self.exchange.sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Receives the available bytes once; returns false if no bytes are available. Appends the
    /// calls that completed to `done`.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn receive(
        &mut self,
        buffers: &mut impl Buffers,
        done: &mut Vec<Done>,
    ) -> Result<bool, NfsError> {
        let place = self.exchange.place();
        let direct =
            place.filter(|place| self.from == self.to && place.range.len() >= DIRECT_BYTES_MIN);
        let got = match direct {
            // Receive the remaining bytes of large read data directly into the caller's buffer, and
            // any bytes after them into the connection's own buffer.
            Some(place) => {
                (self.from, self.to) = (0, 0);
                let wanted = place.range.len();
                let data = buffers.data_mut(place.slot).get_mut(place.range).unwrap_or_default();
                let mut parts = [IoSliceMut::new(data), IoSliceMut::new(&mut self.received)];
                let got = self.stream.read_vectored(&mut parts);
                if let Ok(got) = &got {
                    self.exchange.placed((*got).min(wanted));
                    self.to = got.saturating_sub(wanted);
                }
                got
            }
            None => {
                self.received.copy_within(self.from..self.to, 0);
                (self.from, self.to) = (0, self.to - self.from);
                let got = self.stream.read(self.received.get_mut(self.to..).unwrap_or_default());
                self.to += *got.as_ref().unwrap_or(&0);
                got
            }
        };
        let is_anything = match got {
            Ok(0) => return Err(NfsError::Closed),
            Ok(_) => {
                let bytes = self.received.get(self.from..self.to).unwrap_or_default();
                self.from += self.exchange.take(bytes, buffers)?;
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(error) => return Err(error.into()),
        };
        self.exchange.take_done(done);
        Ok(is_anything)
    }

    /// Waits for at most `limit` until the socket is readable or, if bytes are queued, writable.
    ///
    /// # Errors
    /// The system call failed.
    pub fn wait(&self, limit: Duration) -> Result<(), NfsError> {
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, self.exchange.has_outgoing());
        match poll(&mut [PollFd::new(&self.stream, wanted)], Some(&timespec(limit))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Runs one call and waits for its reply, for at most `limit`. No other call may be in flight.
    ///
    /// # Errors
    /// The connection is lost, or the server did not reply in time.
    pub fn call(
        &mut self,
        request: &Request<'_>,
        buffers: &mut impl Buffers,
        limit: Duration,
    ) -> Result<Done, NfsError> {
        let deadline = Instant::now() + limit;
        let mut done = Vec::new();
        self.submit(0, request, buffers);
        loop {
            self.send(buffers)?;
            let is_anything = self.receive(buffers, &mut done)?;
            if let Some(done) = done.pop() {
                return Ok(done);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (what, seconds) = ("a call", limit.as_secs());
                return Err(NfsError::Timeout { what, seconds });
            }
            if !is_anything {
                self.wait(left)?;
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for Connection {
    /// Resets a connection from a reserved port. There are only 359 such ports, and a normal close
    /// reserves the port for another minute. Calls without a reply are lost in any case.
    fn drop(&mut self) {
        if self.source.is_reserved() {
            // If the option cannot be set, the connection is closed normally.
            sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).ok();
        }
    }
}
