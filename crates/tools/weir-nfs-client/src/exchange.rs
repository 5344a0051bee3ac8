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
use std::ops::Range;

use weir_block::OutBuf;
use weir_nfs_wire::nfs3::{Args, Nfsstat3, PROGRAM, Procedure, StableHow, VERSION, Verifier};
use weir_oncrpc::message::{AcceptStat, AuthStat};
use weir_oncrpc::{Decoder, Xdr as _};

use crate::error::NfsError;
use crate::handle::Handle;
use crate::limits::CALLS_MAX;

mod identity;
mod input;
mod output;
mod reply;

pub use identity::Identity;
pub use reply::Body;

use input::Input;
use output::Output;

/// Data buffers of READ and WRITE. The caller owns the buffers; each slot has one.
pub trait Buffers {
    /// Buffer with the data of a WRITE.
    fn data(&self, slot: usize) -> &[u8];
    /// Buffer for the data of a READ.
    fn data_mut(&mut self, slot: usize) -> &mut [u8];
}

/// A call to submit.
#[derive(Debug)]
pub enum Request<'a> {
    /// A procedure of NFSv3. The exchange copies all arguments, also the data of WRITE.
    Nfs(&'a Args<'a>),
    /// READ into a range of the buffer of a slot.
    Read {
        /// File to read.
        file: &'a Handle,
        /// Offset of the first byte in the file.
        offset: u64,
        /// Slot of the buffer.
        slot: usize,
        /// Range of the buffer; its length is the number of bytes to read.
        range: Range<usize>,
    },
    /// WRITE from a range of the buffer of a slot.
    Write {
        /// File to write.
        file: &'a Handle,
        /// Offset of the first byte in the file.
        offset: u64,
        /// Requested stability.
        stable: StableHow,
        /// Slot of the buffer.
        slot: usize,
        /// Range of the buffer with the data.
        range: Range<usize>,
    },
    /// A procedure of another program.
    Other {
        /// Number of the program.
        program: u32,
        /// Version of the program.
        version: u32,
        /// Number of the procedure.
        procedure: u32,
        /// Name of the procedure in errors.
        name: &'static str,
        /// Encoded arguments.
        args: &'a [u8],
    },
}

/// Reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// READ succeeded.
    Read {
        /// Number of received bytes, at the start of the range; at most its length.
        bytes: u32,
        /// True if the read ended at the end of the file.
        eof: bool,
    },
    /// WRITE succeeded.
    Write {
        /// Number of bytes that the server wrote; at most the length of the range.
        bytes: u32,
        /// Stability of the data.
        committed: StableHow,
        /// Write verifier of the server.
        verifier: Verifier,
    },
    /// COMMIT succeeded.
    Commit {
        /// Write verifier of the server.
        verifier: Verifier,
    },
    /// Another procedure succeeded, or is no procedure of NFS.
    Other(Body),
    /// A procedure of NFS failed.
    Failed(Nfsstat3),
    /// The server refused the call in its RPC header.
    Refused(Refusal),
}

/// Reason why a server did not run a procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The server offers no such program, version or procedure, or cannot run it.
    #[error("{0:?}")]
    Accept(AcceptStat),
    /// The server does not accept the credential.
    #[error("authentication error {0:?}")]
    Auth(AuthStat),
    /// The server offers another version of RPC.
    #[error("the server offers RPC versions {low} to {high}")]
    Version {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
}

/// A completed call.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    /// Tag that the caller gave the call.
    pub tag: u64,
    /// Name of the procedure.
    pub name: &'static str,
    /// Reply of the server.
    pub reply: Reply,
}

/// Type of the results of a call.
#[derive(Clone, Debug)]
enum Kind {
    Read { slot: usize, range: Range<usize> },
    Write { bytes: usize },
    Nfs(Procedure),
    Other,
}

/// A call that is not done.
#[derive(Debug)]
struct Call {
    xid: u32,
    tag: u64,
    name: &'static str,
    kind: Kind,
    /// True while the output queue refers to the data of the call.
    is_queued: bool,
    reply: Option<Reply>,
}

/// Program, version and procedure of a call.
type Target = (u32, u32, u32);

/// Protocol state of one connection.
pub struct Exchange {
    identity: Identity,
    /// Transaction id of the next call.
    xid: u32,
    /// Calls in flight, at the index of the low bits of their transaction ids. The table has twice
    /// as many entries as calls, so a free entry is found after few steps.
    calls: Vec<Option<Call>>,
    calls_max: usize,
    under_way: usize,
    output: Output,
    /// Buffer in which a call is encoded.
    scratch: OutBuf,
    input: Input,
    done: Vec<Done>,
}

/// Range of a caller's buffer for the next bytes from the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Slot of the buffer.
    pub slot: usize,
    /// Range of the buffer.
    pub range: Range<usize>,
}

impl Exchange {
    /// Creates an exchange for at most `calls_max` calls in flight (1 to [`CALLS_MAX`]). `xid` is
    /// the first transaction id: a random number, because servers recognize repeated calls by it.
    pub fn new(identity: Identity, xid: u32, calls_max: usize) -> Self {
        let calls_max = calls_max.clamp(1, CALLS_MAX);
        Self {
            identity,
            xid,
            calls: table(calls_max),
            calls_max,
            under_way: 0,
            output: Output::default(),
            scratch: OutBuf::default(),
            input: Input::default(),
            done: Vec::new(),
        }
    }

