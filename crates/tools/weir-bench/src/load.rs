//! Load generator: chooses operations, sends them on time and records the results.
//!
//! `content` generates block contents, `target` transports operations to a target, `run` has the
//! phases.
//!
//! Invariants:
//! - while an operation runs, workers share no state except the generations of blocks;
//! - no operation is dropped silently: an operation that cannot be sent in time waits, and its
//!   latency counts from its intended time;
//! - the files that metadata operations need exist only until the load ends;
//! - if there are several clients, each has its own part of the dataset and its own random numbers.

mod access;
mod board;
mod files;
mod generations;
mod scratch;
mod worker;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

pub use access::Chooser;
pub use generations::Generations;

use crate::content::Content;
use crate::histogram::Latencies;
use crate::machine_cpu::{MachineCpu, other_process_cpu_s, process_cpu_s};
use crate::result::{CellRun, ClassResult};
use crate::spec::{DatasetSpec, Durability, LoadSpec, OpKind, StreamSpec};
use crate::target::{Lane, Target, TargetError};
use board::Board;
use scratch::Scratch;
use worker::{Pace, Tally, Times, Worker};

/// Interval between two progress reports.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of operations that a worker prepares in addition to the operations in flight: as
/// many as one poll for completions is likely to return.
const SPARES_MAX: usize = 32;
/// Maximum total size of the buffers for these prepared operations. A worker prepares at least one
/// operation, however large its buffer is.
const SPARE_BYTES_MAX: usize = 16 << 20;
/// Alignment of each client's range of the dataset: the size of the largest content block.
const CUT_BYTES: u64 = crate::content::GUARD_BLOCK_BYTES;
/// Divergence of the wall clock and the monotonic clock that every run may have, in seconds.
const CLOCK_SLACK_S: f64 = 0.1;
/// Additional divergence of the two clocks, as a fraction of the length of the run, so that a clock
/// that chrony slews (by at most 500 ppm) does not count as jumped.
const CLOCK_SLACK_PART: f64 = 0.002;

/// Context of a run, which all loads of the run share.
pub struct Ground<'a> {
    /// Target that is measured.
    pub target: &'a dyn Target,
    /// Dataset: the bytes of the target that the loads read and write.
    pub dataset: &'a DatasetSpec,
    /// Block contents.
    pub content: &'a Content,
    /// Table of the generation of each block; `None` if the dataset is too large for a table.
    pub generations: Option<&'a Generations>,
    /// Durability that the target guarantees for a completed write.
    pub durability: Durability,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Share of the read data that the load verifies.
    pub read_checks: ReadChecks,
}

/// Share of the read data that a load verifies. If a target stores no data, its reads are never
/// verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadChecks {
    /// The load verifies no reads.
    Off,
    /// The load verifies the stamp of the first block of each read, and every byte of one read in
    /// 64.
    Stamps,
    /// The load verifies every byte of every read.
    Full,
}

impl ReadChecks {
    /// Returns [`Self::Full`] if `is_full`, otherwise [`Self::Stamps`].
    pub fn full_if(is_full: bool) -> Self {
        if is_full { Self::Full } else { Self::Stamps }
    }
}

/// Load with its duration.
pub struct Offer<'a> {
    /// Streams of operations.
    pub streams: &'a [StreamSpec],
    /// Open or closed loop, with its parameters.
    pub load: LoadSpec,
    /// Length of the warm-up, whose operations do not count.
    pub warmup: Duration,
    /// Length of the measurement; `None` if the measurement ends when all workers have finished.
    pub duration: Option<Duration>,
    /// Number of bytes after which each worker stops. If `duration` is `None` as well, a worker
    /// stops after one visit to each of its addresses.
    pub worker_bytes: Option<u64>,
}

/// Number of a client among the clients that generate one load together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of this client, from 0.
    pub number: u32,
    /// Number of clients.
    pub of: u32,
}

impl Place {
    /// Number of a client that generates the load alone.
    pub const ALONE: Self = Self { number: 0, of: 1 };

