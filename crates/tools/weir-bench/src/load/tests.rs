//! Tests of loads on targets with known behaviour: counts, latencies and faults.
//!
//! `selftest` checks the accuracy of the figures on an idle machine.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use crate::content::RunId;
use crate::result::{Coverage, TargetInfo};
use crate::spec::{Access, Arrival, BlockShare, ContentSpec};
use crate::target::memory::{Action, Memory};
use crate::target::shaped::Shaped;
use crate::target::{Done, Op, Wait, null};

const MIB: u64 = 1 << 20;

fn stream(read_pct: f64, access: Access) -> StreamSpec {
    let blocks = vec![BlockShare { bytes: 4096, weight: 1 }];
    StreamSpec { name: String::new(), access, blocks, read_pct, op: None, metadata: None, share: 1 }
}

/// State that a test needs to generate a load on a target.
struct Bench {
    dataset: DatasetSpec,
    content: Content,
    generations: Option<Generations>,
    read_checks: ReadChecks,
    durability: Durability,
}

impl Bench {
    fn new() -> Self {
        let dataset = DatasetSpec { files: 1, file_bytes: 16 * MIB };
        let spec = ContentSpec { compress: 1.0, dedupe_pct: 0.0, unit_bytes: 4096, seed: 3 };
        let content = Content::new(&spec, 4096, dataset.total_bytes());
        let generations = Generations::new(dataset.total_bytes(), 4096);
        let (read_checks, durability) = (ReadChecks::Stamps, Durability::None);
        Self { dataset, content, generations, read_checks, durability }
    }

    fn offer(
        &self,
        target: &dyn Target,
        streams: &[StreamSpec],
        load: LoadSpec,
        ms: Option<u64>,
    ) -> CellRun {
        self.offer_bytes(target, streams, load, ms, None)
    }

    /// Runs a load until each worker has transferred `worker_bytes`.
    fn offer_bytes(
        &self,
        target: &dyn Target,
        streams: &[StreamSpec],
        load: LoadSpec,
        ms: Option<u64>,
        worker_bytes: Option<u64>,
    ) -> CellRun {
        let ground = Ground {
            target,
            dataset: &self.dataset,
            content: &self.content,
            generations: self.generations.as_ref(),
            durability: self.durability,
            seed: 1,
            read_checks: self.read_checks,
        };
        let duration = ms.map(Duration::from_millis);
        let what = Offer { streams, load, warmup: Duration::ZERO, duration, worker_bytes };
        offer(&ground, &what, &mut |_| true).expect("the target is there")
    }

    fn fill(&self, target: &dyn Target) {
        let load = LoadSpec::Closed { workers: 2, depth: 4 };
        let run = self.offer(target, &[stream(0.0, Access::Sequential)], load, None);
        let written: u64 = run.classes.iter().map(|class| class.bytes).sum();
        assert_eq!(written, 16 * MIB, "every block once");
    }
}

fn open_loop(rate: f64, arrival: Arrival) -> LoadSpec {
    LoadSpec::Open { workers: 1, rate, arrival, in_flight_max: 64, backlog_max: 1 << 20 }
}

#[test]
fn open_loop_latency_includes_a_stall_that_a_closed_loop_hides() {
    // The target stalls for half of every second. A closed loop at depth one has only one operation
    // in flight during each stall.
    let stall = || {
        Shaped::stalls(
            Duration::from_micros(500),
            Duration::from_secs(1),
            Duration::from_millis(500),
        )
    };
    let reads = [stream(100.0, Access::Random)];
    let bench = Bench::new();
    let open = bench.offer(&stall(), &reads, open_loop(1000.0, Arrival::Constant), Some(3000));
    let closed = LoadSpec::Closed { workers: 1, depth: 1 };
    let closed = bench.offer(&stall(), &reads, closed, Some(3000));
    let p90 = |run: &CellRun| run.classes[0].latency.percentile_us(90.0).unwrap_or_default();
    // In an open loop, an operation that is due during a stall waits for the end of the stall: up
    // to 500 ms, and 400 ms at the 90th percentile. `selftest` checks the accuracy. While other
    // tests run, completions may be later but are rarely earlier.
    assert!((350_000.0..700_000.0).contains(&p90(&open)), "{}", p90(&open));
    assert!(p90(&closed) < 200_000.0, "{}", p90(&closed));
    let service = open.classes[0].service.as_ref().expect("of an open loop");
    assert_eq!(service.count(), open.classes[0].latency.count());
    assert!((2_900..=3_100).contains(&open.classes[0].ops), "{}", open.classes[0].ops);
}

