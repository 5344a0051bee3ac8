//! Executes a run: its phases in order, and the results of the phases.
//!
//! `load` generates the load, `verdict` has the verdicts, and the binary asks the user and prints.
//!
//! Invariants:
//! - every byte of the dataset is written before the first cell reads;
//! - the observer receives the results after each run of a cell, so that a crash of this process
//!   loses no completed run;
//! - if a target is lost, its cell is invalid and the run continues with the next cell.

mod caches;
mod check;
pub(crate) mod environment;
mod files;
mod probe;
pub(crate) mod search;

use std::time::{Duration, Instant, SystemTime};

use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};

use crate::bonnie::BonnieResult;
use crate::clients::{ClientError, Clients, SharedOffer};
use crate::content::{Content, RunId};
use crate::judge::refused;
use crate::load::{Generations, Ground, Offer, ReadChecks, offer};
use crate::result::{CellResult, CellRun, CurvePoint, PhaseResult, RunResult, SCHEMA};
use crate::spec::{Access, BlockShare, CellSpec, LoadSpec, RunSpec, SearchSpec, StreamSpec};
use crate::stats::{SteadyRule, steadiness};
use crate::summary::RunFigures;
use crate::target::{self, Target, TargetError};
use crate::verify::verify;
use check::{check, check_known, content_block};

/// Number of workers that write the fill.
const FILL_WORKERS: u32 = 4;
/// Throughput of the fill that the estimate of its duration assumes.
const FILL_BYTES_PER_S: f64 = 300e6;

/// Observer of a run. The observer can also stop the run.
pub trait Observer {
    /// Called at the start of each run of a phase or cell. `run` is the number of this run, and
    /// `of` is the number of runs.
    fn begins(&mut self, what: &str, run: u32, of: u32);
    /// Receives the completed share of the expected duration, from 0 to 1.
    fn done(&mut self, part: f64);
    /// Returns whether the run may continue. Called several times per second.
    fn goes_on(&mut self) -> bool;
    /// Receives the results so far. Called after every phase and after every run of a cell.
    fn keep(&mut self, result: &RunResult);
}

/// Reason for which a run cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The target cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// An operation of the spec does not fit into a file of the dataset.
    #[error("{cell}: operations of {block_bytes} bytes do not fit parts of {part_bytes} bytes")]
    Block {
        /// Name of the cell.
        cell: String,
        /// Size of the operation in bytes.
        block_bytes: u32,
        /// Size of each file or range of the dataset in bytes.
        part_bytes: u64,
    },
    /// The target does not support an operation of the cell, or does not support the operation's
    /// size.
    #[error("{cell}: {address} has no {op} of {bytes} bytes{}", at_most(*bytes_max))]
    Operation {
        /// Name of the cell.
        cell: String,
        /// Address of the target.
        address: String,
        /// Kind of the operation.
        op: &'static str,
        /// Size of the operation in bytes.
        bytes: u32,
        /// Largest size that the target supports for the operation; 0 if it does not support the
        /// operation.
        bytes_max: u64,
    },
    /// The cell has metadata operations, but the target has no files.
    #[error(
        "{cell}: metadata operations need a target with files, such as {}; {address} has none",
        target::WITH_FILES
    )]
    NoFiles {
        /// Name of the cell.
        cell: String,
        /// Address of the target.
        address: String,
    },
    /// The operations of a stream contradict each other, because the result file of the run was
    /// edited.
    #[error("{cell}: the operations of stream {stream:?} contradict each other")]
    Stream {
        /// Name of the cell.
        cell: String,
        /// Name of the stream.
        stream: String,
    },
    /// The target refused writes of the fill, so the dataset is incomplete.
    #[error("{address}: the dataset was not written: {refused}")]
    Fill {
        /// Address of the target.
        address: String,
        /// Operations that the target refused, with their numbers and errors.
        refused: String,
    },
    /// COMPARE AND WRITE needs blocks with known contents.
    #[error(
        "{cell}: the dataset is too large to track each block's content, which this operation \
         compares"
    )]
    Unknown {
        /// Name of the cell.
        cell: String,
    },
}