    /// Byte range of the dataset that this client uses, aligned to 4 KiB. The ranges of all clients
    /// cover the dataset without overlaps.
    pub fn part(self, dataset: &DatasetSpec) -> Range<u64> {
        let total_bytes = dataset.total_bytes();
        let blocks = u128::from(total_bytes / CUT_BYTES);
        let edge = |number: u32| match blocks * u128::from(number) / u128::from(self.of.max(1)) {
            _ if number >= self.of => total_bytes,
            block => block as u64 * CUT_BYTES,
        };
        edge(self.number)..edge(self.number + 1)
    }

    /// Seed of this client, derived from the seed of the run. A client that is alone uses the run's
    /// seed.
    fn seed(self, seed: u64) -> u64 {
        seed ^ u64::from(self.number).wrapping_mul(0xd134_2543_de82_ef95)
    }
}

/// Number of slots in the lane of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slots {
    /// Maximum queue depth of the worker.
    depth: usize,
    /// Number of operations that the worker prepares in advance.
    spares: usize,
}

impl Slots {
    fn new(depth: u32, buffer_bytes: usize) -> Self {
        let depth = depth.max(1) as usize;
        let fit = SPARE_BYTES_MAX / buffer_bytes.max(1);
        Self { depth, spares: depth.min(SPARES_MAX).min(fit).max(1) }
    }

    fn all(self) -> usize {
        self.depth + self.spares
    }
}

/// Load that is ready to start.
pub struct Prepared<'a> {
    ground: &'a Ground<'a>,
    offer: &'a Offer<'a>,
    place: Place,
    slots: Slots,
    lanes: Vec<Box<dyn Lane>>,
    /// Files for the metadata operations; `None` if the load has none.
    scratch: Option<Scratch<'a>>,
}

/// Result of a load.
pub struct Offered {
    /// Measured figures.
    pub run: CellRun,
    /// Time at which the first worker started.
    pub began: Instant,
}

/// Generates a load immediately. Calls `tell` periodically with the elapsed time; if `tell` returns
/// false, the load stops.
///
/// # Errors
/// A lane was lost. The figures measured so far are discarded.
pub fn offer(
    ground: &Ground<'_>,
    offer: &Offer<'_>,
    tell: &mut dyn FnMut(Duration) -> bool,
) -> Result<CellRun, TargetError> {
    let prepared = Prepared::new(ground, offer, Place::ALONE, &mut || tell(Duration::ZERO))?;
    prepared.start(Instant::now(), tell).map(|offered| offered.run)
}

impl<'a> Prepared<'a> {
    /// Opens a lane for each worker, so that an unreachable target causes an error before the load
    /// starts. Creates the files that the metadata operations of the load need. If `goes_on`
    /// returns false meanwhile, creates only some of them, and the caller must stop the load.
    ///
    /// # Errors
    /// A lane cannot be opened, or a file cannot be created.
    pub fn new(
        ground: &'a Ground<'a>,
        offer: &'a Offer<'a>,
        place: Place,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Self, TargetError> {
        let (workers, depth) = match offer.load {
            LoadSpec::Closed { workers, depth } => (workers.max(1), depth),
            LoadSpec::Open { workers, in_flight_max, .. } => {
                (workers.max(1), in_flight_max.div_ceil(workers.max(1)))
            }
        };
        check_operations(ground.target, offer.streams)?;
        // COMPARE AND WRITE needs a buffer of twice the operation's size: the data to compare, then
        // the data to write.
        let largest = |stream: &StreamSpec| {
            let times = if stream.op == Some(OpKind::CompareAndWrite) { 2 } else { 1 };
            stream.blocks.iter().map(|share| share.bytes as usize * times).max()
        };
        let of_blocks = offer.streams.iter().filter_map(largest).max().unwrap_or(4096);
        let buffer_bytes = scratch::buffer_bytes(offer.streams, ground.content).max(of_blocks);
        let slots = Slots::new(depth, buffer_bytes);
        let scratch = scratch::prepare(ground, offer.streams, place, workers, goes_on)?;
        let files = scratch.as_ref().and_then(|_| ground.target.files());
        let lane = |_| match files {
            Some(files) => files.lane(slots.all(), slots.depth, buffer_bytes),
            None => ground.target.lane(slots.all(), buffer_bytes),
        };
        let lanes = (0..workers).map(lane).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { ground, offer, place, slots, lanes, scratch })
    }

