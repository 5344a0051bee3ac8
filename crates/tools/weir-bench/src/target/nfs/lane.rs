//! Lane of an NFS target: one connection with the calls of all slots.
//!
//! `transfer` splits data operations into calls, `metadata` and `listing` have the other
//! operations, `verifier` tracks unstable writes, and `retries` has the calls to send again.
//!
//! Invariants:
//! - a lane never reuses a failed connection, and sends a call again only after NFS3ERR_JUKEBOX;
//! - every wait has a limit: a lane without a reply for [`ANSWER_LIMIT`] is lost, and for
//!   [`FINISH_LIMIT`] at the end of a load.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_nfs_client::{Done as Ended, Reply, io_error};
use weir_nfs_wire::nfs3::{Args, CommitArgs, Nfsstat3, Results, StableHow};

use super::channel::{Channel, origin};
use super::listing::Listing;
use super::metadata::{Metadata, Next};
use super::mount::{Mount, failed};
use super::retries::{LIMIT as RETRY_LIMIT, Retries};
use super::transfer::{Direction, Flush, Transfer};
use super::verifier::Uncommitted;
use crate::spec::OpKind;
use crate::target::error::TargetError;
use crate::target::lane::{ANSWER_LIMIT, Done, Lane, Op, Wait};
use crate::target::metadata::{MetadataCall, MetadataOp};

/// Maximum interval between two checks for a server that does not reply.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of receives in one `reap`, because the calls of an operation with several pieces
/// could keep the lane busy for long.
const RECEIVES_MAX: usize = 1024;

/// Time without a reply, after which a server counts as lost while it executes the COMMIT calls at
/// the end of a load: enough for 64 GiB of unstable data and a disk of 110 MB/s.
const FINISH_LIMIT: Duration = Duration::from_mins(10);

/// Operation of a slot.
enum Work {
    Transfer(Transfer),
    /// Content of a new file, and the operation that created it.
    Fill(Transfer, Metadata),
    Flush(Flush),
    /// A metadata operation of one call at a time.
    Metadata(Metadata),
    /// A listing of a directory.
    Listing(Listing),
}

pub(super) struct NfsLane {
    channel: Channel,
    mount: Arc<Mount>,
    work: Vec<Option<Work>>,
    uncommitted: Uncommitted,
    retries: Retries,
    ended: Vec<Ended>,
    /// Operations that ended without a call.
    refused: Vec<(usize, io::Error)>,
    /// Time of the last reply, or of the last submission to an idle lane.
    answered: Instant,
    /// Maximum time without a reply.
    answer_limit: Duration,
}

/// Submits the COMMIT of a whole file.
fn commit(
    channel: &mut Channel,
    uncommitted: &mut Uncommitted,
    mount: &Mount,
    (slot, file): (usize, usize),
) {
    uncommitted.begin_commit(slot, file);
    // A count of 0 means the whole file.
    let args = CommitArgs { file: mount.files[file].wire(), offset: 0, count: 0 };
    channel.call(slot, file as u32, &Args::Commit(args));
}

/// Error of a call; `None` if the call succeeded.
fn error_of(ended: &Ended) -> Option<io::Error> {
    match &ended.reply {
        Reply::Failed(status @ Nfsstat3::Jukebox) => {
            let error = io_error(ended.name, *status);
            Some(io::Error::new(error.kind(), format!("{error} for {RETRY_LIMIT:?}")))
        }
        Reply::Failed(status) => Some(io_error(ended.name, *status)),
        Reply::Refused(refusal) => Some(io::Error::other(format!(
            "{}: the server refuses the call: {refusal}",
            ended.name
        ))),
        _ => None,
    }
}

impl NfsLane {
    pub(super) fn open(
        mount: Arc<Mount>,
        slots: usize,
        buffer_bytes: usize,
    ) -> Result<Self, TargetError> {
        Ok(Self {
            channel: Channel::open(&mount, slots, buffer_bytes)?,
            mount,
            work: (0..slots).map(|_| None).collect(),
            uncommitted: Uncommitted::default(),
            retries: Retries::new(slots),
            ended: Vec::new(),
            refused: Vec::new(),
            answered: Instant::now(),
            answer_limit: ANSWER_LIMIT,
        })
    }

    /// Submits the calls that the operation of a slot can send now.
    fn advance(&mut self, slot: usize) {
        match &mut self.work[slot] {
            Some(Work::Transfer(transfer) | Work::Fill(transfer, _)) => {
                while let Some(range) = transfer.next() {
                    self.channel.piece(slot, transfer, range);
                }
            }
            Some(Work::Flush(flush)) => {
                while let Some(file) = flush.next() {
                    commit(&mut self.channel, &mut self.uncommitted, &self.mount, (slot, file));
                }
            }
            Some(Work::Metadata(metadata)) => metadata.send(&mut self.channel, slot),
            Some(Work::Listing(listing)) => listing.send(&mut self.channel, slot),
            None => {}
        }
    }