/// Describes a maximum size; returns an empty text for 0.
fn at_most(bytes: u64) -> String {
    if bytes == 0 { String::new() } else { format!(", {bytes} at most") }
}

/// Reason for which a cell was not measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeasureError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Clients(#[from] ClientError),
}

/// Results of an earlier start of the same run, which was interrupted.
#[derive(Clone, Debug, Default)]
pub struct Before {
    /// Cells that are complete, and cells that need more runs.
    pub cells: Vec<CellResult>,
    /// Result of the file test, which may have fewer runs than the spec requests.
    pub bonnie: Option<BonnieResult>,
}

/// Executes a run, or the parts of the run that `before` lacks. Cells that need several clients are
/// measured by the first agents of `clients`, all other cells by this process.
///
/// # Errors
/// The run cannot start. In this case nothing was measured.
pub fn run(
    spec: &RunSpec,
    target: &dyn Target,
    clients: &Clients,
    command: Vec<String>,
    before: Before,
    observer: &mut dyn Observer,
) -> Result<RunResult, RunError> {
    check(spec, target)?;
    let total_bytes = spec.dataset.total_bytes();
    let content = Content::new(&spec.content, content_block(spec), total_bytes);
    let content = content.of_run(RunId::random());
    let generations = Generations::new(total_bytes, content.block_bytes());
    check_known(spec, generations.is_some())?;
    let ground = Ground {
        target,
        dataset: &spec.dataset,
        content: &content,
        generations: generations.as_ref(),
        durability: spec.durability,
        seed: spec.content.seed,
        read_checks: ReadChecks::full_if(spec.cells.iter().any(|cell| cell.verify_full)),
    };
    let environment = environment::look();
    let mut about = target.info().clone();
    target::caches::add(&mut about, &spec.told, environment.memory_bytes);
    let mut result = RunResult {
        schema: SCHEMA,
        program: format!("weir {}", env!("CARGO_PKG_VERSION")),
        started_unix_ms: unix_ms(),
        command,
        spec: spec.clone(),
        spec_hash: spec_hash(spec),
        target: about,
        environment,
        phases: Vec::new(),
        cells: before.cells,
        bonnie: before.bonnie,
        warnings: Vec::new(),
        complete: false,
    };
    if generations.is_none() {
        let warning = "the dataset is too large to track each block's generation; verification \
                       does not detect lost writes";
        result.warnings.push(warning.to_owned());
    }
    let memory_bytes = result.environment.memory_bytes;
    let planned = planned(spec) + files::expected_s(spec, target.info(), memory_bytes);
    let gone = 0.0;
    let mut runner = Runner { spec, ground, clients, observer, result, planned, gone };
    runner.fill()?;
    runner.probe();
    if runner.observer.goes_on() {
        runner.precondition();
    }
    runner.cells();
    runner.verify();
    let is_whole_with_files = runner.files();
    let mut result = runner.result;
    let place = |cell: &CellResult| spec.cells.iter().position(|known| *known == cell.spec);
    result.cells.sort_by_key(|cell| place(cell).unwrap_or(usize::MAX));
    let is_there = |cell: &CellSpec| {
        let found = result.cells.iter().find(|known| known.spec == *cell);
        found.is_some_and(|known| known.failure.is_some() || is_whole(known))
    };
    result.complete = is_whole_with_files && spec.cells.iter().all(is_there);
    Ok(result)
}

/// True if a cell has all of its runs.
fn is_whole(cell: &CellResult) -> bool {
    if cell.spec.search.is_some() {
        !cell.points.is_empty()
    } else {
        cell.runs.len() >= cell.spec.runs as usize
    }
}

