//! Lane of an NFS target: one connection with the calls of all slots.
//!
//! `transfer` splits data operations into calls, `metadata` has the other operations, and
//! `verifier` tracks unstable writes.
//!
//! Invariants:
//! - data of reads and writes moves directly between the socket and the slot's buffer;
//! - a lane never reuses a failed connection, and never repeats a call;
//! - every wait has a limit: a lane without a completion for [`ANSWER_LIMIT`] is lost.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_nfs_client::limits::CALLS_MAX;
use weir_nfs_client::{Connection, Done as Ended, Reply, Request, io_error};
use weir_nfs_wire::nfs3::{Args, CommitArgs, StableHow};

use super::metadata::{Listing, Pending};
use super::transfer::{Direction, Flush, PIECES_MAX, Transfer};
use super::verifier::Uncommitted;
use super::{Mount, failed};
use crate::spec::OpKind;
use crate::target::buffers::Buffers;
use crate::target::error::TargetError;
use crate::target::lane::{ANSWER_LIMIT, Done, Lane, Op, Wait};
use crate::target::metadata::MetadataOp;

/// Maximum interval between two checks for a server that does not reply.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of receives in one `reap`, because the calls of an operation with several pieces
/// could keep the lane busy for long.
const RECEIVES_MAX: usize = 1024;

/// Operation of a slot.
pub(super) enum Work {
    Transfer(Transfer),
    Flush(Flush),
    /// A metadata operation of one call at a time.
    Metadata(Pending),
    /// A listing of a directory.
    Listing(Listing),
}

struct Memory(Buffers);

impl weir_nfs_client::Buffers for Memory {
    fn data(&self, slot: usize) -> &[u8] {
        self.0.at(slot)
    }

    fn data_mut(&mut self, slot: usize) -> &mut [u8] {
        self.0.of(slot)
    }
}

pub(super) struct NfsLane {
    connection: Connection,
    pub(super) mount: Arc<Mount>,
    memory: Memory,
    pub(super) work: Vec<Option<Work>>,
    pub(super) uncommitted: Uncommitted,
    ended: Vec<Ended>,
    /// Operations that ended without a call.
    pub(super) refused: Vec<(usize, io::Error)>,
    /// Time of the last completion, or of the last submission to an idle lane.
    answered: Instant,
}

/// Tag of a call: its slot, and the start of its piece or the index of its file.
fn tag(slot: usize, part: u32) -> u64 {
    (slot as u64) << 32 | u64::from(part)
}

impl NfsLane {
    pub(super) fn open(
        mount: Arc<Mount>,
        slots: usize,
        buffer_bytes: usize,
    ) -> Result<Self, TargetError> {
        let calls_max = slots.saturating_mul(PIECES_MAX as usize);
        if calls_max > CALLS_MAX {
            let why = format!("a lane has at most {} slots", CALLS_MAX / PIECES_MAX as usize);
            return Err(TargetError::Protocol { address: mount.address.clone(), why });
        }
        let identity = mount.identity.clone();
        let connection = Connection::open(&mount.url.host, mount.url.port, identity, calls_max)
            .map_err(failed(&mount.address))?;
        Ok(Self {
            connection,
            mount,
            memory: Memory(Buffers::new(slots, buffer_bytes)),
            work: (0..slots).map(|_| None).collect(),
            uncommitted: Uncommitted::default(),
            ended: Vec::new(),
            refused: Vec::new(),
            answered: Instant::now(),
        })
    }

    fn send(&mut self) -> Result<(), TargetError> {
        self.connection.send(&self.memory).map_err(failed(&self.mount.address))
    }

    /// Submits a call without data in the buffer of the slot.
    pub(super) fn call(&mut self, slot: usize, part: u32, args: &Args<'_>) {
        self.connection.submit(tag(slot, part), &Request::Nfs(args), &self.memory);
    }