    /// Generates the load from the time `start` on, which may be in the future. `tell` is as in
    /// [`offer`].
    ///
    /// # Errors
    /// A lane was lost, or the files of the load cannot be checked or removed. The figures measured
    /// so far are discarded.
    pub fn start(
        self,
        start: Instant,
        tell: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Offered, TargetError> {
        let Self { ground, offer, place, slots, lanes, scratch } = self;
        let workers = lanes.len() as u32;
        let (board, stop) = (Board::new(workers), AtomicBool::new(false));
        let times = Times::from(start, offer.warmup, offer.duration);
        let (seed, within) = (place.seed(ground.seed), place.part(ground.dataset));
        let (watched, tallies) = std::thread::scope(|scope| {
            let threads: Vec<_> = (0_u32..)
                .zip(lanes)
                .map(|(number, lane)| {
                    let pace = Pace::of(&offer.load, seed, number);
                    let own = (number, workers);
                    let once = offer.duration.is_none() && offer.worker_bytes.is_none();
                    let chooser =
                        Chooser::new(offer.streams, ground.dataset, &within, own, seed, once)
                            .for_client(place.number);
                    let (board, stop) = (&board, &stop);
                    let mut worker =
                        Worker::new(ground, lane, slots, chooser, pace, times, board, stop);
                    worker.bytes_left = offer.worker_bytes;
                    scope.spawn(move || worker.run())
                })
                .collect();
            let server = ground.target.server_process();
            let watched = watch(&times, &stop, &threads, server, tell);
            let tallies = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            (watched, tallies.collect::<Result<Vec<Tally>, _>>())
        });
        let mut tallies = tallies?;
        let files = match scratch {
            Some(scratch) => {
                let all = tallies.iter_mut().flat_map(|tally| std::mem::take(&mut tally.metadata));
                let check = scratch.check(all.collect());
                scratch.remove()?;
                Some(check?)
            }
            None => None,
        };
        let began = tallies.iter().map(|tally| tally.began).min().unwrap_or(start);
        let run = CellRun { files, ..gather(offer, tallies, &watched, &times, board) };
        Ok(Offered { run, began })
    }
}

/// Checks that the target supports the operations of the streams other than reads and writes. A run
/// makes this check before it starts, but an agent does not.
fn check_operations(target: &dyn Target, streams: &[StreamSpec]) -> Result<(), TargetError> {
    for stream in streams {
        let Some(op) = stream.op else { continue };
        let bytes = stream.blocks.iter().map(|share| share.bytes).max().unwrap_or(0);
        if u64::from(bytes) > target.op_bytes_max(op) {
            let address = target.info().address.clone();
            let why = format!("there is no {} of {bytes} bytes", op.name());
            return Err(TargetError::Protocol { address, why });
        }
    }
    Ok(())
}

/// Measurements of the generator, the server and the machine while the load was running.
struct Watched {
    started_unix_ms: u64,
    cpu_s: (f64, f64),
    clock_jumped: bool,
    /// Steal time (`steal_pct`), and CPU use of all processes except the generator (`others_pct`),
    /// in percent of the machine's cores.
    steal_pct: f64,
    others_pct: f64,
    /// CPU time that the server's process used, in seconds; `None` if it is not known.
    target_cpu_s: Option<f64>,
}

fn watch<T>(
    times: &Times,
    stop: &AtomicBool,
    threads: &[std::thread::ScopedJoinHandle<'_, T>],
    server: Option<u32>,
    tell: &mut dyn FnMut(Duration) -> bool,
) -> Watched {
    let mut wait_until = |until: Option<Instant>| {
        loop {
            let now = Instant::now();
            let over = until.is_some_and(|until| now >= until);
            if over || threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                return;
            }
            if !tell(now.saturating_duration_since(times.start)) {
                stop.store(true, Ordering::Release);
            }
            let left = until.map_or(TELL_EVERY, |until| until.saturating_duration_since(now));
            std::thread::sleep(left.min(TELL_EVERY));
        }
    };
    wait_until(Some(times.counts_from));
    let (wall, monotonic, cpu) = (SystemTime::now(), Instant::now(), process_cpu_s());
    let machine = MachineCpu::now();
    let server_cpu_s = || server.and_then(other_process_cpu_s);
    let server_before = server_cpu_s();
    wait_until(times.ends);
    let server_after = server_cpu_s();
    let cpu_after = process_cpu_s();
    let own_s = cpu_after.0 - cpu.0 + cpu_after.1 - cpu.1;
    let (steal_pct, others_pct) = MachineCpu::now().since(&machine, own_s);
    let elapsed = monotonic.elapsed().as_secs_f64();
    let by_wall = wall.elapsed().map_or(-1.0, |elapsed| elapsed.as_secs_f64());
    let unix = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Watched {
        started_unix_ms: unix.as_millis() as u64,
        cpu_s: (cpu_after.0 - cpu.0, cpu_after.1 - cpu.1),
        clock_jumped: (elapsed - by_wall).abs() > CLOCK_SLACK_S + elapsed * CLOCK_SLACK_PART,
        steal_pct,
        others_pct,
        // If the server was restarted, it reports less CPU time than before, so use `None`.
        target_cpu_s: server_before
            .zip(server_after)
            .map(|(before, after)| after - before)
            .filter(|used| *used >= 0.0),
    }
}

fn gather(
    offer: &Offer<'_>,
    tallies: Vec<Tally>,
    watched: &Watched,
    times: &Times,
    board: Board,
) -> CellRun {
    let ended = tallies.iter().map(|tally| tally.ended).max().unwrap_or(times.counts_from);
    let ends = times.ends.map_or(ended, |ends| ends.min(ended));
    let mut run = CellRun {
        started_unix_ms: watched.started_unix_ms,
        seconds: ends.saturating_duration_since(times.counts_from).as_secs_f64(),
        cpu_s: watched.cpu_s,
        clock_jumped: watched.clock_jumped,
        steal_pct: watched.steal_pct,
        others_pct: watched.others_pct,
        target_cpu_s: watched.target_cpu_s,
        threads: tallies.len() as u32,
        intervals: board.finish(),
        ..CellRun::default()
    };
    let is_open = matches!(offer.load, LoadSpec::Open { .. });
    if let LoadSpec::Open { rate, .. } = offer.load {
        run.offered_iops = Some(rate);
    }
    for stream in offer.streams {
        run.classes.extend(OpKind::ALL.map(|op| ClassResult {
            stream: stream.name.clone(),
            op,
            ops: 0,
            bytes: 0,
            errors: std::collections::BTreeMap::new(),
            latency: Latencies::default(),
            service: is_open.then(Latencies::default),
        }));
    }
    let (mut reads, mut zeros) = (0, 0);
    for tally in tallies {
        for (kind, count) in tally.metadata_ops {
            *run.metadata_ops.entry(kind).or_default() += count;
        }
        for (class, one) in run.classes.iter_mut().zip(tally.classes) {
            let Some(one) = one else { continue };
            class.ops += one.ops;
            class.bytes += one.bytes;
            class.latency.add(&one.latency);
            if let (Some(service), Some(one)) = (&mut class.service, &one.service) {
                service.add(one);
            }
            for (name, count) in one.errors {
                *class.errors.entry(name).or_default() += count;
            }
        }
        run.lag.add(&tally.lag);
        run.backlog_max += tally.backlog_max;
        run.overloaded |= tally.overloaded;
        run.due += tally.due;
        run.answered += tally.answered;
        run.stalls.add(&tally.stalls);
        run.cpu_wait_s += tally.cpu_wait.as_secs_f64();
        run.corrupt += tally.corrupt;
        run.other_run += tally.other_run;
        run.coverage.add(&tally.coverage);
        reads += tally.coverage.checked_reads;
        zeros += tally.zero_reads;
    }
    run.zero_reads_pct = 100.0 * zeros as f64 / f64::max(reads as f64, 1.0);
    run.classes.retain(|class| class.ops > 0 || !class.errors.is_empty());
    run
}

#[cfg(test)]
mod tests;
