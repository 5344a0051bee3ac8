//! Probes the target with one operation at a time before any measurement: the cost of durable
//! writes, and whether a second read of an address is faster than the first.
//!
//! Not here: caches stated by the user or found on this machine (target/caches).
//!
//! Invariants:
//! - a probe writes blocks as a run does, so that verification finds the expected contents;
//! - no client can test durability, so the report calls it a statement of the target;
//! - a failed probe adds no fact, and the run continues.

use std::time::{Duration, Instant};

use super::Runner;
use crate::load::Ground;
use crate::spec::OpKind;
use crate::stats::median;
use crate::target::{Lane, Op, Wait};
use crate::words;

/// Maximum wait for an operation; after it the probe ends without a result.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Repetitions of each kind of write; the median counts.
const WRITES: usize = 9;
/// Number of addresses that are read twice.
const PLACES: u64 = 32;
/// A second read that is this many times faster than the first came from a cache.
const QUICKER: f64 = 3.0;
/// First reads faster than this number of microseconds came from a cache already, or from a medium
/// that needs none.
const READ_US_MIN: f64 = 50.0;
/// A flush that takes less than this multiple of a write does not wait for a medium.
const FREE_FLUSH: f64 = 1.2;

impl Runner<'_> {
    /// Adds the results of the probes to the target's facts.
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

/// A lane for one operation at a time.
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

    /// Executes one operation and returns its time in microseconds.
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

    /// Writes a block with its next generation.
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

/// Measures the median times of a write, of a durable write, and of a flush after a write.
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

/// Reads addresses across the dataset once, and then all of them a second time.
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