// Regression: a target that stalled until after the end of a run was steady, because the run
// ignored this stall and had no intervals for the seconds without completions.
#[test]
fn stall_at_the_end_of_a_run_counts() {
    // The target completes operations only in 1.5 s of every 4 s.
    let frozen = Shaped::stalls(
        Duration::from_micros(500),
        Duration::from_secs(4),
        Duration::from_millis(2500),
    );
    let load = LoadSpec::Closed { workers: 2, depth: 1 };
    let reads = [stream(100.0, Access::Random)];
    let run = Bench::new().offer(&frozen, &reads, load, Some(3000));
    assert_eq!(run.intervals.len(), 3, "{:?}", run.intervals);
    let longest_us = run.stalls.max_us();
    assert!((300_000.0..2_900_000.0).contains(&longest_us), "{longest_us}");
    assert!(run.intervals.iter().any(|second| second.ops == 0), "{:?}", run.intervals);
}

#[test]
fn rate_above_target_capacity_is_an_overload() {
    let reads = [stream(100.0, Access::Random)];
    let load = LoadSpec::Open {
        workers: 1,
        rate: 20_000.0,
        arrival: Arrival::Poisson,
        in_flight_max: 16,
        backlog_max: 2_000,
    };
    let run = Bench::new().offer(&Shaped::rate(5_000.0), &reads, load, Some(5000));
    assert!(run.overloaded && run.backlog_max > 2_000, "{}", run.backlog_max);
    assert!(run.seconds < 4.0, "it ends early: {}", run.seconds);
}

#[test]
fn load_ends_when_each_worker_has_done_its_bytes() {
    let (bench, reads) = (Bench::new(), [stream(100.0, Access::Random)]);
    let operations = |run: &CellRun| run.classes.iter().map(|class| class.ops).sum::<u64>();
    let quick = || Shaped::rate(50_000.0);
    let closed = LoadSpec::Closed { workers: 2, depth: 8 };
    let run = bench.offer_bytes(&quick(), &reads, closed, None, Some(MIB));
    assert_eq!(operations(&run), 2 * 256);
    let poisson = LoadSpec::Open {
        workers: 2,
        rate: 2_000.0,
        arrival: Arrival::Poisson,
        in_flight_max: 8,
        backlog_max: 1 << 20,
    };
    let run = bench.offer_bytes(&quick(), &reads, poisson, None, Some(MIB));
    assert_eq!(operations(&run), 2 * 256);
    assert!(!run.overloaded && run.due == 2 * 256, "{} due", run.due);
    // The duration ends the run before the workers have transferred their number of bytes.
    let run = bench.offer_bytes(&quick(), &reads, closed, Some(200), Some(1 << 40));
    assert!(run.seconds < 1.0 && operations(&run) > 0, "{} s", run.seconds);
}

// Regression: the last second reported no operation in flight, because the worker counted the
// operations in flight only after the last completion.
#[test]
fn queue_of_a_slow_target_shows_in_each_second() {
    let reads = [stream(100.0, Access::Random)];
    let load = LoadSpec::Open {
        workers: 1,
        rate: 1_000.0,
        arrival: Arrival::Constant,
        in_flight_max: 4_096,
        backlog_max: 1 << 20,
    };
    let run = Bench::new().offer(&Shaped::rate(800.0), &reads, load, Some(3000));
    let queue: Vec<u64> = run.intervals.iter().map(|second| second.in_flight).collect();
    // The target completes 800 of 1,000 operations per second, so its queue grows by 200 in each
    // second.
    let grows = |pair: &[u64]| pair[1] >= pair[0] + 100;
    assert!(queue.len() == 3 && queue.windows(2).all(grows), "{queue:?}");
}

