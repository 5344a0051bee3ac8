//! Exchange: the calls of one connection as a state machine without a socket (RFC 5531, RFC 1813).
//! The exchange encodes the calls and processes the received bytes. `connection` has the socket.
//!
//! The data of READ and WRITE is in the buffers of the caller ([`Buffers`]); the exchange copies
//! only small amounts that it received together with other replies.
//!
//! Invariants:
//! - replies may come in any order; a reply to an unknown call ends the connection;
//! - a call is done when its reply has arrived and its data was sent;
//! - the client decodes a reply only against the types of its call, and never receives more data
//!   than the call requested.

use std::io::IoSlice;

use weir_block::OutBuf;

use crate::error::NfsError;

mod calls;
mod identity;
mod input;
mod output;
mod reply;
mod request;

pub use identity::Identity;
pub(crate) use input::Place;
pub use reply::{Body, Done, Reply};
pub use request::{Buffers, Request};

use calls::Calls;
use input::Input;
use output::Output;

/// Protocol state of one connection.
pub struct Exchange {
    identity: Identity,
    /// Transaction id of the next call.
    xid: u32,
    calls: Calls,
    output: Output,
    /// Buffer in which a call is encoded.
    scratch: OutBuf,
    input: Input,
}

impl Exchange {
    /// Creates an exchange for at most `calls_max` calls in flight (1 to
    /// [`CALLS_MAX`](crate::limits::CALLS_MAX)). `xid` is the first transaction id: a random
    /// number, because servers recognize repeated calls by it.
    pub fn new(identity: Identity, xid: u32, calls_max: usize) -> Self {
        Self {
            identity,
            xid,
            calls: Calls::new(calls_max),
            output: Output::default(),
            scratch: OutBuf::default(),
            input: Input::default(),
        }
    }

    /// Number of calls that are not done.
    pub const fn under_way(&self) -> usize {
        self.calls.under_way()
    }

    /// True if [`Self::submit`] accepts another call.
    pub const fn has_room(&self) -> bool {
        self.calls.has_room()
    }

    /// Encodes a call and queues it for sending. `tag` identifies the call in its [`Done`].
    ///
    /// # Panics
    /// The maximum number of calls is in flight ([`Self::has_room`]), or the range is outside of
    /// the buffer of its slot.
    pub fn submit(&mut self, tag: u64, request: &Request<'_>, buffers: &impl Buffers) {
        assert!(self.has_room(), "the maximum number of calls is in flight");
        let (xid, index) = self.calls.free(self.xid);
        self.xid = xid.wrapping_add(1);
        let (target, name, kind) = calls::description(request);
        let piece = match request {
            Request::Write { slot, range, .. } if !range.is_empty() => Some((*slot, range.clone())),
            _ => None,
        };
        if let Request::Read { slot, range, .. } | Request::Write { slot, range, .. } = request {
            assert!(buffers.data(*slot).get(range.clone()).is_some(), "{range:?} of slot {slot}");
        }
        self.scratch.truncate(0);
        output::encode(&mut self.scratch, xid, target, &self.identity, request);
        self.output.put(self.scratch.filled());
        let is_queued = piece.is_some();
        if let Some((slot, range)) = piece {
            self.output.put_piece(slot, range, index);
        }
        self.calls.add((xid, index), tag, (name, kind), is_queued);
    }

    /// Fills `pieces` with slices of the queued bytes, starting at the front of the queue. Returns
    /// the number of slices.
    pub fn outgoing<'a>(&'a self, buffers: &'a impl Buffers, pieces: &mut [IoSlice<'a>]) -> usize {
        self.output.pieces(buffers, pieces)
    }

    /// True if bytes are queued for sending.
    pub fn has_outgoing(&self) -> bool {
        !self.output.is_empty()
    }

    /// Records that the socket accepted this many bytes of [`Self::outgoing`].
    pub fn sent(&mut self, mut bytes: usize) {
        while bytes > 0 {
            if let Some(index) = self.output.sent(&mut bytes) {
                self.calls.sent(index);
            }
        }
    }

    /// Moves the completed calls to `done`.
    pub fn take_done(&mut self, done: &mut Vec<Done>) {
        done.append(&mut self.calls.done);
    }

    /// Number of completed calls that [`Self::take_done`] has not moved yet.
    pub const fn done(&self) -> usize {
        self.calls.done.len()
    }

    /// Place for the next bytes from the socket, if these bytes are the data of a READ. The caller
    /// may receive the bytes there, and must then call [`Self::placed`].
    pub(crate) fn place(&self) -> Option<Place> {
        self.input.place()
    }

    /// Records that the caller received this many bytes into the place that [`Self::place`]
    /// returned.
    pub fn placed(&mut self, bytes: usize) {
        self.input.placed(bytes);
    }

    /// Processes received bytes. Returns the number of bytes used. The caller passes the unused
    /// bytes again, followed by further bytes; fewer than 4 +
    /// [`HEAD_BYTES_MAX`](crate::limits::HEAD_BYTES_MAX) bytes remain unused.
    ///
    /// # Errors
    /// The server violated the protocol; the connection is lost.
    pub fn take(&mut self, bytes: &[u8], buffers: &mut impl Buffers) -> Result<usize, NfsError> {
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            match self.input.step(rest, &mut self.calls, buffers)? {
                Some(now) => used += now,
                None => return Ok(used),
            }
        }
    }
}

#[cfg(test)]
mod tests;
