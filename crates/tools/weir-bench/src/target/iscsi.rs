//! Target that is an iSCSI logical unit. Each lane has one session of this project's initiator.
//!
//! `weir-initiator` implements the protocol.
//!
//! Invariants:
//! - block size, limits and supported commands of the unit are queried before a run starts;
//! - data of reads and writes moves directly between the socket and the slot's buffer;
//! - after a unit attention, BUSY or TASK SET FULL, the lane resends the same command a bounded
//!   number of times; the latency of the command counts from its first submission;
//! - a lane never reuses a failed session, and every wait has a time limit.

use std::io;
use std::time::{Duration, Instant};

use weir_initiator::cdb::{self, Cdb, CopyEnd, WriteSame};
use weir_initiator::limits::{BUSY_WAIT, TRIES_MAX};
use weir_initiator::{
    Advice, Answer, Connection, Data, Done as Ended, InitiatorError, LoginOptions, Sense, Session,
    Url, advice,
};

use super::buffers::Buffers;
use super::error::TargetError;
use super::lane::{ANSWER_LIMIT, Done, Lane, Op, Target, Wait};
use crate::result::TargetInfo;
use crate::spec::OpKind;

mod facts;

use facts::Unit;

/// Maximum interval between two checks for commands that got no response in time.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of receives in one `reap`, because a target may send NOPs endlessly.
const RECEIVES_MAX: usize = 1024;

/// A logical unit of an iSCSI target.
pub(super) struct Iscsi {
    url: Url,
    options: LoginOptions,
    info: TargetInfo,
    unit: Unit,
}

fn failed(address: &str) -> impl Fn(InitiatorError) -> TargetError + '_ {
    move |source| TargetError::Iscsi { address: address.to_owned(), source }
}

impl Iscsi {
    pub(super) fn open(url: &Url) -> Result<Self, TargetError> {
        let address = url.to_string();
        let options = LoginOptions::of(url).map_err(failed(&address))?;
        let mut session = Session::login(url, &options).map_err(failed(&address))?;
        let unit = Unit::ask(&mut session).map_err(failed(&address))?;
        let facts = unit.facts(session.negotiated());
        // All properties of the unit are known, so the outcome of the logout does not matter.
        drop(session.logout());
        let refused = |why: &str| {
            let address = address.clone();
            Err(TargetError::Protocol { address, why: why.to_owned() })
        };
        if unit.caching.read_only {
            return refused(
                "the logical unit is read-only, and the run must write every block first",
            );
        }
        if unit.inquiry.qualifier != 0 || unit.inquiry.kind != 0 {
            return refused("the logical unit is not a disk");
        }
        let info = TargetInfo {
            address: address.clone(),
            kind: "iscsi".to_owned(),
            bytes: unit.capacity.bytes(),
            block_bytes: unit.capacity.block_bytes,
            driver: "own iSCSI initiator, a session per worker".to_owned(),
            facts,
            ..TargetInfo::default()
        };
        Ok(Self { url: url.clone(), options, info, unit })
    }
}

impl Target for Iscsi {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn op_bytes_max(&self, kind: OpKind) -> u64 {
        self.unit.op_bytes_max(kind)
    }

    fn lane(&self, slots: usize, buffer_bytes: usize) -> Result<Box<dyn Lane>, TargetError> {
        let session = Session::login(&self.url, &self.options);
        let session = session.map_err(failed(&self.info.address))?;
        Ok(Box::new(IscsiLane {
            connection: session.into_connection(slots),
            address: self.info.address.clone(),
            unit: self.unit.clone(),
            memory: Memory {
                buffers: Buffers::new(slots, buffer_bytes),
                lists: (0..slots).map(|_| None).collect(),
            },
            under_way: vec![None; slots],
            later: Vec::new(),
            ended: Vec::new(),
            looked: Instant::now(),
        }))
    }
}

/// Data of commands: for each slot, its buffer or a parameter list.
struct Memory {
    buffers: Buffers,
    lists: Vec<Option<Vec<u8>>>,
}

impl weir_initiator::Buffers for Memory {
    fn data(&self, slot: usize) -> &[u8] {
        self.lists[slot].as_deref().unwrap_or_else(|| self.buffers.at(slot))
    }

    fn data_mut(&mut self, slot: usize) -> &mut [u8] {
        self.buffers.of(slot)
    }
}