    /// Sends the calls again that have waited after NFS3ERR_JUKEBOX.
    fn repeat(&mut self) {
        let now = Instant::now();
        while let Some((slot, part)) = self.retries.due(now) {
            match &self.work[slot] {
                Some(Work::Transfer(transfer) | Work::Fill(transfer, _)) => {
                    self.channel.piece(slot, transfer, transfer.piece_from(part));
                }
                Some(Work::Flush(_)) => {
                    let call = (slot, part as usize);
                    commit(&mut self.channel, &mut self.uncommitted, &self.mount, call);
                }
                Some(Work::Metadata(_) | Work::Listing(_)) | None => self.advance(slot),
            }
        }
    }

    /// Processes the reply to a call. Returns the result of the operation if it is complete.
    fn take(&mut self, ended: Ended) -> Result<Option<io::Result<()>>, TargetError> {
        let (slot, part) = origin(&ended);
        if ended.reply == Reply::Failed(Nfsstat3::Jukebox)
            && self.retries.delay((slot, part), self.answered)
        {
            if let Some(Work::Flush(_)) = self.work[slot] {
                self.uncommitted.commit_failed(slot, part as usize);
            }
            return Ok(None);
        }
        let error = error_of(&ended);
        match self.work[slot].take() {
            Some(Work::Transfer(transfer)) => {
                self.take_transfer(slot, transfer, None, (part, ended.reply), error)
            }
            Some(Work::Fill(transfer, created)) => {
                self.take_transfer(slot, transfer, Some(created), (part, ended.reply), error)
            }
            Some(Work::Flush(flush)) => self.take_flush(slot, flush, (part, ended.reply), error),
            Some(work) => match (error, ended.reply) {
                (Some(error), _) => Ok(Some(Err(error))),
                (None, Reply::Other(body)) => {
                    let address = self.mount.address.clone();
                    let results = body.results().map_err(failed(&address))?;
                    Ok(self.take_metadata(slot, work, &results))
                }
                _ => Err(self.unexpected()),
            },
            None => Err(self.unexpected()),
        }
    }

    fn take_transfer(
        &mut self,
        slot: usize,
        mut transfer: Transfer,
        created: Option<Metadata>,
        (part, reply): (u32, Reply),
        error: Option<io::Error>,
    ) -> Result<Option<io::Result<()>>, TargetError> {
        let rest = match (error, reply) {
            (Some(error), _) => {
                transfer.failed(error);
                None
            }
            (None, Reply::Read { bytes, eof }) => transfer.replied(part, bytes, eof),
            (None, Reply::Write { bytes, committed, verifier }) => {
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
                transfer.replied(part, bytes, false)
            }
            _ => return Err(self.unexpected()),
        };
        if let Some(rest) = rest {
            self.channel.piece(slot, &transfer, rest);
        }
        let (result, handle) = (transfer.result(), transfer.handle);
        let (work, result) = match (result, created) {
            (Some(Ok(())), Some(created)) => match created.filled(handle) {
                Some(rest) => (Some(Work::Metadata(rest)), None),
                None => (None, Some(Ok(()))),
            },
            (result, Some(created)) => (Some(Work::Fill(transfer, created)), result),
            (result, None) => (Some(Work::Transfer(transfer)), result),
        };
        self.work[slot] = work;
        self.advance(slot);
        Ok(result)
    }

    fn take_flush(
        &mut self,
        slot: usize,
        mut flush: Flush,
        (part, reply): (u32, Reply),
        error: Option<io::Error>,
    ) -> Result<Option<io::Result<()>>, TargetError> {
        let file = part as usize;
        let result = match (error, reply) {
            (Some(error), _) => {
                self.uncommitted.commit_failed(slot, file);
                Err(error)
            }
            (None, Reply::Commit { verifier }) => self.uncommitted.committed(slot, file, verifier),
            _ => return Err(self.unexpected()),
        };
        flush.replied(result);
        let result = flush.result();
        self.work[slot] = Some(Work::Flush(flush));
        self.advance(slot);
        Ok(result)
    }

    /// Processes the results of a call of a metadata operation or a listing.
    fn take_metadata(
        &mut self,
        slot: usize,
        work: Work,
        results: &Results<'_>,
    ) -> Option<io::Result<()>> {
        let next = match work {
            Work::Metadata(mut metadata) => match metadata.take(results) {
                Next::End(result) => return Some(result),
                Next::Call => Work::Metadata(metadata),
                Next::Fill(handle, bytes) => {
                    let direction = Direction::Write(StableHow::FileSync);
                    let lengths = (bytes, self.mount.write_bytes);
                    Work::Fill(Transfer::new(direction, handle, None, 0, lengths), metadata)
                }
            },
            Work::Listing(mut listing) => match listing.take(results) {
                Some(result) => return Some(result),
                None => Work::Listing(listing),
            },
            work @ (Work::Transfer(_) | Work::Fill(..) | Work::Flush(_)) => work,
        };
        self.work[slot] = Some(next);
        self.advance(slot);
        None
    }