/// Id of a spec: the XXH3-128 of its JSON form.
pub fn spec_hash(spec: &RunSpec) -> String {
    let json = serde_json::to_vec(spec).expect("a spec is plain data");
    format!("{:032x}", twox_hash::XxHash3_128::oneshot(&json))
}

/// Expected duration of the fill, in seconds.
fn fill_expected_s(spec: &RunSpec) -> f64 {
    spec.dataset.total_bytes() as f64 / FILL_BYTES_PER_S
}

/// Expected duration of the preconditioning in seconds, with the minimum number of rounds.
fn precondition_expected_s(spec: &RunSpec) -> f64 {
    spec.precondition.map_or(0.0, |rule| f64::from(rule.window) * rule.round_ms as f64 / 1000.0)
}

/// Expected duration of one run of a cell, in seconds. If the run ends after a number of bytes, the
/// value is an upper bound.
fn cell_expected_s(cell: &CellSpec) -> f64 {
    let by_time = (cell.warmup_ms + cell.duration_ms) as f64 / 1000.0;
    let by_bytes = |bytes: u64| bytes as f64 * f64::from(cell.load.workers()) / FILL_BYTES_PER_S;
    match cell.worker_bytes.map(by_bytes) {
        Some(seconds) if cell.duration_ms == 0 => seconds,
        Some(seconds) => seconds.min(by_time),
        None => by_time,
    }
}

/// Expected duration of all phases without the file test, in seconds.
fn planned(spec: &RunSpec) -> f64 {
    let cell = |cell: &CellSpec| {
        let runs = cell.search.as_ref().map_or(cell.runs, search::runs_expected);
        f64::from(runs) * cell_expected_s(cell)
    };
    let cells = spec.cells.iter().map(cell).sum::<f64>();
    (fill_expected_s(spec) + precondition_expected_s(spec) + cells).max(1.0)
}

/// Returns a stream that accesses all addresses in order.
fn front_to_back(block_bytes: u32, read_pct: f64) -> StreamSpec {
    let blocks = vec![BlockShare { bytes: block_bytes, weight: 1 }];
    StreamSpec {
        name: String::new(),
        access: Access::Sequential,
        blocks,
        read_pct,
        op: None,
        metadata: None,
        share: 1,
    }
}

struct Runner<'a> {
    spec: &'a RunSpec,
    ground: Ground<'a>,
    clients: &'a Clients,
    observer: &'a mut dyn Observer,
    result: RunResult,
    /// Expected duration of all phases, in seconds.
    planned: f64,
    /// Expected duration of the phases that are complete, in seconds.
    gone: f64,
}