/// A command in flight.
#[derive(Clone, Copy)]
struct Pending {
    op: Op,
    since: Instant,
    tries: u32,
}

struct IscsiLane {
    connection: Connection,
    address: String,
    unit: Unit,
    memory: Memory,
    under_way: Vec<Option<Pending>>,
    /// Slots whose command is to be resent because the target was busy, each with the time of the
    /// resend.
    later: Vec<(Instant, usize)>,
    ended: Vec<Ended>,
    /// Time of the last check for commands that got no response in time.
    looked: Instant,
}

impl IscsiLane {
    fn send(&mut self) -> Result<(), TargetError> {
        self.connection.send(&self.memory).map_err(failed(&self.address))
    }

    fn receive(&mut self) -> Result<bool, TargetError> {
        let received = self.connection.receive(&mut self.memory, &mut self.ended);
        received.map_err(failed(&self.address))
    }

    fn command(&mut self, slot: usize, op: &Op) -> Result<(), TargetError> {
        let (cdb, data, list) = self.unit.command(op).ok_or_else(|| TargetError::Protocol {
            address: self.address.clone(),
            why: format!("the unit takes no {} of {} bytes", op.kind.name(), op.len_bytes),
        })?;
        self.memory.lists[slot] = list;
        self.connection.submit(slot, cdb, data, &self.memory);
        Ok(())
    }

    /// Resends the commands that were refused by a busy target and whose waiting time is over.
    fn send_again(&mut self) -> Result<(), TargetError> {
        let now = Instant::now();
        while let Some(at) = self.later.iter().position(|(when, _)| *when <= now) {
            let (_, slot) = self.later.swap_remove(at);
            if let Some(Pending { op, .. }) = self.under_way[slot] {
                self.command(slot, &op)?;
            }
        }
        Ok(())
    }

    /// Processes completed commands: reports each command to the worker or resends it.
    fn take_ended(&mut self, done: &mut Vec<Done>) -> Result<(), TargetError> {
        let at = Instant::now();
        for Ended { slot, answer } in std::mem::take(&mut self.ended) {
            let Some(Pending { op, tries, .. }) = &mut self.under_way[slot] else { continue };
            let (op, sense) = (*op, Sense::parse(&answer.sense));
            *tries += 1;
            let tries = *tries;
            match advice(answer.status, sense.as_ref()) {
                Advice::Again if tries < TRIES_MAX => self.command(slot, &op)?,
                Advice::Later if tries < TRIES_MAX => {
                    self.later.push((at + BUSY_WAIT * (1 << tries), slot));
                }
                told => {
                    self.under_way[slot] = None;
                    let result = match told {
                        Advice::Done => whole(&op, &answer),
                        _ => Err(refused(&answer, sense)),
                    };
                    done.push(Done { slot, result, at });
                }
            }
        }
        Ok(())
    }

    /// Returns an error if a command has waited longer than [`ANSWER_LIMIT`] for its response.
    fn check_limit(&self) -> Result<(), TargetError> {
        let now = Instant::now();
        let mut pending = self.under_way.iter().flatten();
        if pending.any(|pending| now.duration_since(pending.since) > ANSWER_LIMIT) {
            let (what, seconds) = ("a command", ANSWER_LIMIT.as_secs());
            return Err(TargetError::NoAnswer { address: self.address.clone(), what, seconds });
        }
        Ok(())
    }
}

/// Checks that a completed read returned all requested data.
fn whole(op: &Op, answer: &Answer) -> io::Result<()> {
    if op.kind == OpKind::Read && answer.received_bytes != op.len_bytes {
        return Err(io::Error::other("the target returned less data than requested"));
    }
    Ok(())
}

/// Describes a failed command. Omits the LBA, because the result groups errors by their text.
fn refused(answer: &Answer, sense: Option<Sense>) -> io::Error {
    match sense {
        Some(sense) => {
            let sense = Sense { information: None, ..sense };
            io::Error::other(format!("{}, {sense}", answer.status))
        }
        None => io::Error::other(answer.status.to_string()),
    }
}

