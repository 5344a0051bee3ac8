//! Tests of complete runs: phases, verdicts, searches, and resumption after a stop.
//!
//! `selftest` checks the accuracy of the figures on an idle machine.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::result::TargetInfo;
use crate::spec::{
    Arrival, BonnieSize, BonnieSpec, CacheState, ContentSpec, DatasetSpec, Durability, FillSpec,
    LatencyBound, LatencyFigure, MetadataKind, MetadataShare, MetadataSpec, OpKind,
    PreconditionSpec, Requirement, Scale,
};
use crate::target::memory::{Action, Memory};
use crate::target::shaped::Shaped;
use crate::target::{Lane, Op};
use crate::verdict::{Finding, JudgedRun};

/// Observer that prints nothing and stops the run after a number of cell runs.
struct Quiet {
    runs: usize,
    runs_max: usize,
}

const TO_THE_END: usize = usize::MAX;

impl Observer for Quiet {
    fn begins(&mut self, _: &str, _: u32, _: u32) {}
    fn done(&mut self, _: f64) {}
    fn goes_on(&mut self) -> bool {
        self.runs < self.runs_max
    }
    fn keep(&mut self, result: &RunResult) {
        self.runs = result.cells.iter().map(|cell| cell.runs.len()).sum();
    }
}

fn cell(name: &str, read_pct: f64, load: LoadSpec) -> CellSpec {
    let blocks = vec![BlockShare { bytes: 4096, weight: 1 }];
    let (stream, access) = (String::new(), Access::Random);
    CellSpec {
        name: name.to_owned(),
        table: "test".to_owned(),
        variant: None,
        streams: vec![StreamSpec {
            name: stream,
            access,
            blocks,
            read_pct,
            op: None,
            metadata: None,
            share: 1,
        }],
        load,
        warmup_ms: 0,
        duration_ms: 200,
        worker_bytes: None,
        runs: 3,
        cache: CacheState::AsIs,
        verify_pct: 100.0,
        verify_full: false,
        search: None,
        clients: 1,
    }
}

fn spec(cells: Vec<CellSpec>) -> RunSpec {
    RunSpec {
        name: "test".to_owned(),
        title: "test".to_owned(),
        reference: None,
        assume: Vec::new(),
        scale: Scale::Smoke,
        dataset: DatasetSpec { files: 1, file_bytes: 8 << 20 },
        content: ContentSpec { compress: 1.0, dedupe_pct: 0.0, unit_bytes: 4096, seed: 5 },
        durability: Durability::None,
        fill: FillSpec { block_bytes: 1 << 20, in_flight: 4 },
        precondition: None,
        cells,
        require: None,
        limits: None,
        sizing: None,
        cost: None,
        told: crate::spec::StatedTarget::default(),
        bonnie: None,
    }
}

fn do_run(spec: &RunSpec, target: &dyn Target) -> RunResult {
    let mut quiet = Quiet { runs: 0, runs_max: TO_THE_END };
    run(spec, target, &Clients::none(), Vec::new(), Before::default(), &mut quiet)
        .expect("it can begin")
}

const FOUR: LoadSpec = LoadSpec::Closed { workers: 1, depth: 4 };

fn open(rate: f64) -> LoadSpec {
    let (arrival, in_flight_max, backlog_max) = (Arrival::Poisson, 256, 100_000);
    LoadSpec::Open { workers: 1, rate, arrival, in_flight_max, backlog_max }
}

fn findings(result: RunResult, cell: usize) -> Vec<Finding> {
    let judged = JudgedRun::of(result);
    judged.cells()[cell].remarks.iter().map(|remark| remark.finding).collect()
}

#[test]
fn run_fills_measures_and_verifies_all_cells() {
    let spec = spec(vec![cell("reads", 100.0, FOUR), cell("mix", 70.0, FOUR)]);
    let result = do_run(&spec, &Memory::new(8 << 20));
    assert!(result.complete && result.cells.len() == 2);
    assert_eq!(result.cells[1].spec.name, "mix", "in the order of the spec");
    assert!(result.cells.iter().all(|cell| cell.runs.len() == 3));
    let verified = result.cells[1].verified.as_ref().expect("it writes");
    assert_eq!((verified.blocks, verified.bad), (2048, 0));
    assert_eq!(result.phases[0].name, "fill");
    let json = serde_json::to_string(&result).expect("it is plain data");
    let again: RunResult = serde_json::from_str(&json).expect("as it was written");
    assert_eq!(again.spec_hash, spec_hash(&spec));
}