/// Target that completes one operation for each `reap`, and records the smallest number of
/// operations that were in flight while a buffer was being filled.
struct OneByOne {
    depth: usize,
    info: TargetInfo,
    least: Arc<Mutex<Option<usize>>>,
    /// Number of lanes that were finished.
    finished: Arc<Mutex<u32>>,
}

struct OneByOneLane {
    buffers: Vec<Vec<u8>>,
    depth: usize,
    under_way: VecDeque<usize>,
    was_full: bool,
    least: Arc<Mutex<Option<usize>>>,
    /// Number of lanes that were finished.
    finished: Arc<Mutex<u32>>,
}

/// Queue depth that the tests use on [`OneByOne`].
const DEPTH: u32 = 8;

impl Default for OneByOne {
    fn default() -> Self {
        Self {
            depth: DEPTH as usize,
            info: TargetInfo::default(),
            least: Arc::default(),
            finished: Arc::default(),
        }
    }
}

impl Target for OneByOne {
    fn info(&self) -> &TargetInfo {
        &self.info
    }
    fn keeps_data(&self) -> bool {
        false
    }
    fn lane(&self, slots: usize, buffer_bytes: usize) -> Result<Box<dyn Lane>, TargetError> {
        let (buffers, least) = (vec![vec![0; buffer_bytes]; slots], Arc::clone(&self.least));
        let (depth, under_way) = (self.depth, VecDeque::new());
        let finished = Arc::clone(&self.finished);
        Ok(Box::new(OneByOneLane { buffers, depth, under_way, was_full: false, least, finished }))
    }
}

impl Lane for OneByOneLane {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        assert!(!self.under_way.contains(&slot), "it is in use");
        let (now, mut least) = (self.under_way.len(), self.least.lock());
        if self.was_full {
            *least = Some(least.map_or(now, |least| least.min(now)));
        }
        &mut self.buffers[slot]
    }
    fn submit(&mut self, slot: usize, _: &Op) -> Result<(), TargetError> {
        self.under_way.push_back(slot);
        assert!(self.under_way.len() <= self.depth, "no more than were asked for");
        self.was_full |= self.under_way.len() == self.depth;
        Ok(())
    }
    fn reap(&mut self, _: Wait, done: &mut Vec<Done>) -> Result<(), TargetError> {
        let at = Instant::now();
        done.extend(self.under_way.pop_front().map(|slot| Done { slot, result: Ok(()), at }));
        Ok(())
    }
    fn finish(&mut self) -> Result<(), TargetError> {
        assert!(self.under_way.is_empty(), "the worker still has operations in flight");
        *self.finished.lock() += 1;
        Ok(())
    }
}

/// Regression: NFS servers kept the data of a run in memory when the run ended, because no worker
/// sent COMMIT.
#[test]
fn every_worker_finishes_its_lane_at_the_end_of_a_load() {
    for ms in [None, Some(100)] {
        let (bench, target) = (Bench::new(), OneByOne::default());
        let load = LoadSpec::Closed { workers: 3, depth: DEPTH };
        bench.offer(&target, &[stream(0.0, Access::Sequential)], load, ms);
        assert_eq!(*target.finished.lock(), 3, "{ms:?}");
    }
}

/// Regression: the worker generated content between a completion and the next operation, so that
/// only 29 of 32 operations were in flight.
#[test]
fn queue_depth_is_kept_while_content_is_generated() {
    let (bench, target) = (Bench::new(), OneByOne::default());
    let load = LoadSpec::Closed { workers: 1, depth: DEPTH };
    let run = bench.offer(&target, &[stream(0.0, Access::Random)], load, Some(100));
    assert!(run.classes[0].ops > u64::from(DEPTH), "{run:?}");
    assert_eq!(*target.least.lock(), Some(DEPTH as usize));
    // Operations that the worker prepared but never sent must leave no write in flight.
    let known = bench.generations.as_ref().expect("it is small");
    let blocks = (0..16 * MIB).step_by(4096).map(|offset| known.now(offset).expect("known"));
    assert!(blocks.into_iter().all(|now| now.start() == now.end()));
}

