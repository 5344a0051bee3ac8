//! Synthetic results, for tests of code that reads results.
//!
//! The results are made up; no code here measures a target.
//!
//! Invariant: equal arguments give bit-identical results.

use std::collections::BTreeMap;

use crate::histogram::Latencies;
use crate::result::{
    CellResult, CellRun, ClassResult, CurvePoint, Environment, Interval, PhaseResult, RunResult,
    SCHEMA, TargetInfo,
};
use crate::spec::{
    Access, BlockShare, CacheState, CellSpec, ContentSpec, DatasetSpec, Durability, FillSpec,
    LoadSpec, OpKind, RunSpec, Scale, SearchSpec, StreamSpec,
};

/// Block size of every operation.
const BLOCK_BYTES: u32 = 4096;

/// Returns a closed-loop run of `seconds` with `iops` operations per second and constant latencies.
pub(crate) fn closed_run(
    iops: u64,
    seconds: u32,
    read_pct: u64,
    read_us: u64,
    write_us: u64,
) -> CellRun {
    let total = iops * u64::from(seconds);
    let reads = total * read_pct / 100;
    let all = [(OpKind::Read, reads, read_us), (OpKind::Write, total - reads, write_us)];
    let some = all.into_iter().filter(|(_, ops, _)| *ops > 0);
    let classes = some.map(|(op, ops, us)| class(op, ops, us)).collect();
    let second = |second| Interval {
        second,
        ops: iops,
        bytes: iops * u64::from(BLOCK_BYTES),
        mean_us: read_us.midpoint(write_us) as f64,
        p50_us: read_us.midpoint(write_us) as f64,
        p99_us: read_us.max(write_us) as f64,
        max_us: read_us.max(write_us) as f64,
        backlog: 0,
        in_flight: 0,
    };
    CellRun {
        started_unix_ms: 1_700_000_000_000,
        seconds: f64::from(seconds),
        classes,
        intervals: (0..seconds).map(second).collect(),
        cpu_s: (total as f64 * 6e-6, total as f64 * 4e-6),
        threads: 1,
        ..CellRun::default()
    }
}

fn class(op: OpKind, ops: u64, latency_us: u64) -> ClassResult {
    let mut latency = Latencies::default();
    (0..ops).for_each(|_| latency.record_ns(latency_us * 1000));
    let bytes = ops * u64::from(BLOCK_BYTES);
    ClassResult {
        stream: String::new(),
        op,
        ops,
        bytes,
        errors: BTreeMap::new(),
        latency,
        service: None,
    }
}

/// Returns a closed-loop cell with these runs of random 4 KiB operations: 75 % reads, 25 % writes.
pub(crate) fn cell(name: &str, runs: Vec<CellRun>) -> CellResult {
    let stream = StreamSpec {
        name: String::new(),
        access: Access::Random,
        blocks: vec![BlockShare { bytes: BLOCK_BYTES, weight: 1 }],
        read_pct: 75.0,
        op: None,
        metadata: None,
        share: 1,
    };
    let spec = CellSpec {
        clients: 1,
        name: name.to_owned(),
        table: "random".to_owned(),
        variant: None,
        streams: vec![stream],
        load: LoadSpec::Closed { workers: 1, depth: 16 },
        warmup_ms: 1000,
        duration_ms: 10_000,
        worker_bytes: None,
        runs: runs.len() as u32,
        cache: CacheState::AsIs,
        verify_pct: 0.0,
        verify_full: false,
        search: None,
    };
    CellResult { spec, runs, verified: None, failure: None, points: Vec::new() }
}

/// Returns a cell with a search that offers each of `rates`. The target reaches rates up to
/// `limit_iops`.
pub(crate) fn searched(name: &str, rates: &[u64], limit_iops: u64) -> CellResult {
    let point = |rate: &u64| CurvePoint {
        offered_iops: *rate as f64,
        run: closed_run(limit_iops.min(*rate), 10, 75, 1000 + rate / 2, 2000 + rate / 2),
        met: *rate <= limit_iops,
    };
    let mut cell = cell(name, Vec::new());
    cell.spec.search = Some(SearchSpec::Curve {
        step: 1.25,
        refine: 2,
        achieved_below_pct: 98.0,
        p99_above_us: 50_000.0,
    });
    cell.points = rates.iter().map(point).collect();
    cell
}

/// Returns a complete result with these cells.
pub(crate) fn result(cells: Vec<CellResult>) -> RunResult {
    let specs = cells.iter().map(|cell| cell.spec.clone()).collect();
    let fill = PhaseResult {
        name: "fill".to_owned(),
        run: closed_run(5000, 4, 0, 1, 200),
        note: "wrote 1GiB".to_owned(),
        rounds_iops: Vec::new(),
    };
    RunResult {
        schema: SCHEMA,
        program: "weir 0.1.0".to_owned(),
        started_unix_ms: 1_700_000_000_000,
        command: ["weir", "bench", "run", "quick"].map(str::to_owned).to_vec(),
        spec: spec(specs),
        spec_hash: "00112233445566778899aabbccddeeff".to_owned(),
        target: target(),
        environment: environment(),
        phases: vec![fill],
        cells,
        bonnie: None,
        warnings: vec!["the clock governor is not known".to_owned()],
        complete: true,
    }
}

fn spec(cells: Vec<CellSpec>) -> RunSpec {
    RunSpec {
        bonnie: None,
        name: "quick".to_owned(),
        title: "Quick look".to_owned(),
        reference: None,
        assume: vec!["queue depth is per worker".to_owned()],
        scale: Scale::Standard,
        dataset: DatasetSpec { files: 1, file_bytes: 1 << 30 },
        content: ContentSpec { compress: 1.0, dedupe_pct: 0.0, unit_bytes: BLOCK_BYTES, seed: 42 },
        durability: Durability::None,
        fill: FillSpec { block_bytes: 1 << 20, in_flight: 8 },
        precondition: None,
        cells,
        require: None,
        limits: None,
        sizing: None,
        cost: None,
        told: crate::spec::StatedTarget::default(),
    }
}

fn target() -> TargetInfo {
    TargetInfo {
        address: "file:/data/test".to_owned(),
        kind: "file".to_owned(),
        bytes: 1 << 30,
        block_bytes: 512,
        driver: "io_uring, O_DIRECT".to_owned(),
        cache_bytes: Some(0),
        protection: None,
        cache_source: Some("told".to_owned()),
        features: Vec::new(),
        facts: BTreeMap::from([("file system".to_owned(), "ext4".to_owned())]),
    }
}

fn environment() -> Environment {
    Environment {
        host: "client1".to_owned(),
        cpu: "Model of a processor".to_owned(),
        cores: 2,
        memory_bytes: 8 << 30,
        kernel: "6.1.0".to_owned(),
        load_average: 0.5,
        governor: None,
        core_score: 1e6,
    }
}