    /// Submits the calls that the operation of a slot can send now.
    pub(super) fn advance(&mut self, slot: usize) {
        match &mut self.work[slot] {
            Some(Work::Transfer(transfer)) => {
                while let Some(range) = transfer.next() {
                    submit(&mut self.connection, &self.memory, slot, transfer, range);
                }
            }
            Some(Work::Flush(flush)) => {
                while let Some(file) = flush.next() {
                    self.uncommitted.begin_commit(slot, file);
                    let handle = self.mount.files[file];
                    // A count of 0 means the whole file.
                    let args = CommitArgs { file: handle.wire(), offset: 0, count: 0 };
                    let request = Request::Nfs(&Args::Commit(args));
                    self.connection.submit(tag(slot, file as u32), &request, &self.memory);
                }
            }
            Some(Work::Metadata(_) | Work::Listing(_)) | None => {}
        }
    }

    /// Processes the reply to a call. Returns the result of the operation if it is complete.
    fn take(&mut self, ended: Ended) -> Result<Option<io::Result<()>>, TargetError> {
        let (slot, part) = ((ended.tag >> 32) as usize, ended.tag as u32);
        let error = match &ended.reply {
            Reply::Failed(status) => Some(io_error(ended.name, *status)),
            Reply::Refused(refusal) => Some(io::Error::other(format!(
                "{}: the server refuses the call: {refusal}",
                ended.name
            ))),
            _ => None,
        };
        let Some(work) = &mut self.work[slot] else { return Err(self.unexpected()) };
        match (work, ended.reply) {
            (Work::Transfer(transfer), reply) => {
                if let Some(error) = error {
                    transfer.failed(error);
                } else if let Reply::Read { bytes, eof } = reply {
                    if let Some(rest) = transfer.replied(part, bytes, eof) {
                        submit(&mut self.connection, &self.memory, slot, transfer, rest);
                    }
                } else if let Reply::Write { bytes, committed, verifier } = reply {
                    if let Direction::Write(requested) = transfer.direction
                        && committed < requested
                    {
                        let why = "WRITE: the data is less stable than requested";
                        transfer.note(io::Error::other(why));
                    }
                    if let Some(file) = transfer.file
                        && let Err(lost) = self.uncommitted.wrote(file, committed, verifier)
                    {
                        transfer.note(lost);
                    }
                    if let Some(rest) = transfer.replied(part, bytes, false) {
                        submit(&mut self.connection, &self.memory, slot, transfer, rest);
                    }
                } else {
                    return Err(self.unexpected());
                }
                let result = transfer.result();
                self.advance(slot);
                Ok(result)
            }
            (Work::Flush(flush), reply) => {
                let file = part as usize;
                let result = match (error, reply) {
                    (Some(error), _) => {
                        self.uncommitted.commit_failed(slot, file);
                        Err(error)
                    }
                    (None, Reply::Commit { verifier }) => {
                        self.uncommitted.committed(slot, file, verifier)
                    }
                    _ => return Err(self.unexpected()),
                };
                flush.replied(result);
                let result = flush.result();
                self.advance(slot);
                Ok(result)
            }
            (Work::Metadata(_) | Work::Listing(_), reply) => match (error, reply) {
                (Some(error), _) => Ok(Some(Err(error))),
                (None, Reply::Other(body)) => {
                    let address = self.mount.address.clone();
                    let results = body.results().map_err(failed(&address))?;
                    self.continue_metadata(slot, &results)
                }
                _ => Err(self.unexpected()),
            },
        }
    }

    pub(super) fn unexpected(&self) -> TargetError {
        let why = "the server violates the protocol: a reply of another procedure".to_owned();
        TargetError::Protocol { address: self.mount.address.clone(), why }
    }

