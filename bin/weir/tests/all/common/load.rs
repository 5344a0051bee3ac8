//! A load of writes with known contents, and a model of the contents that the volume may have after
//! a crash. The model records which changes the server acknowledged, and which are flushed.
//!
//! Not here: how the server is killed (crash.rs).
//!
//! Invariants:
//! - only one connection changes a block, and only one change at a time, so the changes of a block
//!   have an order;
//! - every change has a unique tag in its content, so the content of a block identifies the change;
//! - the model increments one number: for each request before it is sent, and for each reply after
//!   it was read. If the number of a reply is lower than the number of a request, the server
//!   completed that reply's change before it got the request.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::nbd::{Client, FLUSH, FUA, READ, TRIM, WRITE, WRITE_ZEROES};
use super::rng::Rng;

pub(crate) const BLOCK: usize = 4096;
/// Maximum number of requests in flight on one connection.
const IN_FLIGHT: usize = 8;
/// Maximum number of blocks of a write.
const BLOCKS_MAX: u64 = 16;

/// One change of one block.
#[derive(Clone, Debug)]
struct Version {
    /// Tag in the content of the change. 0 means that the change filled the block with zeros.
    tag: u64,
    issued: u64,
    acked: Option<u64>,
    /// True if the change was acknowledged with FUA.
    durable: bool,
}

struct Block {
    /// The oldest content that the block may have, then every later change of the block.
    versions: Vec<Version>,
    in_flight: bool,
}

/// Possible contents of a volume after a crash of the server.
pub(crate) struct Model {
    blocks: Vec<Block>,
    now: u64,
    /// Value of `now` at the last flush: every change that was acknowledged at an earlier value is
    /// flushed.
    flushed: u64,
    pub(crate) flushes: u64,
    pub(crate) writes: u64,
}

/// Returns the content of one block: its tag, its block number, then bytes that follow from these
/// two.
fn content(tag: u64, lba: u64) -> Vec<u8> {
    if tag == 0 {
        return vec![0; BLOCK];
    }
    let mut block = vec![0; BLOCK];
    // Every third change writes content that compresses well.
    let random = if tag.is_multiple_of(3) { 64 } else { BLOCK };
    Rng::new(tag ^ lba << 40).fill(&mut block[..random]);
    block[..8].copy_from_slice(&tag.to_le_bytes());
    block[8..16].copy_from_slice(&lba.to_le_bytes());
    block
}

/// Returns the tag of a block that was read; `None` if the load never wrote such content to it.
fn tag_of(block: &[u8], lba: u64) -> Option<u64> {
    if block.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let tag = u64::from_le_bytes(block[..8].try_into().unwrap());
    (block == content(tag, lba)).then_some(tag)
}

impl Model {
    /// Creates the model of a new volume, whose blocks contain zeros.
    pub(crate) fn new(blocks: u64) -> Self {
        let zero = Version { tag: 0, issued: 0, acked: Some(0), durable: true };
        let block = || Block { versions: vec![zero.clone()], in_flight: false };
        Self {
            blocks: (0..blocks).map(|_| block()).collect(),
            now: 1,
            flushed: 1,
            flushes: 0,
            writes: 0,
        }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Compares a volume with the contents that it may have after a crash. Afterwards the model
    /// contains only the contents that were found. Returns the number of blocks in which a change
    /// survived without a flush.
    pub(crate) fn verify(&mut self, client: &mut Client, what: &str) -> u64 {
        let per_read = 256_u64;
        let mut found = Vec::with_capacity(self.blocks.len());
        for first in (0..self.blocks.len() as u64).step_by(per_read as usize) {
            let count = per_read.min(self.blocks.len() as u64 - first);
            let len = (count * BLOCK as u64) as u32;
            let read = client.read(first * BLOCK as u64, len);
            let data = read.unwrap_or_else(|errno| panic!("{what}: read of {first}: {errno}"));
            for (block, lba) in data.chunks(BLOCK).zip(first..) {
                let tag = tag_of(block, lba);
                found.push(tag.unwrap_or_else(|| {
                    panic!("{what}: block {lba} holds garbage: {:02x?}", &block[..32])
                }));
            }
        }
        // Prefix rule: if a change survived, then every change that was acknowledged before that
        // change was sent must have survived too.
        let newest = self.blocks.iter().zip(&found).flat_map(|(block, tag)| {
            let versions = block.versions.iter();
            versions.filter(move |version| *tag != 0 && version.tag == *tag).map(|v| v.issued)
        });
        let prefix = newest.max().unwrap_or(0);
        let mut extra = 0;
        for (lba, (block, tag)) in self.blocks.iter_mut().zip(&found).enumerate() {
            let at = block.versions.iter().rposition(|version| version.tag == *tag);
            let at = at.unwrap_or_else(|| panic!("{what}: block {lba}: tag {tag} is not of it"));
            let must = |end: u64| {
                let there = |v: &Version| v.durable || v.acked.is_some_and(|acked| acked < end);
                block.versions.iter().rposition(there).unwrap_or(0)
            };
            let (flushed, prefix_end) = (must(self.flushed), must(prefix));
            assert!(at >= flushed, "{what}: block {lba}: a flushed change is lost: {:?}", {
                (tag, &block.versions[at..])
            });
            assert!(at >= prefix_end, "{what}: block {lba}: not a prefix: {:?}", {
                (tag, prefix, &block.versions[at..])
            });
            extra += u64::from(at > flushed);
            block.versions = vec![Version { durable: true, ..block.versions[at].clone() }];
            block.in_flight = false;
        }
        extra
    }

    /// Records a clean close of the pool: all acknowledged changes are durable from now on.
    pub(crate) fn closed(&mut self) {
        self.flushed = self.tick();
    }

    /// Records that another client has zeroed the first `blocks` blocks of the volume.
    pub(crate) fn forget(&mut self, blocks: usize) {
        let zero = Version { tag: 0, issued: 0, acked: Some(0), durable: true };
        for block in &mut self.blocks[..blocks] {
            block.versions = vec![zero.clone()];
        }
    }
}

/// A request that was sent and whose reply has not arrived.
struct Sent {
    kind: u16,
    stamp: u64,
    first: u64,
    count: u64,
    tag: u64,
    fua: bool,
}

/// Reason why the load on one connection ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The connection broke.
    Broken,
    /// The server refused a request of this type with this error number.
    Refused(u16, u32),
}