impl Runner<'_> {
    fn fill(&mut self) -> Result<(), RunError> {
        let fill = self.spec.fill;
        self.observer.begins("fill", 1, 1);
        let streams = [front_to_back(fill.block_bytes, 0.0)];
        let workers = FILL_WORKERS.min(fill.in_flight.max(1));
        let load = LoadSpec::Closed { workers, depth: fill.in_flight.div_ceil(workers).max(1) };
        let what = Offer {
            streams: &streams,
            load,
            warmup: Duration::ZERO,
            duration: None,
            worker_bytes: None,
        };
        let (observer, planned) = (&mut *self.observer, self.planned);
        let expected_s = fill_expected_s(self.spec);
        let run = offer(&self.ground, &what, &mut |elapsed| {
            observer.done(elapsed.as_secs_f64().min(expected_s) / planned);
            observer.goes_on()
        })?;
        self.gone += expected_s;
        if let Some(refused) = refused(std::iter::once(&run)) {
            let address = self.result.target.address.clone();
            return Err(RunError::Fill { address, refused });
        }
        let (rate, seconds) = (RunFigures::of(&run).mib_s, run.seconds);
        let note = format!("{rate:.0} MiB/s for {seconds:.1} s");
        let name = "fill".to_owned();
        self.result.phases.push(PhaseResult { name, run, note, rounds_iops: Vec::new() });
        self.observer.keep(&self.result);
        Ok(())
    }

    /// Repeats rounds with the load of the first cell until the target is in a steady state.
    fn precondition(&mut self) {
        let (Some(rule), Some(cell)) = (self.spec.precondition, self.spec.cells.first()) else {
            return;
        };
        let (mut rounds, mut last) = (Vec::new(), None);
        let after = self.gone + precondition_expected_s(self.spec);
        let steady = SteadyRule {
            window: rule.window.max(2) as usize,
            range_pct: rule.range_pct,
            slope_pct: rule.slope_pct,
        };
        let mut note = format!("not steady after {} rounds", rule.rounds_max);
        for round in 1..=rule.rounds_max {
            self.observer.begins("precondition", round, rule.rounds_max);
            let short = CellSpec {
                warmup_ms: 0,
                duration_ms: rule.round_ms,
                worker_bytes: None,
                ..cell.clone()
            };
            match self.measure_here(&short, cell.load) {
                Ok(mut run) => {
                    rounds.push(RunFigures::of(&run).iops);
                    if let Some(earlier) = last.take() {
                        run.add_faults(earlier);
                    }
                    last = Some(run);
                }
                Err(error) => {
                    note = error.to_string();
                    break;
                }
            }
            self.gone = (self.gone + rule.round_ms as f64 / 1000.0).min(after);
            if steadiness(&rounds, steady).is_some_and(|found| found.steady) {
                note = format!("steady after {round} rounds");
                break;
            }
            if !self.observer.goes_on() {
                return;
            }
        }
        self.gone = after;
        if !note.starts_with("steady") {
            self.result.warnings.push(format!("precondition: {note}"));
        }
        let (name, run) = ("precondition".to_owned(), last.unwrap_or_default());
        self.result.phases.push(PhaseResult { name, run, note, rounds_iops: rounds });
        self.observer.keep(&self.result);
    }

    /// Measures a cell with as many clients as the cell's spec requests.
    fn measure(&mut self, cell: &CellSpec, load: LoadSpec) -> Result<CellRun, MeasureError> {
        if cell.clients <= 1 {
            return Ok(self.measure_here(cell, load)?);
        }
        let (gone, planned) = (self.gone, self.planned);
        let (observer, content) = (&mut *self.observer, &self.spec.content);
        let offer = SharedOffer { ground: &self.ground, content, cell, load };
        let run = self.clients.measure(&offer, &mut |elapsed| {
            observer.done(((gone + elapsed.as_secs_f64()) / planned).min(1.0));
            observer.goes_on()
        })?;
        Ok(run)
    }

    fn measure_here(&mut self, cell: &CellSpec, load: LoadSpec) -> Result<CellRun, TargetError> {
        let is_timed = cell.duration_ms > 0 || cell.worker_bytes.is_none();
        let what = Offer {
            streams: &cell.streams,
            load,
            warmup: Duration::from_millis(cell.warmup_ms),
            duration: is_timed.then(|| Duration::from_millis(cell.duration_ms)),
            worker_bytes: cell.worker_bytes,
        };
        let (gone, planned) = (self.gone, self.planned);
        let observer = &mut *self.observer;
        offer(&self.ground, &what, &mut |elapsed| {
            observer.done(((gone + elapsed.as_secs_f64()) / planned).min(1.0));
            observer.goes_on()
        })
    }

    /// Runs all cells. In each round, the cells run in another random order.
    fn cells(&mut self) {
        let spec = self.spec;
        let rounds = spec.cells.iter().map(|cell| cell.runs).max().unwrap_or(0);
        let mut rng = SmallRng::seed_from_u64(spec.content.seed ^ 0xce11);
        for round in 1..=rounds {
            let mut order: Vec<&CellSpec> =
                spec.cells.iter().filter(|cell| cell.runs >= round).collect();
            order.shuffle(&mut rng);
            for cell in order {
                if !self.observer.goes_on() {
                    return;
                }
                self.one_run(cell, round);
                self.observer.keep(&self.result);
            }
        }
    }

    fn one_run(&mut self, cell: &CellSpec, round: u32) {
        let known = self.result.cells.iter().position(|known| known.spec == *cell);
        let index = known.unwrap_or_else(|| {
            self.result.cells.push(CellResult {
                spec: cell.clone(),
                runs: Vec::new(),
                verified: None,
                failure: None,
                points: Vec::new(),
            });
            self.result.cells.len() - 1
        });
        let so_far = &self.result.cells[index];
        if so_far.failure.is_some() || is_whole(so_far) || so_far.runs.len() >= round as usize {
            return;
        }
        self.observer.begins(&cell.name, round, cell.runs);
        self.prepare_caches(cell);
        let began = Instant::now();
        let measured = match &cell.search {
            Some(search) => self.search(cell, search).map(|points| (Vec::new(), points)),
            None => self.measure(cell, cell.load).map(|run| (vec![run], Vec::new())),
        };
        self.gone += began.elapsed().as_secs_f64();
        let cut_short = !self.observer.goes_on();
        let so_far = &mut self.result.cells[index];
        match measured {
            // Discard a run that was cut short because the user stopped it.
            _ if cut_short => {}
            Ok((runs, points)) => {
                so_far.runs.extend(runs);
                so_far.points.extend(points);
            }
            Err(error) => so_far.failure = Some(error.to_string()),
        }
        if so_far.runs.is_empty() && so_far.points.is_empty() && so_far.failure.is_none() {
            self.result.cells.remove(index);
        }
    }

    fn search(
        &mut self,
        cell: &CellSpec,
        search: &SearchSpec,
    ) -> Result<Vec<CurvePoint>, MeasureError> {
        // The rate of a search is the sum of the rates of all clients, so each client offers an
        // equal part of it.
        let clients = f64::from(cell.clients.max(1));
        let mut try_rate = |rate: f64, times: u32| {
            let LoadSpec::Open { workers, arrival, in_flight_max, backlog_max, .. } = cell.load
            else {
                return Ok(None);
            };
            if !self.observer.goes_on() {
                return Ok(None);
            }
            let rate = rate / clients;
            let load = LoadSpec::Open { workers, rate, arrival, in_flight_max, backlog_max };
            let duration_ms = cell.duration_ms * u64::from(times);
            self.measure(&CellSpec { duration_ms, ..cell.clone() }, load).map(Some)
        };
        let LoadSpec::Open { rate, arrival, .. } = cell.load else { return Ok(Vec::new()) };
        search::points(rate * clients, search, arrival, &mut try_rate)
    }

    /// After all cells were measured, reads blocks again and compares them with their expected
    /// contents.
    fn verify(&mut self) {
        let share = self.spec.cells.iter().map(|cell| cell.verify_pct).fold(0.0, f64::max);
        if share <= 0.0 || !self.observer.goes_on() || !self.ground.target.keeps_data() {
            return;
        }
        self.observer.begins("verify", 1, 1);
        let Ground { target, content, generations, dataset, seed, .. } = self.ground;
        let seed = SmallRng::seed_from_u64(seed ^ 0x5eed).next_u64();
        match verify(target, content, generations, dataset, share, seed) {
            // All cells use the same blocks, so a bad block also affects cells that only read.
            Ok(found) => {
                for cell in &mut self.result.cells {
                    cell.verified = Some(found.clone());
                }
                let (blocks, bad) = (found.blocks, found.bad);
                if bad > 0 {
                    let warning = format!("{bad} of {blocks} blocks differ from the written data");
                    self.result.warnings.push(warning);
                }
            }
            Err(error) => {
                for cell in &mut self.result.cells {
                    cell.failure.get_or_insert_with(|| format!("not verified: {error}"));
                }
            }
        }
        self.observer.keep(&self.result);
    }
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

#[cfg(test)]
mod tests;