    /// Processes the completed calls, and moves completed operations to `done`.
    fn take_ended(&mut self, done: &mut Vec<Done>) -> Result<(), TargetError> {
        let at = Instant::now();
        for ended in std::mem::take(&mut self.ended) {
            let slot = (ended.tag >> 32) as usize;
            if let Some(result) = self.take(ended)? {
                self.work[slot] = None;
                done.push(Done { slot, result, at });
            }
        }
        for (slot, error) in self.refused.drain(..) {
            done.push(Done { slot, result: Err(error), at });
        }
        Ok(())
    }

    /// Returns an error if the server has completed no operation within [`ANSWER_LIMIT`].
    fn check_limit(&self) -> Result<(), TargetError> {
        if self.answered.elapsed() < ANSWER_LIMIT {
            return Ok(());
        }
        let (what, seconds) = ("any operation", ANSWER_LIMIT.as_secs());
        Err(TargetError::NoAnswer { address: self.mount.address.clone(), what, seconds })
    }

    fn begin(&mut self, slot: usize) {
        assert!(self.work[slot].is_none(), "one operation per slot");
        if self.work.iter().all(Option::is_none) {
            self.answered = Instant::now();
        }
    }
}

/// Submits one call of a transfer.
fn submit(
    connection: &mut Connection,
    memory: &Memory,
    slot: usize,
    transfer: &Transfer,
    range: Range<u32>,
) {
    let tag = tag(slot, range.start);
    let (file, offset) = (&transfer.handle, transfer.offset + u64::from(range.start));
    let range = range.start as usize..range.end as usize;
    let request = match transfer.direction {
        Direction::Read => Request::Read { file, offset, slot, range },
        Direction::Write(stable) => Request::Write { file, offset, stable, slot, range },
    };
    connection.submit(tag, &request, memory);
}

impl Lane for NfsLane {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        assert!(self.work[slot].is_none(), "the server's reply goes into this buffer");
        self.memory.0.of(slot)
    }

    fn submit(&mut self, slot: usize, op: &Op) -> Result<(), TargetError> {
        self.begin(slot);
        let (file, offset) = self.mount.place(op.offset);
        let handle = self.mount.files[file];
        let transfer = |direction, piece_bytes| {
            let lengths = (op.len_bytes, piece_bytes);
            Work::Transfer(Transfer::new(direction, handle, Some(file), offset, lengths))
        };
        let work = match op.kind {
            OpKind::Read => transfer(Direction::Read, self.mount.read_bytes),
            OpKind::Write => {
                let asked = self.mount.url.stability.wire();
                let stable = if op.durable { StableHow::FileSync } else { asked };
                transfer(Direction::Write(stable), self.mount.write_bytes)
            }
            OpKind::Flush => Work::Flush(Flush::new(self.uncommitted.files())),
            _ => unreachable!("a run with an operation that its target has not is refused"),
        };
        self.work[slot] = Some(work);
        self.advance(slot);
        self.send()
    }

    fn submit_metadata(&mut self, slot: usize, op: &MetadataOp) -> Result<(), TargetError> {
        self.begin(slot);
        self.begin_metadata(slot, op);
        self.send()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError> {
        let before = done.len();
        loop {
            self.send()?;
            // Receive until the socket has no data left or there is a completion for each slot.
            for _ in 0..RECEIVES_MAX {
                let received = self.connection.receive(&mut self.memory, &mut self.ended);
                let is_anything = received.map_err(failed(&self.mount.address))?;
                self.take_ended(done)?;
                if !is_anything || done.len() - before >= self.work.len() {
                    break;
                }
            }
            let none_under_way = self.work.iter().all(Option::is_none);
            if done.len() > before || none_under_way {
                self.answered = Instant::now();
            }
            if done.len() > before || wait == Wait::No || (none_under_way && wait == Wait::One) {
                // Send the next calls of operations with several calls.
                return self.send();
            }
            self.check_limit()?;
            let mut limit = POLL_INTERVAL;
            if let Wait::Until(until) = wait {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return self.send();
                }
                limit = limit.min(left);
            }
            self.send()?;
            self.connection.wait(limit).map_err(failed(&self.mount.address))?;
        }
    }
}