// Regression: faults that were found by reads before the first cell were not in the result.
#[test]
fn corrupt_reads_before_the_first_row_make_it_corrupt() {
    let misread = |is_wrong: fn(u32, &Op) -> bool| {
        let reads = AtomicU32::new(0);
        Memory::twisted(8 << 20, move |op| match op.kind {
            OpKind::Read if is_wrong(reads.fetch_add(1, Ordering::Relaxed), op) => {
                Action::Misplaced(4 << 20)
            }
            _ => Action::Right,
        })
    };
    let mut spec = spec(vec![cell("reads", 100.0, FOUR)]);
    let (round_ms, window, rounds_max) = (50, 2, 4);
    let precondition =
        PreconditionSpec { round_ms, window, range_pct: 1.0, slope_pct: 1.0, rounds_max };
    spec.precondition = Some(precondition);
    // The probe reads only 64 blocks, so the wrong reads up to number 200 also hit the
    // preconditioning.
    let early = misread(|number, _| number < 200);
    assert_eq!(findings(do_run(&spec, &early), 0)[0], Finding::Corrupt);
    spec.precondition = None;
    spec.cells[0].cache = CacheState::Warm;
    let warming = misread(|_, op| op.len_bytes == 1 << 20 && op.offset < 4 << 20);
    assert_eq!(findings(do_run(&spec, &warming), 0)[0], Finding::Corrupt);
}

#[test]
fn faults_of_a_target_become_findings() {
    let one = |target: &dyn Target, load| {
        findings(do_run(&spec(vec![cell("mix", 50.0, load)]), target), 0)
    };
    let rotten = Memory::twisted(8 << 20, |op| match op.offset {
        0..4096 if op.kind == OpKind::Read => Action::BitFlipped,
        _ => Action::Right,
    });
    assert_eq!(one(&rotten, FOUR)[0], Finding::Corrupt);
    // The fill writes blocks of 1 MiB, so only the 4 KiB writes of the cell fail.
    let broken = Memory::twisted(8 << 20, |op| match op.offset {
        0..0x10_0000 if op.len_bytes == 4096 => Action::Fails,
        _ => Action::Right,
    });
    let found = one(&broken, FOUR);
    assert_eq!(found[0], Finding::Invalid);
    assert!(!found.contains(&Finding::Corrupt), "an error is no wrong block: {found:?}");
    let slow = Shaped::rate(2_000.0);
    let load = LoadSpec::Open {
        workers: 1,
        rate: 50_000.0,
        arrival: Arrival::Constant,
        in_flight_max: 16,
        backlog_max: 1_000,
    };
    let small = RunSpec {
        dataset: DatasetSpec { files: 1, file_bytes: 1 << 20 },
        ..spec(vec![cell("writes", 0.0, load)])
    };
    assert!(findings(do_run(&small, &slow), 0).contains(&Finding::Overload));
    let forgetful = Memory::twisted(8 << 20, |_| Action::Lost);
    let found = one(&forgetful, FOUR);
    assert!(found.contains(&Finding::Corrupt), "{found:?}");
}

// Regression: errors of the fill were ignored, and blocks that the fill had not written counted as
// corrupt.
#[test]
fn refused_fill_ends_the_run() {
    let every = |kind| {
        Memory::twisted(8 << 20, move |op| match op.offset {
            0x10_0000..0x20_0000 if op.kind == kind => Action::Fails,
            _ => Action::Right,
        })
    };
    let spec = spec(vec![cell("reads", 100.0, FOUR)]);
    let mut quiet = Quiet { runs: 0, runs_max: TO_THE_END };
    let nobody = Clients::none();
    let full = every(OpKind::Write);
    let error = run(&spec, &full, &nobody, Vec::new(), Before::default(), &mut quiet)
        .expect_err("nothing was written there");
    assert!(error.to_string().contains("not written: write failed 1 times"), "{error}");
    let worn = every(OpKind::Read);
    let found = findings(do_run(&spec, &worn), 0);
    assert!(found[0] == Finding::Invalid && !found.contains(&Finding::Corrupt), "{found:?}");
}

// Regression: a bad block that the verification found affected only cells that write.
#[test]
fn bad_block_invalidates_read_only_rows() {
    // The bad byte is after the stamp, in a block that reads rarely compare byte by byte.
    let rotten = Memory::twisted(8 << 20, |op| match op.kind {
        OpKind::Write if op.offset == 0x10_0000 => Action::BitFlipped,
        _ => Action::Right,
    });
    let result = do_run(&spec(vec![cell("reads", 100.0, FOUR)]), &rotten);
    assert_eq!(result.cells[0].verified.as_ref().map(|found| found.bad), Some(1));
    assert_eq!(findings(result, 0)[0], Finding::Corrupt);
}

