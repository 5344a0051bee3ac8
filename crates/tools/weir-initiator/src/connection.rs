//! Connection: a non-blocking socket with an exchange. Sends as much as the socket accepts, and
//! receives as much as is available.
//!
//! [`Session`](crate::Session) runs commands one after the other; `exchange` interprets PDUs.
//!
//! Invariants: large read data is received directly into the caller's buffer; after an error, the
//! caller must not use the connection again.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cdb::Cdb;
use crate::error::InitiatorError;
use crate::exchange::{Buffers, Data, Done, Exchange};
use crate::handshake;
use crate::limits::{DIRECT_BYTES_MIN, LOGOUT_LIMIT, RECEIVE_BYTES};
use crate::login::Purpose;
use crate::negotiated::Negotiated;
use crate::options::LoginOptions;
use crate::url::Url;

/// Maximum number of slices in one send: 32 writes, each with a header, its data and a digest.
const PIECES: usize = 96;

/// Numbers of bytes sent and received on a socket, including headers and padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireBytes {
    /// Bytes sent to the target.
    pub sent: u64,
    /// Bytes received from the target.
    pub received: u64,
}

/// Connection of a session in full feature phase, with a non-blocking socket.
pub struct Connection {
    stream: TcpStream,
    pub(super) exchange: Exchange,
    received: Vec<u8>,
    /// Start of the received bytes that are not processed yet, in `received`.
    from: usize,
    /// End of the received bytes that are not processed yet, in `received`.
    to: usize,
    wire: WireBytes,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, exchange: Exchange, wire: WireBytes) -> Self {
        Self { stream, exchange, received: vec![0; RECEIVE_BYTES], from: 0, to: 0, wire }
    }

    /// Connects and logs in to the logical unit of a URL. The connection has `slots` command slots.
    ///
    /// # Errors
    /// The login failed.
    pub fn open(url: &Url, options: &LoginOptions, slots: usize) -> Result<Self, InitiatorError> {
        let purpose = Purpose::Target(url.target.clone());
        handshake::connect(&url.host, url.port, options, &purpose, (url.lun, slots))
    }

    /// Parameters that the login negotiated.
    pub const fn negotiated(&self) -> &Negotiated {
        self.exchange.negotiated()
    }

    /// Number of bytes sent and received on the socket, including the login.
    pub const fn wire_bytes(&self) -> WireBytes {
        self.wire
    }

    /// Exchange that this connection runs.
    pub const fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    pub(crate) const fn exchange_mut(&mut self) -> &mut Exchange {
        &mut self.exchange
    }

    /// Submits a command in a free slot; a later [`Self::send`] sends the command.
    ///
    /// # Panics
    /// See [`Exchange::submit`].
    pub fn submit(&mut self, slot: usize, cdb: Cdb, data: Data, buffers: &impl Buffers) {
        self.exchange.submit(slot, cdb, data, buffers);
    }

    /// Sends as many queued bytes as the socket accepts.
    ///
    /// # Errors
    /// The session is lost.
    pub fn send(&mut self, buffers: &impl Buffers) -> Result<(), InitiatorError> {
        while self.exchange.has_outgoing() {
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let count = self.exchange.outgoing(buffers, &mut pieces);
            let sent = self.stream.write_vectored(pieces.get(..count).unwrap_or_default());
            match sent {
                Ok(0) => return Err(InitiatorError::Closed),
                Ok(sent) => {
                    self.wire.sent += sent as u64;
                    self.exchange.sent(sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Receives the available bytes once; returns false if no bytes are available. Appends the
    /// commands that completed to `done`.
    ///
    /// # Errors
    /// The session is lost.
    pub fn receive(
        &mut self,
        buffers: &mut impl Buffers,
        done: &mut Vec<Done>,
    ) -> Result<bool, InitiatorError> {
        let got = match self
            .exchange
            .place()
            .filter(|place| self.from == self.to && place.range.len() >= DIRECT_BYTES_MIN)
        {
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
            Ok(0) => return Err(InitiatorError::Closed),
            Ok(got) => {
                self.wire.received += got as u64;
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
    pub fn wait(&self, limit: Option<Duration>) -> Result<(), InitiatorError> {
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, self.exchange.has_outgoing());
        let spec = limit.map(|left| Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        match poll(&mut [PollFd::new(&self.stream, wanted)], spec.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Logs out, and waits at most 2 s for the target ([`LOGOUT_LIMIT`]). No command may be in
    /// flight.
    ///
    /// # Errors
    /// The target did not complete the logout. After this call the connection is unusable, even if
    /// the logout succeeded.
    pub fn log_out(&mut self) -> Result<(), InitiatorError> {
        let (give_up, mut nothing) = (Instant::now() + LOGOUT_LIMIT, Nothing);
        self.exchange.log_out();
        while !self.exchange.is_logged_out() {
            let left = give_up.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (what, seconds) = ("logging out", LOGOUT_LIMIT.as_secs());
                return Err(InitiatorError::Timeout { what, seconds });
            }
            self.send(&nothing)?;
            if !self.receive(&mut nothing, &mut Vec::new())? {
                self.wait(Some(left))?;
            }
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Caller's buffers without slots, for connections that run no commands, such as discovery.
pub(crate) struct Nothing;

impl Buffers for Nothing {
    fn data(&self, _: usize) -> &[u8] {
        &[]
    }

    fn data_mut(&mut self, _: usize) -> &mut [u8] {
        &mut []
    }
}