/// Regression: if the block of a write was busy, the worker drew another operation, which was most
/// often a read.
#[test]
fn read_share_is_kept_when_writes_find_busy_blocks() {
    let bench = Bench::new();
    let blocks = vec![BlockShare { bytes: 512 << 10, weight: 1 }];
    let half = StreamSpec { blocks, ..stream(50.0, Access::Random) };
    let load = LoadSpec::Closed { workers: 1, depth: 16 };
    let run = bench.offer(&OneByOne { depth: 16, ..OneByOne::default() }, &[half], load, Some(300));
    let ops = |kind| -> f64 {
        run.classes.iter().filter(|class| class.op == kind).map(|class| class.ops as f64).sum()
    };
    let (reads, writes) = (ops(OpKind::Read), ops(OpKind::Write));
    assert!(reads + writes > 1_000.0, "{reads} and {writes}");
    assert!((reads / (reads + writes) - 0.5).abs() < 0.06, "{reads} reads, {writes} writes");
}

#[test]
fn mixes_seconds_and_counts_add_up() {
    let target = null();
    let load = LoadSpec::Closed { workers: 2, depth: 8 };
    let run = Bench::new().offer(&target, &[stream(0.0, Access::Random)], load, Some(2500));
    assert_eq!(run.classes.len(), 1);
    assert_eq!(run.intervals.len(), 3, "whole seconds, and the rest is an interval of its own");
    assert_eq!(crate::summary::whole_intervals(&run).count(), 2);
    let by_second: u64 = run.intervals.iter().map(|second| second.ops).sum();
    assert_eq!(by_second, run.classes[0].ops);
    assert!((run.seconds - 2.5).abs() < 0.01 && run.cpu_s.0 > 0.05, "{run:?}");
}

#[test]
fn verified_reads_find_every_fault_of_a_target() {
    for (fault, is_zeros) in [
        (None, false),
        (Some(Action::BitFlipped), false),
        (Some(Action::Misplaced(8192)), false),
        (Some(Action::Lost), true),
    ] {
        // One write of the fill has a fault: the write to the block at 1 MiB.
        let memory = Memory::twisted(16 << 20, move |op| match fault {
            Some(fault) if op.kind == OpKind::Write && op.offset == MIB => fault,
            _ => Action::Right,
        });
        let bench = Bench::new();
        bench.fill(&memory);
        let found = crate::verify::verify(
            &memory,
            &bench.content,
            bench.generations.as_ref(),
            &bench.dataset,
            100.0,
            7,
        )
        .expect("it can be read");
        assert_eq!(found.blocks, 4096);
        match fault {
            None => assert_eq!(found.bad, 0),
            // The verification also finds the block that the misplaced write overwrote.
            Some(Action::Misplaced(_)) => assert_eq!(found.bad, 2, "{found:?}"),
            Some(_) => assert_eq!(found.bad, 1, "{found:?}"),
        }
        assert_eq!(
            found.examples.iter().any(|text| text.contains("zeros")),
            is_zeros || matches!(fault, Some(Action::Misplaced(_))),
            "{found:?}"
        );
    }
}

// Regression: only the first block of a read was compared, so that only the final verification
// found a partly lost write.
#[test]
fn compared_read_checks_every_block() {
    // The third of the four blocks of this read has the flipped bit.
    let memory = Memory::twisted(16 << 20, |op| match op.kind {
        OpKind::Read => Action::BitFlipped,
        _ => Action::Right,
    });
    let bench = Bench::new();
    bench.fill(&memory);
    let blocks = vec![BlockShare { bytes: 16 << 10, weight: 1 }];
    let reads = StreamSpec { blocks, ..stream(100.0, Access::Random) };
    let load = LoadSpec::Closed { workers: 1, depth: 4 };
    let run = bench.offer(&memory, &[reads], load, Some(300));
    assert!(run.corrupt > 0, "{} reads", run.classes[0].ops);
}