#[test]
fn knee_search_brackets_the_limit() {
    let slo = Requirement {
        latency: vec![LatencyBound {
            stream: None,
            op: None,
            figure: LatencyFigure::P99,
            max_us: 400_000.0,
        }],
        ..Requirement::default()
    };
    let knee = CellSpec {
        duration_ms: 1000,
        runs: 1,
        search: Some(SearchSpec::Knee { tolerance_pct: 3.0, slo }),
        ..cell("knee", 100.0, open(3000.0))
    };
    let small =
        RunSpec { dataset: DatasetSpec { files: 1, file_bytes: 1 << 20 }, ..spec(vec![knee]) };
    let result = do_run(&small, &Shaped::rate(6_000.0));
    let points = &result.cells[0].points;
    let best = points.iter().filter(|point| point.met).map(|point| point.offered_iops);
    let best = best.fold(0.0, f64::max);
    // The self-test checks the accuracy of the search. Here, other load that lasts longer than the
    // latency bound may lower the result, but no machine can exceed the limit by more than the
    // bound permits.
    assert!((1.0..=9_000.0).contains(&best), "{best}");
    assert!(points.iter().any(|point| !point.met));
    assert!(points.is_sorted_by(|a, b| a.offered_iops <= b.offered_iops));
}

#[test]
fn stopped_run_keeps_its_results_and_resumes() {
    let spec = spec(vec![cell("a", 100.0, FOUR), cell("b", 100.0, FOUR)]);
    let memory = Memory::new(8 << 20);
    let mut short = Quiet { runs: 0, runs_max: 2 };
    let first = run(&spec, &memory, &Clients::none(), Vec::new(), Before::default(), &mut short)
        .expect("it can begin");
    let had: usize = first.cells.iter().map(|cell| cell.runs.len()).sum();
    assert_eq!((first.complete, had, short.runs), (false, 2, 2));
    let before = Before { cells: first.cells.clone(), bonnie: None };
    let mut rest = Quiet { runs: 0, runs_max: TO_THE_END };
    let second =
        run(&spec, &memory, &Clients::none(), Vec::new(), before, &mut rest).expect("it can begin");
    assert!(second.complete && second.cells.iter().all(|cell| cell.runs.len() == 3));
    assert_eq!(second.cells[0].spec.name, "a");
}

#[test]
fn operations_that_do_not_fit_are_refused() {
    let memory = Memory::new(8 << 20);
    let mut odd = spec(vec![cell("odd", 100.0, FOUR)]);
    odd.cells[0].streams[0].blocks[0].bytes = 1000;
    let mut quiet = Quiet { runs: 0, runs_max: TO_THE_END };
    let refused = run(&odd, &memory, &Clients::none(), Vec::new(), Before::default(), &mut quiet);
    assert!(matches!(refused, Err(RunError::Target(TargetError::Unaligned { .. }))));
    odd.cells[0].streams[0].blocks[0].bytes = 3 << 20;
    let refused = run(&odd, &memory, &Clients::none(), Vec::new(), Before::default(), &mut quiet);
    assert!(matches!(refused, Err(RunError::Block { .. })));
}

/// Target in memory that reports itself as a file.
struct Placed {
    memory: Memory,
    info: TargetInfo,
}

impl Target for Placed {
    fn info(&self) -> &TargetInfo {
        &self.info
    }
    fn lane(&self, slots: usize, buffer_bytes: usize) -> Result<Box<dyn Lane>, TargetError> {
        self.memory.lane(slots, buffer_bytes)
    }
}

#[test]
fn file_test_runs_next_to_a_file_and_is_skipped_elsewhere() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("target.dat");
    let size = BonnieSize::Bytes { bytes: 256 << 10 };
    let bonnie = Some(BonnieSpec { size, files: 16, runs: 1 });
    let spec = RunSpec { bonnie, ..spec(vec![cell("reads", 100.0, FOUR)]) };
    let memory = Memory::new(8 << 20);
    let (kind, address) = ("file".to_owned(), path.display().to_string());
    let info = TargetInfo { address, kind, ..memory.info().clone() };
    let result = do_run(&spec, &Placed { memory, info });
    assert!(result.complete, "{:?}", result.warnings);
    let done = result.bonnie.as_ref().expect("it was done");
    assert_eq!((done.runs.len(), done.file_bytes, done.runs[0].bad_blocks), (1, 256 << 10, 0));
    let judged = JudgedRun::of(result);
    assert_eq!(judged.bonnie().len(), 12);
    let markdown = crate::report::markdown(&judged);
    assert!(markdown.contains("| sequential output block (write) | under-sampled | KiB/s |"));
    let left_out = do_run(&spec, &Memory::new(8 << 20));
    assert!(left_out.complete && left_out.bonnie.is_none());
    let said = left_out.warnings.iter().any(|w| w.contains("skipped: memory is neither a file"));
    assert!(said, "{:?}", left_out.warnings);
}

