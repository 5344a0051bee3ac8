//! Table of the calls in flight, and the assignment of replies to calls.
//!
//! `reply` decodes the results.
//!
//! Invariants: a record contains exactly one reply; a reply to an unknown call, or a second reply
//! to a call, is an error.

use weir_nfs_wire::nfs3::{Args, PROGRAM, Procedure, VERSION};
use weir_oncrpc::message::{self, AcceptStat, Rejected, ReplyBody};

use super::reply::{Done, Kind, Reply, decode, upper};
use super::request::{Buffers, Request, Target};
use crate::error::NfsError;
use crate::limits::CALLS_MAX;
use crate::refusal::Refusal;

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

/// Calls that are not done, and the completed calls that the caller has not taken yet.
pub(super) struct Calls {
    /// Calls in flight, at the index of the low bits of their transaction ids. The table has twice
    /// as many entries as calls, so a free entry is found after few steps.
    entries: Vec<Option<Call>>,
    max: usize,
    under_way: usize,
    pub(super) done: Vec<Done>,
}

impl Calls {
    /// Table for at most `max` calls in flight (1 to [`CALLS_MAX`]).
    pub(super) fn new(max: usize) -> Self {
        let max = max.clamp(1, CALLS_MAX);
        Self { entries: table(max), max, under_way: 0, done: Vec::new() }
    }

    pub(super) const fn under_way(&self) -> usize {
        self.under_way
    }

    pub(super) const fn has_room(&self) -> bool {
        self.under_way < self.max
    }

    /// Finds the first transaction id from `xid` whose entry is free. The table must have room.
    pub(super) fn free(&self, mut xid: u32) -> (u32, usize) {
        loop {
            let index = self.index(xid);
            if self.entries.get(index).is_some_and(Option::is_none) {
                return (xid, index);
            }
            xid = xid.wrapping_add(1);
        }
    }

    /// Adds a call at a free index. `is_queued` is true if the output queue refers to its data.
    pub(super) fn add(
        &mut self,
        (xid, index): (u32, usize),
        tag: u64,
        (name, kind): (&'static str, Kind),
        is_queued: bool,
    ) {
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = Some(Call { xid, tag, name, kind, is_queued, reply: None });
            self.under_way += 1;
        }
    }

    /// Records that the data of a call was sent completely.
    pub(super) fn sent(&mut self, index: usize) {
        if let Some(call) = self.entries.get_mut(index).and_then(Option::as_mut) {
            call.is_queued = false;
        }
        self.finish(index);
    }

    /// Completes a call if its reply has arrived and the output queue no longer refers to its data.
    fn finish(&mut self, index: usize) {
        let Some(place) = self.entries.get_mut(index) else { return };
        let is_done = |call: &mut Call| !call.is_queued && call.reply.is_some();
        if let Some(Call { tag, name, reply: Some(reply), .. }) = place.take_if(is_done) {
            self.under_way -= 1;
            self.done.push(Done { tag, name, reply });
        }
    }

    /// Decodes a complete record.
    pub(super) fn take_record(
        &mut self,
        record: &[u8],
        buffers: &mut impl Buffers,
    ) -> Result<(), NfsError> {
        let malformed = |source| NfsError::Reply { what: "a call", source };
        let (header, results) = message::Reply::decode(record).map_err(malformed)?;
        let index = self.find(header.xid)?;
        let call = self.entries.get(index).and_then(Option::as_ref);
        let Some((name, kind)) = call.map(|call| (call.name, &call.kind)) else { return Ok(()) };
        let refusal = match header.body {
            ReplyBody::Accepted { stat: AcceptStat::Success, .. } => None,
            ReplyBody::Accepted { stat, .. } => Some(Refusal::Accept(stat)),
            ReplyBody::Denied(Rejected::AuthError(stat)) => Some(Refusal::Auth(stat)),
            ReplyBody::Denied(Rejected::RpcMismatch { low, high }) => {
                Some(Refusal::Version { low, high })
            }
        };
        let reply = match refusal {
            Some(refusal) => Reply::Refused(refusal),
            None => {
                let decoded = decode(kind, &results, buffers);
                decoded.map_err(|source| NfsError::Reply { what: name, source })?
            }
        };
        self.end(index, reply);
        Ok(())
    }

    /// Records the reply to a call.
    pub(super) fn end(&mut self, index: usize, reply: Reply) {
        if let Some(call) = self.entries.get_mut(index).and_then(Option::as_mut) {
            call.reply = Some(reply);
        }
        self.finish(index);
    }

    /// Type of the results of a call.
    pub(super) fn kind(&self, index: usize) -> Option<&Kind> {
        self.entries.get(index).and_then(Option::as_ref).map(|call| &call.kind)
    }

    /// Index of a transaction id in the table.
    const fn index(&self, xid: u32) -> usize {
        xid as usize & (self.entries.len() - 1)
    }

    /// Index of the call with this transaction id that has no reply yet.
    pub(super) fn find(&self, xid: u32) -> Result<usize, NfsError> {
        let index = self.index(xid);
        let call = self.entries.get(index).and_then(Option::as_ref);
        match call.filter(|call| call.xid == xid && call.reply.is_none()) {
            Some(_) => Ok(index),
            None => Err(NfsError::Protocol { why: "a reply to an unknown call" }),
        }
    }
}

/// Empty table of calls. Its length is a power of two, and at least twice the number of calls.
fn table(max: usize) -> Vec<Option<Call>> {
    (0..(2 * max).next_power_of_two()).map(|_| None).collect()
}

/// Procedure of a request, its name, and the type of its results.
pub(super) fn description(request: &Request<'_>) -> (Target, &'static str, Kind) {
    let nfs = |procedure: Procedure| (PROGRAM, VERSION, procedure.number());
    match request {
        Request::Nfs(args) => {
            let procedure = args.procedure();
            let kind = match args {
                Args::Write(write) => Kind::Write { bytes: write.data.bytes().len() },
                _ => Kind::Nfs(procedure),
            };
            (nfs(procedure), upper(procedure), kind)
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