struct Worker {
    client: Client,
    model: Arc<Mutex<Model>>,
    range: std::ops::Range<u64>,
    rng: Rng,
    sent: HashMap<u64, Sent>,
}

/// Starts a load on the blocks in `range`. The load runs until its connection breaks or the server
/// refuses a request.
pub(crate) fn start(
    socket: &Path,
    export: &str,
    model: &Arc<Mutex<Model>>,
    range: std::ops::Range<u64>,
    seed: u64,
) -> JoinHandle<End> {
    let client = Client::connect(socket, export).unwrap();
    let (model, rng) = (Arc::clone(model), Rng::new(seed));
    let mut worker = Worker { client, model, range, rng, sent: HashMap::new() };
    std::thread::spawn(move || worker.run())
}

impl Worker {
    fn run(&mut self) -> End {
        loop {
            while self.sent.len() < IN_FLIGHT {
                if !self.issue() {
                    return End::Broken;
                }
            }
            let Ok(answer) = self.client.receive() else { return End::Broken };
            let sent = self.sent.remove(&answer.cookie).expect("an answer to a request");
            if answer.errno != 0 {
                return End::Refused(sent.kind, answer.errno);
            }
            self.settle(&sent, &answer.data);
        }
    }

    /// Sends one random request; returns false if the connection broke.
    fn issue(&mut self) -> bool {
        let kind = match self.rng.below(100) {
            0..74 => WRITE,
            74..80 => TRIM,
            80..86 => WRITE_ZEROES,
            86..96 => READ,
            _ => FLUSH,
        };
        let mut model = self.model.lock().unwrap();
        let (mut first, mut count) = (0, 0);
        if kind != FLUSH {
            let long = self.rng.one_in(6);
            count = if long { 1 + self.rng.below(BLOCKS_MAX) } else { 1 };
            first = self.range.start + self.rng.below(self.range.end - self.range.start - count);
            let blocks = &mut model.blocks[first as usize..(first + count) as usize];
            if blocks.iter().any(|block| block.in_flight) {
                return true;
            }
            blocks.iter_mut().for_each(|block| block.in_flight = true);
        }
        let stamp = model.tick();
        let tag = if kind == WRITE { stamp } else { 0 };
        let fua = kind != READ && kind != FLUSH && self.rng.one_in(20);
        if matches!(kind, WRITE | TRIM | WRITE_ZEROES) {
            for block in &mut model.blocks[first as usize..(first + count) as usize] {
                block.versions.push(Version { tag, issued: stamp, acked: None, durable: false });
            }
        }
        drop(model);
        let data: Vec<u8> = match kind {
            WRITE => (first..first + count).flat_map(|lba| content(tag, lba)).collect(),
            _ => Vec::new(),
        };
        let (offset, len) = (first * BLOCK as u64, count as u32 * BLOCK as u32);
        let flags = if fua { FUA } else { 0 };
        match self.client.send(kind, flags, offset, len, &data) {
            Ok(cookie) => {
                self.sent.insert(cookie, Sent { kind, stamp, first, count, tag, fua });
                true
            }
            Err(_) => false,
        }
    }

    /// Compares the reply to a read with the model. The reply to any other request updates the
    /// model: a change is acknowledged, and a flush or FUA makes changes durable.
    fn settle(&self, sent: &Sent, data: &[u8]) {
        let mut model = self.model.lock().unwrap();
        let now = model.tick();
        if sent.kind == FLUSH {
            model.flushed = model.flushed.max(sent.stamp);
            model.flushes += 1;
            return;
        }
        let blocks = sent.first as usize..(sent.first + sent.count) as usize;
        for (lba, block) in blocks.clone().zip(&mut model.blocks[blocks]) {
            block.in_flight = false;
            let newest = block.versions.last_mut().expect("a block has a content");
            if sent.kind == READ {
                let at = (lba - sent.first as usize) * BLOCK;
                let tag = tag_of(&data[at..at + BLOCK], lba as u64);
                assert_eq!(tag, Some(newest.tag), "block {lba} reads as another change");
            } else {
                assert_eq!(newest.tag, sent.tag, "one change of a block at a time");
                newest.acked = Some(now);
                newest.durable |= sent.fua;
            }
        }
        model.writes += u64::from(sent.kind != READ);
    }
}
