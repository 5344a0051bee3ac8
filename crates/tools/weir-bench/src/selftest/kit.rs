//! Helpers for the checks: small cells, short runs and loads.
//!
//! The other modules of `selftest` contain the checks.
//!
//! Invariant: the seed never changes, so that each check always generates the same operations.

use std::time::Duration;

use crate::clients::Clients;
use crate::content::Content;
use crate::load::{Generations, Ground, Offer, ReadChecks, offer};
use crate::result::{CellRun, RunResult};
use crate::run::{Before, Observer, RunError, run};
use crate::spec::{
    Access, Arrival, BlockShare, CacheState, CellSpec, ContentSpec, DatasetSpec, Durability,
    FillSpec, LoadSpec, RunSpec, Scale, StreamSpec,
};
use crate::target::Target;

/// Length of every operation in bytes.
pub(super) const BLOCK_BYTES: u32 = 4096;
/// Size of every dataset in bytes.
pub(super) const DATASET_BYTES: u64 = 8 << 20;
/// Seed of all checks, so that a check repeats the same operations.
const SEED: u64 = 11;

/// Returns a stream of 4 KiB operations.
pub(super) fn stream(read_pct: f64, access: Access) -> StreamSpec {
    let blocks = vec![BlockShare { bytes: BLOCK_BYTES, weight: 1 }];
    StreamSpec { name: String::new(), access, blocks, read_pct, op: None, metadata: None, share: 1 }
}

/// Returns a closed loop with one worker that has `depth` operations in flight.
pub(super) fn closed(depth: u32) -> LoadSpec {
    LoadSpec::Closed { workers: 1, depth }
}

/// Returns an open loop with one worker and constant arrivals.
pub(super) fn open(rate: f64, in_flight_max: u32, backlog_max: u64) -> LoadSpec {
    let arrival = Arrival::Constant;
    LoadSpec::Open { workers: 1, rate, arrival, in_flight_max, backlog_max }
}

/// Returns a cell of random operations with `runs` runs of `duration_ms` each.
pub(super) fn cell(read_pct: f64, load: LoadSpec, duration_ms: u64, runs: u32) -> CellSpec {
    CellSpec {
        name: format!("random 4KiB read {read_pct}%"),
        table: "selftest".to_owned(),
        variant: None,
        streams: vec![stream(read_pct, Access::Random)],
        load,
        warmup_ms: 0,
        duration_ms,
        worker_bytes: None,
        runs,
        clients: 1,
        cache: CacheState::AsIs,
        verify_pct: 100.0,
        verify_full: false,
        search: None,
    }
}

pub(super) fn content(compress: f64) -> ContentSpec {
    ContentSpec { compress, dedupe_pct: 0.0, unit_bytes: BLOCK_BYTES, seed: SEED }
}

pub(super) fn dataset() -> DatasetSpec {
    DatasetSpec { files: 1, file_bytes: DATASET_BYTES }
}

fn spec(cell: CellSpec) -> RunSpec {
    RunSpec {
        name: "selftest".to_owned(),
        title: "Selftest".to_owned(),
        reference: None,
        assume: Vec::new(),
        scale: Scale::Standard,
        dataset: dataset(),
        content: content(1.0),
        durability: Durability::None,
        fill: FillSpec { block_bytes: 1 << 20, in_flight: 4 },
        precondition: None,
        cells: vec![cell],
        bonnie: None,
        require: None,
        limits: None,
        sizing: None,
        cost: None,
        told: crate::spec::StatedTarget::default(),
    }
}

/// Observer that ignores every event.
struct Silent;

impl Observer for Silent {
    fn begins(&mut self, _: &str, _: u32, _: u32) {}
    fn done(&mut self, _: f64) {}
    fn goes_on(&mut self) -> bool {
        true
    }
    fn keep(&mut self, _: &RunResult) {}
}

/// Executes a complete run with one cell: fill, runs of the cell, verification.
pub(super) fn whole_run(cell: CellSpec, target: &dyn Target) -> Result<RunResult, RunError> {
    whole_run_with(cell, target, &Clients::none())
}

/// Executes a complete run with one cell, on the agents in `clients`.
pub(super) fn whole_run_with(
    cell: CellSpec,
    target: &dyn Target,
    clients: &Clients,
) -> Result<RunResult, RunError> {
    run(&spec(cell), target, clients, Vec::new(), Before::default(), &mut Silent)
}

/// Content and generations of one dataset, with which a check runs loads on a target without the
/// other phases of a run.
pub(super) struct Kit {
    pub(super) dataset: DatasetSpec,
    pub(super) content: Content,
    pub(super) generations: Generations,
}

impl Kit {
    pub(super) fn new() -> Self {
        let dataset = dataset();
        let content = Content::new(&content(1.0), BLOCK_BYTES, dataset.total_bytes());
        let generations = Generations::new(dataset.total_bytes(), content.block_bytes());
        Self { dataset, content, generations: generations.expect("it is small") }
    }

    /// Runs a load. If `duration` is `None`, the load ends after one access to each address.
    pub(super) fn offer(
        &self,
        target: &dyn Target,
        stream: StreamSpec,
        load: LoadSpec,
        duration: Option<Duration>,
    ) -> Result<CellRun, RunError> {
        let ground = Ground {
            target,
            dataset: &self.dataset,
            content: &self.content,
            generations: Some(&self.generations),
            durability: Durability::None,
            seed: SEED,
            read_checks: ReadChecks::Stamps,
        };
        let what = Offer {
            streams: &[stream],
            load,
            warmup: Duration::ZERO,
            duration,
            worker_bytes: None,
        };
        Ok(offer(&ground, &what, &mut |_| true)?)
    }

    /// Writes every block of the dataset once.
    pub(super) fn fill(&self, target: &dyn Target) -> Result<(), RunError> {
        self.offer(target, stream(0.0, Access::Sequential), closed(4), None).map(drop)
    }
}