    fn unexpected(&self) -> TargetError {
        let why = "the server violates the protocol: a reply of another procedure".to_owned();
        TargetError::Protocol { address: self.mount.address.clone(), why }
    }

    /// Processes the completed calls, and moves completed operations to `done`.
    fn take_ended(&mut self, done: &mut Vec<Done>) -> Result<(), TargetError> {
        let at = Instant::now();
        if !self.ended.is_empty() {
            self.answered = at;
        }
        for ended in std::mem::take(&mut self.ended) {
            let (slot, _) = origin(&ended);
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

    /// Returns an error if the server has sent no reply within the time limit.
    fn check_limit(&self) -> Result<(), TargetError> {
        if self.answered.elapsed() < self.answer_limit {
            return Ok(());
        }
        let (what, seconds) = ("any call", self.answer_limit.as_secs());
        Err(TargetError::NoAnswer { address: self.mount.address.clone(), what, seconds })
    }

    /// Starts an operation in a free slot.
    fn begin(&mut self, slot: usize, work: Work) -> Result<(), TargetError> {
        assert!(self.work[slot].is_none(), "one operation per slot");
        if self.work.iter().all(Option::is_none) {
            self.answered = Instant::now();
        }
        self.retries.begin(slot);
        self.work[slot] = Some(work);
        self.advance(slot);
        self.channel.send()
    }

    /// Metadata operation with its first call.
    fn metadata(&self, call: MetadataCall) -> io::Result<Work> {
        if call == MetadataCall::Sync {
            return Ok(Work::Flush(Flush::new(self.uncommitted.files())));
        }
        if let Some(listing) = Listing::new(&self.mount, call)? {
            return Ok(Work::Listing(listing));
        }
        Metadata::new(&self.mount, call).map(Work::Metadata)
    }
}

impl Lane for NfsLane {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        assert!(self.work[slot].is_none(), "the server's reply goes into this buffer");
        self.channel.buffer(slot)
    }

    fn submit(&mut self, slot: usize, op: &Op) -> Result<(), TargetError> {
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
        self.begin(slot, work)
    }

    fn submit_metadata(&mut self, slot: usize, op: &MetadataOp) -> Result<(), TargetError> {
        match self.metadata(op.call) {
            Ok(work) => self.begin(slot, work),
            Err(error) => {
                self.refused.push((slot, error));
                Ok(())
            }
        }
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError> {
        let before = done.len();
        loop {
            self.repeat();
            self.channel.send()?;
            // Receive until the socket has no data left or there is a completion for each slot.
            for _ in 0..RECEIVES_MAX {
                let is_anything = self.channel.receive(&mut self.ended)?;
                self.take_ended(done)?;
                if !is_anything || done.len() - before >= self.work.len() {
                    break;
                }
            }
            let none_under_way = self.work.iter().all(Option::is_none);
            if none_under_way {
                self.answered = Instant::now();
            }
            if done.len() > before || wait == Wait::No || (none_under_way && wait == Wait::One) {
                // Send the next calls of operations with several calls.
                return self.channel.send();
            }
            self.check_limit()?;
            let mut limit = POLL_INTERVAL;
            if let Wait::Until(until) = wait {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return self.channel.send();
                }
                limit = limit.min(left);
            }
            self.channel.send()?;
            let repeat = self.retries.next(Instant::now()).unwrap_or(limit);
            self.channel.wait(limit.min(repeat))?;
        }
    }

    /// COMMIT of all files with unstable writes. Fails if the server may have lost one of them.
    fn finish(&mut self) -> Result<(), TargetError> {
        if self.uncommitted.is_empty() {
            return Ok(());
        }
        let address = self.mount.address.clone();
        let Some(slot) = self.work.iter().position(Option::is_none) else {
            // The worker has given up the operations of all slots.
            let seconds = self.answered.elapsed().as_secs();
            return Err(TargetError::NoAnswer { address, what: "any call", seconds });
        };
        self.answer_limit = FINISH_LIMIT;
        self.begin(slot, Work::Flush(Flush::new(self.uncommitted.files())))?;
        let mut done = Vec::new();
        loop {
            self.reap(Wait::One, &mut done)?;
            if let Some(at) = done.iter().position(|done| done.slot == slot) {
                self.answer_limit = ANSWER_LIMIT;
                let result = done.swap_remove(at).result;
                return result.map_err(|source| TargetError::Io {
                    address,
                    what: "commit",
                    source,
                });
            }
            done.clear();
        }
    }
}
