//! Fuzzes the client of NFS: any replies of a server to calls in flight.
//!
//! The tests of weir-nfs-client cover sockets; `nfs3_reply` fuzzes the results alone.
//!
//! Invariants: no panic; read data stays in the range of its call; each call ends at most once; the
//! number of calls in flight is right.

use std::io::IoSlice;

use weir_nfs_client::{Buffers, Done, Exchange, Handle, Identity, Reply, Request};
use weir_nfs_wire::nfs3::{Args, Procedure, Results, StableHow};
use weir_oncrpc::message::{self, AcceptStat};

use super::samples;

const SLOTS: usize = 4;
const SLOT_BYTES: usize = 8 << 10;
/// Maximum number of calls that one input submits.
const CALLS_MAX: u64 = 64;

/// Runs the fuzz target on one input. The first byte selects the size of the received pieces.
pub fn run(data: &[u8]) {
    let Some((choice, input)) = data.split_first() else { return };
    let mut client = Client::new();
    let (mut held, mut done) = (Vec::new(), Vec::new());
    for piece in input.chunks(usize::from(*choice) * 7 + 5) {
        held.extend_from_slice(piece);
        let Ok(used) = client.exchange.take(&held, &mut client.memory) else { return };
        held.drain(..used);
        client.send_half();
        client.exchange.take_done(&mut done);
        done.drain(..).for_each(|ended| client.end(&ended));
    }
}

/// Replies to the first calls in order and in reverse order, an error for each, and fragments.
pub fn seeds() -> Vec<Vec<u8>> {
    let count = client_calls().len();
    let records: Vec<Vec<u8>> = (0..count).map(|number| record(number as u32)).collect();
    let in_order = records.concat();
    let reversed: Vec<u8> = records.iter().rev().flatten().copied().collect();
    let fragments = records.iter().flat_map(|record| {
        let (_, content) = record.split_at(4);
        let (one, two) = content.split_at(content.len() / 2);
        let last = (1 << 31 | two.len() as u32).to_be_bytes();
        [&(one.len() as u32).to_be_bytes()[..], one, &last, two].concat()
    });
    let fragments: Vec<u8> = fragments.collect();
    let refused = message::Reply::accepted(1, AcceptStat::ProgUnavail);
    let refused = marked(&samples::encoded(|out| refused.encode(out)));
    [(255, in_order), (3, reversed), (90, fragments), (0, refused)]
        .into_iter()
        .map(|(choice, bytes)| [&[choice], &bytes[..]].concat())
        .collect()
}

fn marked(content: &[u8]) -> Vec<u8> {
    [&(1 << 31 | content.len() as u32).to_be_bytes(), content].concat()
}

/// Successful reply to the call with a number.
fn record(number: u32) -> Vec<u8> {
    let procedure = client_calls()[number as usize].procedure();
    let is_reply = |results: &Results<'_>| results.procedure() == procedure;
    let results = samples::results().into_iter().find(is_reply).expect("each procedure is there");
    let header = message::Reply::accepted(number, AcceptStat::Success);
    marked(&samples::encoded(|out| {
        header.encode(out);
        results.encode(out);
    }))
}

/// Calls that the client repeats in this order.
fn client_calls() -> Vec<Args<'static>> {
    let mut calls = samples::arguments();
    calls.dedup_by_key(|args| args.procedure());
    calls
}

struct Memory(Vec<Vec<u8>>);

impl Buffers for Memory {
    fn data(&self, slot: usize) -> &[u8] {
        &self.0[slot]
    }

    fn data_mut(&mut self, slot: usize) -> &mut [u8] {
        &mut self.0[slot]
    }
}

struct Client {
    exchange: Exchange,
    memory: Memory,
    calls: Vec<Args<'static>>,
    submitted: u64,
    ended: Vec<bool>,
}

impl Client {
    /// Client with all calls of [`client_calls`] in flight.
    fn new() -> Self {
        let calls = client_calls();
        let exchange = Exchange::new(Identity::none(), 0, calls.len());
        let memory = Memory(vec![vec![0x5a; SLOT_BYTES]; SLOTS]);
        let mut client = Self { exchange, memory, calls, submitted: 0, ended: Vec::new() };
        while client.exchange.has_room() {
            client.submit();
        }
        client
    }

    /// Slot and length of the data of a READ or WRITE.
    fn place(tag: u64) -> (usize, usize) {
        (tag as usize % SLOTS, tag as usize * 1009 % SLOT_BYTES)
    }

    fn submit(&mut self) {
        let tag = self.submitted;
        let args = &self.calls[tag as usize % self.calls.len()];
        let file = &Handle::new(&samples::handle());
        let (slot, len) = Self::place(tag);
        let (offset, range, stable) = (0, 0..len, StableHow::Unstable);
        let request = match args.procedure() {
            Procedure::Read => Request::Read { file, offset, slot, range },
            Procedure::Write => Request::Write { file, offset, stable, slot, range },
            _ => Request::Nfs(args),
        };
        self.exchange.submit(tag, &request, &self.memory);
        self.submitted += 1;
        self.ended.push(false);
    }

    fn send_half(&mut self) {
        let mut pieces = [IoSlice::new(&[]); 8];
        let count = self.exchange.outgoing(&self.memory, &mut pieces);
        let bytes: usize = pieces[..count].iter().map(|piece| piece.len()).sum();
        self.exchange.sent(bytes.div_ceil(2));
    }

    fn end(&mut self, done: &Done) {
        let was_ended = std::mem::replace(&mut self.ended[done.tag as usize], true);
        assert!(!was_ended, "{done:?} ends twice");
        match &done.reply {
            Reply::Read { bytes, .. } => {
                let (slot, len) = Self::place(done.tag);
                assert!(*bytes as usize <= len);
                // All reads of a slot have the same start, so the longest one bounds its content.
                let longest = (0..self.submitted).map(Self::place);
                let longest = longest.filter(|place| place.0 == slot).map(|place| place.1).max();
                let rest = &self.memory.0[slot][longest.unwrap_or(0)..];
                assert!(rest.iter().all(|byte| *byte == 0x5a), "data outside of its range");
            }
            Reply::Write { bytes, .. } => {
                let copied = 9;
                assert!(*bytes as usize <= Self::place(done.tag).1.max(copied));
            }
            Reply::Other(body) => drop(body.results()),
            Reply::Commit { .. } | Reply::Failed(_) | Reply::Refused(_) => {}
        }
        if self.submitted < CALLS_MAX {
            self.submit();
        }
        let open = self.ended.iter().filter(|ended| !**ended).count();
        assert!(self.exchange.under_way() <= open);
    }
}