#[test]
fn lost_overwrite_is_found_as_an_older_generation() {
    let lost = Arc::new(AtomicBool::new(false));
    let losing = Arc::clone(&lost);
    let memory = Memory::twisted(16 << 20, move |op| {
        let lose = losing.load(Ordering::Acquire) && op.kind == OpKind::Write && op.offset < MIB;
        if lose { Action::Lost } else { Action::Right }
    });
    let bench = Bench::new();
    bench.fill(&memory);
    lost.store(true, Ordering::Release);
    bench.fill(&memory);
    let (content, known) = (&bench.content, bench.generations.as_ref());
    let found = crate::verify::verify(&memory, content, known, &bench.dataset, 100.0, 7);
    let found = found.expect("it can be read");
    assert_eq!(found.bad, MIB / 4096, "{found:?}");
    assert!(found.examples[0].contains("generation 1"), "{found:?}");
}

#[test]
fn reads_during_writes_are_verified_and_holes_are_reported() {
    let memory = Memory::new(16 << 20);
    let bench = Bench::new();
    let load = LoadSpec::Closed { workers: 2, depth: 4 };
    // Read each block once, without a time limit.
    let holes = bench.offer(&memory, &[stream(100.0, Access::Sequential)], load, None);
    assert_eq!((holes.zero_reads_pct, holes.corrupt), (100.0, 0));
    assert_eq!(holes.classes[0].ops, 16 * MIB / 4096);
    bench.fill(&memory);
    let run = bench.offer(&memory, &[stream(50.0, Access::Random)], load, Some(500));
    assert_eq!((run.corrupt, run.zero_reads_pct), (0, 0.0));
    assert!(run.classes.len() == 2 && run.classes.iter().all(|class| class.ops > 100));
}

#[test]
fn full_verification_checks_each_byte_of_each_block_of_a_read() {
    // The fill damages one block: the third block of a read of 16 KiB.
    let memory = Memory::twisted(16 << 20, |op| match op.kind {
        OpKind::Write if op.offset == MIB + 8192 => Action::BitFlipped,
        _ => Action::Right,
    });
    let mut bench = Bench::new();
    bench.fill(&memory);
    let blocks = vec![BlockShare { bytes: 16 << 10, weight: 1 }];
    let reads = [StreamSpec { blocks, ..stream(100.0, Access::Sequential) }];
    let load = LoadSpec::Closed { workers: 2, depth: 4 };
    let mut of = |read_checks| {
        bench.read_checks = read_checks;
        let run = bench.offer(&memory, &reads, load, None);
        (run.corrupt, run.coverage)
    };
    let (reads, bytes) = (16 * MIB / (16 << 10), 16 * MIB);
    let (corrupt, coverage) = of(ReadChecks::Stamps);
    assert_eq!((corrupt, coverage.checked_reads), (0, reads), "a stamp is of the first block");
    assert!(coverage.compared_bytes < bytes / 8, "{coverage:?}");
    let (corrupt, coverage) = of(ReadChecks::Full);
    assert_eq!(corrupt, 1);
    let checked_reads = reads;
    assert_eq!(coverage, Coverage { reads, checked_reads, bytes, compared_bytes: bytes });
    assert_eq!(of(ReadChecks::Off).1, Coverage { reads, bytes, ..Coverage::default() });
}

// Regression: two runs with the same seed wrote the same blocks. If the writes of the second run
// were lost, its checks accepted the blocks of the first run.
#[test]
fn blocks_of_an_earlier_run_are_reported() {
    let lost = Arc::new(AtomicBool::new(false));
    let losing = Arc::clone(&lost);
    let memory = Memory::twisted(16 << 20, move |op| {
        let lose = losing.load(Ordering::Acquire) && op.kind == OpKind::Write && op.offset < MIB;
        if lose { Action::Lost } else { Action::Right }
    });
    Bench::new().fill(&memory);
    lost.store(true, Ordering::Release);
    let mut bench = Bench::new();
    bench.content = bench.content.of_run(RunId::random());
    bench.fill(&memory);
    let load = LoadSpec::Closed { workers: 2, depth: 4 };
    let run = bench.offer(&memory, &[stream(100.0, Access::Sequential)], load, None);
    assert_eq!((run.corrupt, run.other_run), (0, MIB / 4096));
    let (content, known) = (&bench.content, bench.generations.as_ref());
    let found = crate::verify::verify(&memory, content, known, &bench.dataset, 100.0, 7);
    let found = found.expect("it can be read");
    assert_eq!((found.bad, found.other_run), (MIB / 4096, MIB / 4096), "{found:?}");
    assert!(found.examples[0].contains("another run"), "{found:?}");
}