impl Lane for IscsiLane {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        assert!(self.under_way[slot].is_none(), "the target's answer goes into this buffer");
        self.memory.buffers.of(slot)
    }

    fn submit(&mut self, slot: usize, op: &Op) -> Result<(), TargetError> {
        assert!(self.under_way[slot].is_none(), "one operation per slot");
        // A durable write needs FUA, unless the unit has no volatile cache: then every write is
        // durable.
        let caching = self.unit.caching;
        if op.durable && !caching.fua && caching.write_cache != Some(false) {
            let why =
                "the logical unit does not support FUA; use flushes for durable writes".to_owned();
            return Err(TargetError::Protocol { address: self.address.clone(), why });
        }
        self.under_way[slot] = Some(Pending { op: *op, since: Instant::now(), tries: 0 });
        self.command(slot, op)?;
        self.send()
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError> {
        let before = done.len();
        loop {
            if !self.later.is_empty() {
                self.send_again()?;
            }
            self.send()?;
            // Receive until the socket has no data left or there is a completion for each slot.
            for _ in 0..RECEIVES_MAX {
                if !self.receive()? || self.ended.len() >= self.under_way.len() {
                    break;
                }
            }
            self.take_ended(done)?;
            let none_under_way = self.under_way.iter().all(Option::is_none);
            if done.len() > before || wait == Wait::No || (none_under_way && wait == Wait::One) {
                // Send the commands and the PDUs with which the initiator answers the received
                // PDUs.
                return self.send();
            }
            let now = Instant::now();
            let mut limit = POLL_INTERVAL;
            if let Wait::Until(until) = wait {
                let left = until.saturating_duration_since(now);
                if left.is_zero() {
                    return Ok(());
                }
                limit = limit.min(left);
            }
            for (when, _) in &self.later {
                limit = limit.min(when.saturating_duration_since(now));
            }
            self.send()?;
            // Check for commands that got no response in time even while the target sends PDUs,
            // because these PDUs may answer no command.
            if self.looked.elapsed() >= POLL_INTERVAL {
                self.looked = now;
                self.check_limit()?;
            }
            self.connection.wait(Some(limit)).map_err(failed(&self.address))?;
        }
    }
}

impl Drop for IscsiLane {
    fn drop(&mut self) {
        // Log out only if the session works and has no commands in flight.
        if self.connection.exchange().under_way() == 0 {
            drop(self.connection.log_out());
        }
    }
}

impl Unit {
    /// Builds the command for an operation, with its data or with a parameter list to send; `None`
    /// if the unit does not support the command or the length of the operation.
    fn command(&self, op: &Op) -> Option<(Cdb, Data, Option<Vec<u8>>)> {
        let block_bytes = self.capacity.block_bytes;
        let lba = |offset: u64| offset / u64::from(block_bytes);
        let (at, blocks) = (lba(op.offset), op.len_bytes / block_bytes);
        if u64::from(op.len_bytes) > self.op_bytes_max(op.kind) {
            return None;
        }
        let durable = op.durable && self.caching.fua;
        let with_list = |cdb: fn(u32) -> Cdb, list: Vec<u8>| {
            (cdb(list.len() as u32), Data::Out(list.len() as u32), Some(list))
        };
        Some(match op.kind {
            OpKind::Read => (cdb::read16(at, blocks, false), Data::In(op.len_bytes), None),
            OpKind::Write => (cdb::write16(at, blocks, durable), Data::Out(op.len_bytes), None),
            OpKind::Flush => (cdb::synchronize_cache16(0, 0), Data::None, None),
            OpKind::Trim => {
                with_list(|len| cdb::unmap(len as u16), cdb::unmap_list(&[(at, blocks)]))
            }
            OpKind::WriteSame => {
                let zeros = vec![0; block_bytes as usize];
                let how = WriteSame { unmap: self.provisioning.write_same16, no_data: false };
                (cdb::write_same16(at, blocks, how), Data::Out(block_bytes), Some(zeros))
            }
            OpKind::CompareAndWrite => {
                let blocks = u8::try_from(blocks).ok()?;
                (cdb::compare_and_write(at, blocks, durable), Data::Out(2 * op.len_bytes), None)
            }
            OpKind::Copy => {
                let naa = self.naa.as_deref()?;
                let end = |offset| CopyEnd { naa, lba: lba(offset) };
                let (source, destination) = (end(op.source), end(op.offset));
                let blocks = u16::try_from(blocks).ok()?;
                let list = cdb::copy_list(source, destination, blocks, block_bytes);
                with_list(cdb::extended_copy, list)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