#[test]
fn cache_state_is_established_or_warned_about() {
    let reads = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = std::sync::Arc::clone(&reads);
    let memory = Memory::twisted(8 << 20, move |op| {
        // Only the reads that warm the cache are larger than 4 KiB, the block size of the cell.
        let large = op.kind == OpKind::Read && op.len_bytes > 4096;
        count.fetch_add(u64::from(large) * u64::from(op.len_bytes), Ordering::Relaxed);
        Action::Right
    });
    let of = |cache| {
        let mut declared = CellSpec { cache, runs: 1, ..cell("reads", 100.0, FOUR) };
        declared.verify_pct = 0.0;
        spec(vec![declared])
    };
    let warm = do_run(&of(CacheState::Warm), &memory);
    assert_eq!((warm.warnings.len(), reads.load(Ordering::Relaxed)), (0, 8 << 20));
    for cache in [CacheState::Cold, CacheState::WarmMetadata] {
        let result = do_run(&of(cache), &memory);
        assert!(result.warnings[0].contains("may be false"), "{:?}", result.warnings);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let address = target::Address::File(directory.path().join("file"));
    let cold = of(CacheState::Cold);
    let file = target::open(&address, &cold.dataset).expect("it is made");
    assert_eq!(do_run(&cold, &*file).warnings, Vec::<String>::new());
}

#[test]
fn metadata_operations_on_a_directory_have_a_class_and_a_verdict() {
    let path = tempfile::tempdir().unwrap();
    let mut files = cell("create", 0.0, FOUR);
    files.streams[0].blocks.clear();
    files.streams[0].op = Some(OpKind::Create);
    let of = MetadataSpec::Files { files: 40, file_bytes: 512, shared: true };
    files.streams[0].metadata = Some(of);
    // The run ends with its files, also on a busy machine.
    files.duration_ms = 20_000;
    let mut mixed = cell("mix", 50.0, FOUR);
    let shares = MetadataKind::ALL.map(|op| MetadataShare { op, weight: 1.0 }).to_vec();
    mixed.streams[0].metadata = Some(MetadataSpec::Mix { pct: 20.0, shares });
    let spec = spec(vec![files, mixed]);
    let target = target::open(&target::Address::Directory(path.path().into()), &spec.dataset);
    let result = do_run(&spec, &*target.expect("a directory"));
    assert!(result.complete, "{:?}", result.cells);
    let [create, mix] = &result.cells[..] else { panic!("two cells") };
    for run in &create.runs {
        let files = run.files.as_ref().expect("it creates files");
        assert_eq!((run.classes[0].op, files.listed), (OpKind::Create, run.classes[0].ops));
    }
    let ops: Vec<OpKind> = mix.runs[0].classes.iter().map(|class| class.op).collect();
    assert_eq!(ops, [OpKind::Read, OpKind::Write, OpKind::Metadata]);
    let judged = JudgedRun::of(result);
    let summary = &judged.cells()[1].summary;
    assert!(summary.metadata_iops.median > 0.0 && summary.metadata_latency.count > 0);
    assert!((summary.metadata_pct - 20.0).abs() < 10.0, "{}", summary.metadata_pct);
    let corrupt = |finding: &Finding| *finding == Finding::Corrupt;
    assert!(!judged.findings().iter().any(corrupt), "{:?}", judged.findings());
}

#[test]
fn metadata_operations_are_refused_before_anything_is_written() {
    let memory = Memory::new(8 << 20);
    let mut files = cell("create", 0.0, FOUR);
    files.streams[0].blocks.clear();
    files.streams[0].op = Some(OpKind::Create);
    let of = MetadataSpec::Files { files: 40, file_bytes: 0, shared: false };
    files.streams[0].metadata = Some(of);
    let clients = Clients::none();
    let run_it = |cell: CellSpec| {
        let mut quiet = Quiet { runs: 0, runs_max: TO_THE_END };
        let spec = spec(vec![cell]);
        run(&spec, &memory, &clients, Vec::new(), Before::default(), &mut quiet)
    };
    let error = run_it(files.clone()).expect_err("blocks only").to_string();
    assert!(error.contains("create: ") && error.contains("dir:PATH"), "{error}");
    files.streams[0].metadata = None;
    let error = run_it(files).expect_err("an edited result").to_string();
    assert!(error.contains("contradict"), "{error}");
}