/// Returns one stream for each kind of operation. All the streams use the same blocks.
fn all_kinds() -> Vec<StreamSpec> {
    let own = [OpKind::Trim, OpKind::WriteSame, OpKind::CompareAndWrite, OpKind::Copy];
    let own = own.map(|op| StreamSpec { op: Some(op), ..stream(0.0, Access::Random) });
    // If the target itself changed a block (trim, zeros, copy), reads of the block are verified
    // only after the next write to it. So use enough writes to rewrite such a block soon.
    let mixed = StreamSpec { share: 8, ..stream(50.0, Access::Random) };
    own.into_iter().chain([mixed]).collect()
}

#[test]
fn each_worker_flushes_after_its_number_of_bytes() {
    let durability = Durability::FlushBytes { every_bytes: MIB };
    let bench = Bench { durability, ..Bench::new() };
    let load = LoadSpec::Closed { workers: 2, depth: 4 };
    let memory = Memory::new(16 << 20);
    let run = bench.offer(&memory, &[stream(0.0, Access::Sequential)], load, None);
    let flushes = run.classes.iter().filter(|class| class.op == OpKind::Flush);
    assert_eq!(flushes.map(|class| class.ops).sum::<u64>(), 16);
}

#[test]
fn offloaded_operations_are_counted_and_pass_verification() {
    let memory = Memory::twisted(16 << 20, |_| Action::Right);
    let bench = Bench::new();
    bench.fill(&memory);
    let load = LoadSpec::Closed { workers: 2, depth: 8 };
    let run = bench.offer(&memory, &all_kinds(), load, Some(700));
    assert_eq!((run.corrupt, run.zero_reads_pct), (0, 0.0));
    for kind in OpKind::ALL.into_iter().filter(|kind| kind.is_data()) {
        let classes = run.classes.iter().filter(|class| class.op == kind);
        let (ops, bytes) = classes.clone().fold((0, 0), |(ops, bytes), class| {
            assert!(class.errors.is_empty(), "{kind:?} {:?}", class.errors);
            (ops + class.ops, bytes + class.bytes)
        });
        assert!(ops > 100 && bytes == ops * 4096, "{kind:?}: {ops} operations, {bytes} bytes");
    }
    let known = bench.generations.as_ref();
    let verified = crate::verify::verify(&memory, &bench.content, known, &bench.dataset, 100.0, 1);
    let verified = verified.expect("it is there");
    assert_eq!(verified.bad, 0, "{:?}", verified.examples);
    // The verification skips a block whose last change was a trim, and judges a block whose last
    // change was a write.
    assert!((3072..4096).contains(&verified.blocks), "{} blocks", verified.blocks);
}

#[test]
fn lost_compare_and_write_is_found() {
    // The target compares correctly, but loses the write of the command.
    let memory = Memory::twisted(16 << 20, |op| match op.kind {
        OpKind::CompareAndWrite if op.offset == MIB => Action::Lost,
        _ => Action::Right,
    });
    let bench = Bench::new();
    bench.fill(&memory);
    let one = StreamSpec { op: Some(OpKind::CompareAndWrite), ..stream(0.0, Access::Random) };
    let load = LoadSpec::Closed { workers: 1, depth: 4 };
    let run = bench.offer(&memory, &[one], load, Some(700));
    let known = bench.generations.as_ref();
    let verified = crate::verify::verify(&memory, &bench.content, known, &bench.dataset, 100.0, 1);
    let verified = verified.expect("it is there");
    // Either a later COMPARE AND WRITE or the final verification finds the block that kept its old
    // contents.
    let differs = run.classes.iter().flat_map(|class| class.errors.values()).sum::<u64>();
    assert!(verified.bad > 0 || differs > 0, "{run:?} {verified:?}");
}
