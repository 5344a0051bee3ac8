//! Probes the target with one operation at a time before any measurement: the cost of durable
//! writes, and whether the second read of an address is faster than the first.
//!
//! `target/caches` has the caches that the user stated or that were found on this machine.
//!
//! Invariants:
//! - a probe writes blocks with the contents that a run gives them, so that the verification finds
//!   the expected contents;
//! - no client can test durability, so the report presents the result only as the target's claim;
//! - if a probe fails, it adds no fact, and the run continues.

use std::time::{Duration, Instant};

use super::Runner;
use crate::load::Ground;
use crate::spec::OpKind;
use crate::stats::median;
use crate::target::{Lane, Op, Wait};
use crate::words;

/// Maximum time to wait for an operation; after this time the probe ends without a result.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Number of repetitions of each kind of write. The median of the repetitions counts.
const WRITES: usize = 9;
/// Number of addresses that the probe reads twice.
const PLACES: u64 = 32;
/// If the second read is this many times faster than the first, the second read came from a cache.
const QUICKER: f64 = 3.0;
/// The probe reports a cache only if the first reads take at least this number of microseconds:
/// faster reads already came from a cache, or the medium needs no cache.
const READ_US_MIN: f64 = 50.0;
/// If a flush takes less than this multiple of a write's time, the flush does not wait for a
/// medium.
const FREE_FLUSH: f64 = 1.2;

impl Runner<'_> {
    /// Adds the results of the probes to the facts about the target.
    pub(super) fn probe(&mut self) {
        if !self.ground.target.keeps_data() {
            return;
        }
        let facts = &mut self.result.target.facts;
        if let Some(found) = durability(&self.ground) {
            facts.insert("durable writes".to_owned(), found);
        }
        if let Some(found) = second_reads(&self.ground) {
            facts.insert("second reads".to_owned(), found);
        }
    }
}

/// Probe with a lane for one operation at a time.
struct Probe<'a> {
    ground: &'a Ground<'a>,
    lane: Box<dyn Lane>,
    block_bytes: u32,
}

impl<'a> Probe<'a> {
    fn new(ground: &'a Ground<'a>) -> Option<Self> {
        let block_bytes = ground.content.block_bytes();
        let lane = ground.target.lane(1, block_bytes).ok()?;
        Some(Self { ground, lane, block_bytes: block_bytes as u32 })
    }

    /// Executes one operation and returns its duration in microseconds.
    fn time(&mut self, kind: OpKind, offset: u64, durable: bool) -> Option<f64> {
        let len_bytes = if kind == OpKind::Flush { 0 } else { self.block_bytes };
        let sent = Instant::now();
        self.lane.submit(0, &Op { kind, offset, len_bytes, durable, source: 0 }).ok()?;
        let (mut done, give_up) = (Vec::new(), sent + TIMEOUT);
        while done.is_empty() && Instant::now() < give_up {
            self.lane.reap(Wait::Until(give_up), &mut done).ok()?;
        }
        let answer = done.pop()?;
        answer.result.ok()?;
        Some(answer.at.saturating_duration_since(sent).as_secs_f64() * 1e6)
    }

    /// Writes the next generation of a block.
    fn write(&mut self, offset: u64, durable: bool) -> Option<f64> {
        let known = self.ground.generations?;
        let len = self.block_bytes;
        if !known.begin(offset, len) {
            return None;
        }
        let generation = known.next(offset, len).next()?;
        let block = &mut self.lane.buffer(0)[..len as usize];
        self.ground.content.fill_block(block, offset, generation);
        let time = self.time(OpKind::Write, offset, durable);
        match time {
            Some(_) => known.end(offset, len),
            None => known.forget(known.numbers(&(offset..offset + u64::from(len)))),
        }
        time
    }
}

/// Measures the median times of a write, of a durable write, and of a flush that follows a write.
fn durability(ground: &Ground<'_>) -> Option<String> {
    let mut probe = Probe::new(ground)?;
    let (mut plain, mut durable, mut flush) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..WRITES {
        plain.push(probe.write(0, false)?);
        flush.push(probe.time(OpKind::Flush, 0, false)?);
        durable.push(probe.write(0, true)?);
    }
    let ms = |times: &[f64]| median(times).map(words::ms);
    let costs_nothing = median(&flush)? <= median(&plain)? * FREE_FLUSH;
    let (plain, durable, flush) = (ms(&plain)?, ms(&durable)?, ms(&flush)?);
    let remark = if costs_nothing {
        ". A flush takes no longer than a write: the target has no volatile cache, or it ignores \
         flushes"
    } else {
        ""
    };
    Some(format!(
        "write {plain} ms, durable write {durable} ms, flush {flush} ms; durability is the \
         target's statement, no client can verify it{remark}"
    ))
}

/// Reads addresses across the whole dataset once, and then all of them a second time.
fn second_reads(ground: &Ground<'_>) -> Option<String> {
    let mut probe = Probe::new(ground)?;
    let block = u64::from(probe.block_bytes);
    let blocks = ground.dataset.total_bytes() / block;
    let step = (blocks / PLACES).max(1);
    let places: Vec<u64> = (0..PLACES.min(blocks)).map(|n| n * step * block).collect();
    let mut read = || -> Option<f64> {
        let times: Option<Vec<f64>> =
            places.iter().map(|at| probe.time(OpKind::Read, *at, false)).collect();
        median(&times?)
    };
    let (first, second) = (read()?, read()?);
    let said = format!("first {} ms, second {} ms", words::ms(first), words::ms(second));
    Some(if first >= READ_US_MIN && first > second * QUICKER {
        format!("{said}: a cache serves recently read blocks")
    } else {
        said
    })
}