    /// Changes the maximum number of calls in flight.
    ///
    /// # Panics
    /// Calls are in flight.
    pub fn set_calls_max(&mut self, calls_max: usize) {
        assert!(self.under_way == 0, "a change of the table loses its calls");
        self.calls_max = calls_max.clamp(1, CALLS_MAX);
        self.calls = table(self.calls_max);
    }

    /// Number of calls that are not done.
    pub const fn under_way(&self) -> usize {
        self.under_way
    }

    /// True if [`Self::submit`] accepts another call.
    pub const fn has_room(&self) -> bool {
        self.under_way < self.calls_max
    }

    /// Encodes a call and queues it for sending. `tag` identifies the call in its [`Done`].
    ///
    /// # Panics
    /// The maximum number of calls is in flight ([`Self::has_room`]), or the range is outside of
    /// the buffer of its slot.
    pub fn submit(&mut self, tag: u64, request: &Request<'_>, buffers: &impl Buffers) {
        assert!(self.has_room(), "the maximum number of calls is in flight");
        let index = loop {
            let index = self.index(self.xid);
            if self.calls.get(index).is_some_and(Option::is_none) {
                break index;
            }
            self.xid = self.xid.wrapping_add(1);
        };
        let xid = self.xid;
        self.xid = xid.wrapping_add(1);
        let (target, name, kind) = description(request);
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
        let call = Call { xid, tag, name, kind, is_queued, reply: None };
        if let Some(place) = self.calls.get_mut(index) {
            *place = Some(call);
            self.under_way += 1;
        }
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
            let Some(index) = self.output.sent(&mut bytes) else { continue };
            if let Some(call) = self.calls.get_mut(index).and_then(Option::as_mut) {
                call.is_queued = false;
            }
            self.finish(index);
        }
    }

    /// Completes a call if its reply has arrived and the output queue no longer refers to its data.
    fn finish(&mut self, index: usize) {
        let Some(place) = self.calls.get_mut(index) else { return };
        let is_done = |call: &mut Call| !call.is_queued && call.reply.is_some();
        if let Some(Call { tag, name, reply: Some(reply), .. }) = place.take_if(is_done) {
            self.under_way -= 1;
            self.done.push(Done { tag, name, reply });
        }
    }

    /// Moves the completed calls to `done`.
    pub fn take_done(&mut self, done: &mut Vec<Done>) {
        done.append(&mut self.done);
    }

    /// Number of completed calls that [`Self::take_done`] has not moved yet.
    pub const fn done(&self) -> usize {
        self.done.len()
    }

    /// Place for the next bytes from the socket, if these bytes are the data of a READ. The caller
    /// may receive the bytes there, and must then call [`Self::placed`].
    pub fn place(&self) -> Option<Place> {
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
            match self.step(rest, buffers)? {
                Some(now) => used += now,
                None => return Ok(used),
            }
        }
    }

    /// Index of a transaction id in the table.
    const fn index(&self, xid: u32) -> usize {
        xid as usize & (self.calls.len() - 1)
    }

    /// Index of the call with this transaction id that has no reply yet.
    fn find(&self, xid: u32) -> Result<usize, NfsError> {
        let index = self.index(xid);
        let call = self.calls.get(index).and_then(Option::as_ref);
        match call.filter(|call| call.xid == xid && call.reply.is_none()) {
            Some(_) => Ok(index),
            None => Err(NfsError::Protocol { why: "a reply to an unknown call" }),
        }
    }
}

/// Empty table of calls. Its length is a power of two, and at least twice the number of calls.
fn table(calls_max: usize) -> Vec<Option<Call>> {
    (0..(2 * calls_max).next_power_of_two()).map(|_| None).collect()
}

/// Procedure of a request, its name, and the type of its results.
fn description(request: &Request<'_>) -> (Target, &'static str, Kind) {
    let nfs = |procedure: Procedure| (PROGRAM, VERSION, procedure.number());
    match request {
        Request::Nfs(args) => {
            let procedure = args.procedure();
            let kind = match args {
                Args::Write(write) => Kind::Write { bytes: write.data.bytes().len() },
                _ => Kind::Nfs(procedure),
            };
            (nfs(procedure), reply::upper(procedure), kind)
        }
        Request::Read { slot, range, .. } => {
            let kind = Kind::Read { slot: *slot, range: range.clone() };
            (nfs(Procedure::Read), "READ", kind)
        }
        Request::Write { range, .. } => {
            (nfs(Procedure::Write), "WRITE", Kind::Write { bytes: range.len() })
        }
        Request::Other { program, version, procedure, name, .. } => {
            ((*program, *version, *procedure), name, Kind::Other)
        }
    }
}

/// Reads the status at the start of the results of a procedure. `None` means success (NFS3_OK).
fn status(results: &Decoder<'_>) -> Result<Option<Nfsstat3>, weir_oncrpc::XdrError> {
    let mut input = results.clone();
    if input.clone().u32()? == 0 { Ok(None) } else { Nfsstat3::decode(&mut input).map(Some) }
}

#[cfg(test)]
mod tests;
