//! Calibration: runs the same loads with fio and with Weir, and compares figures and CPU time.
//!
//! `selftest` tests targets of known behaviour; `profile::fio` handles the job files of profiles.
//!
//! Invariants:
//! - fio and Weir use the same bytes of the same target, with the same block size, depth and
//!   duration, bypass the page cache, and run in turn;
//! - fio and Weir do the same work: fio does not verify reads, so Weir does not verify reads in the
//!   compared runs. Separate runs measure the cost of verification;
//! - the cells that read Weir's data run before fio writes data, so that Weir can verify its data;
//! - the report shows every difference and hides none in an average: each verdict comes from the
//!   ratio of two medians and the interval of this ratio.

mod agree;
mod cells;
mod fio;
mod ours;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;

use serde::Serialize;

pub use agree::{Compared, Figure};
pub use fio::FioError;

use crate::load::ReadChecks;
use crate::result::Environment;
use crate::run::{RunError, environment};
use crate::stats::{RatioInterval, ratio_of_medians};
use crate::target::{Address, Holds, TargetError, what_it_holds};
use cells::{Cell, Place};
use fio::Fio;
use ours::Ours;

/// Minimum number of runs of each cell with each program.
pub const RUNS_MIN: u32 = 5;
/// Seed of the resampling from which the confidence intervals are computed.
const SEED: u64 = 5;
/// Name of the file that the calibration creates in the directory and removes at its end.
const FILE: &str = "weir-bench-calibrate.dat";

/// Targets, sizes and times of a calibration.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory for the test file; `None` if the calibration uses no file target.
    pub directory: Option<PathBuf>,
    /// URI of an NBD export that the calibration may overwrite completely; `None` for no NBD
    /// target.
    pub nbd: Option<String>,
    /// True if the calibration may overwrite an export that contains data of another program.
    pub destroy: bool,
    /// Size of the test file in bytes, and number of bytes of the export that the calibration uses.
    pub bytes: u64,
    /// Length of each run in milliseconds.
    pub run_ms: u64,
    /// Number of runs of each cell with each program, at least [`RUNS_MIN`].
    pub runs: u32,
    /// Path of the fio executable.
    pub fio: PathBuf,
}

impl Default for Options {
    /// Options for the null target only, with five runs of 5 s.
    fn default() -> Self {
        Self {
            directory: None,
            nbd: None,
            destroy: false,
            bytes: 1 << 30,
            run_ms: 5_000,
            runs: RUNS_MIN,
            fio: PathBuf::from("fio"),
        }
    }
}

/// Progress report that the calibration sends at the start of a run.
#[derive(Clone, Debug)]
pub struct Step {
    /// Description of the run that starts.
    pub what: String,
    /// Completed share of all runs, from 0 to 1.
    pub done: f64,
}

/// Reason why the calibration failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// fio is missing or failed.
    #[error(transparent)]
    Fio(#[from] FioError),
    /// The target failed, or Weir's load on the target failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The options request too few runs for a comparison.
    #[error("{runs} runs with each program are too few; the minimum is {RUNS_MIN}")]
    FewRuns {
        /// Number of requested runs.
        runs: u32,
    },
    /// The target does not bypass the page cache.
    #[error("{address} is accessed by {driver}; a calibration must bypass the page cache")]
    Cached {
        /// Address of the target.
        address: String,
        /// Name of the I/O interface that Weir uses for the target.
        driver: String,
    },
    /// A read returned blocks with wrong contents.
    #[error("{address}: {blocks} blocks differ from the written data")]
    Corrupt {
        /// Address of the target.
        address: String,
        /// Number of blocks with wrong contents.
        blocks: u64,
    },
}

impl From<TargetError> for CalibrateError {
    fn from(error: TargetError) -> Self {
        Self::Run(error.into())
    }
}

impl CalibrateError {
    /// Action that the user should take.
    pub fn action(&self) -> String {
        let text = match self {
            Self::Fio(error) => error.action(),
            Self::Run(RunError::Target(error)) => return error.action(),
            Self::Run(_) => "use a size that is a multiple of 1 MiB",
            Self::FewRuns { .. } => "omit the number of runs, or increase it",
            Self::Cached { .. } => "name a directory on a file system that supports O_DIRECT",
            Self::Corrupt { .. } => "do not store data on this target; check its logs",
        };
        text.to_owned()
    }
}

/// Figures of one run with one program.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DriverRun {
    /// Operations per second.
    pub iops: f64,
    /// Median latency in microseconds, from submission to completion; `None` if there were too few
    /// operations.
    pub p50_us: Option<f64>,
    /// 99th percentile of the latency in microseconds, from submission to completion; `None` if
    /// there were too few operations.
    pub p99_us: Option<f64>,
    /// Processor time of an operation (user and system), in microseconds.
    pub cpu_us: f64,
}

/// Results of one load on one target, run with fio and with Weir.
#[derive(Clone, Debug, Serialize)]
pub struct CellReport {
    /// Kind of target: `file`, `nbd` or `null`.
    pub place: &'static str,
    /// Name of the load, such as `4 KiB random read, 32 in flight`.
    pub name: String,
    /// Text of the fio job.
    pub job: String,
    /// Name of the content that both programs wrote; `None` if the load only reads.
    pub content: Option<&'static str>,
    /// Runs of fio.
    pub fio: Vec<DriverRun>,
    /// Runs of Weir without verification.
    pub ours: Vec<DriverRun>,
    /// Runs of Weir with read verification, as in every run of a profile; empty if the load reads
    /// no stored data.
    pub verified: Vec<DriverRun>,
    /// Comparison of the operations per second and the latencies; empty for the null target.
    pub results: Vec<Compared>,
    /// Comparison of the processor time of an operation.
    pub cost: Option<Compared>,
    /// Processor time of an operation with verification, divided by the processor time without it.
    pub verification: Option<RatioInterval>,
}

/// Result of a calibration.
#[derive(Clone, Debug, Serialize)]
pub struct CalibrationReport {
    /// Name and version of this program.
    pub program: String,
    /// Version string of fio.
    pub fio: String,
    /// Machine that ran both programs.
    pub environment: Environment,
    /// Each kind of target, and the I/O interface that Weir uses for it; without the null target.
    pub drivers: Vec<(String, String)>,
    /// Number of bytes that the calibration used of each target.
    pub bytes: u64,
    /// Length of each run in milliseconds.
    pub run_ms: u64,
    /// Completed cells, in the order of their runs.
    pub cells: Vec<CellReport>,
    /// True if every cell was measured; false if the calibration was stopped early.
    pub complete: bool,
}

impl CalibrationReport {
    /// True if all compared figures agree; false if a figure differs or is undecided.
    pub fn agrees(&self) -> bool {
        let mut results = self.cells.iter().flat_map(|cell| &cell.results);
        results.all(|result| result.holds == Some(true))
    }

    /// True if, on null and file targets, an operation costs no more processor time with Weir than
    /// with fio.
    pub fn is_cheap(&self) -> bool {
        let cells = self.cells.iter().filter(|cell| cell.place != Place::Nbd.name());
        cells
            .map(|cell| &cell.cost)
            .all(|cost| cost.as_ref().is_some_and(|c| c.holds == Some(true)))
    }

    /// Formats the report as a section of Markdown with a second-level heading.
    pub fn markdown(&self) -> String {
        text::markdown(self)
    }
}

/// Measures every cell with both programs. Calls `tell` at the start of each run; if `tell` returns
/// false, the calibration stops and returns the cells that are complete.
///
/// # Errors
/// Too few runs were requested, the target is unusable, a read returned wrong contents, or fio, the
/// target or the load failed.
pub fn run(
    options: &Options,
    tell: &mut dyn FnMut(&Step) -> bool,
) -> Result<CalibrationReport, CalibrateError> {
    if options.runs < RUNS_MIN {
        return Err(CalibrateError::FewRuns { runs: options.runs });
    }
    let fio = Fio::find(&options.fio)?;
    let mut report = CalibrationReport {
        program: format!("weir {}", env!("CARGO_PKG_VERSION")),
        fio: fio.version().to_owned(),
        environment: environment::look(),
        drivers: Vec::new(),
        bytes: options.bytes,
        run_ms: options.run_ms,
        cells: Vec::new(),
        complete: false,
    };
    let places = cells::places(options)?;
    let sides = |place| cells::of(place).iter().map(move |cell| Side::of(place, cell).len());
    let sides: usize = places.iter().flat_map(|(place, _)| sides(*place)).sum();
    let total = sides as f64 * f64::from(options.runs);
    let mut begun = 0.0;
    let mut next = |what: String| {
        begun += 1.0;
        tell(&Step { what, done: (begun - 1.0) / total })
    };
    for (place, address) in places {
        let _file = cells::Made::at(place, &address);
        let ours = prepare(options, place, &address)?;
        if place != Place::Null {
            report.drivers.push((place.name().to_owned(), ours.driver().to_owned()));
        }
        for cell in cells::of(place) {
            let mut found = CellReport::begin(options, place, cell);
            let is_whole = measure(options, &fio, &ours, (place, cell), &mut found, &mut next)?;
            if !is_whole {
                return Ok(report);
            }
            found.compare();
            report.cells.push(found);
        }
    }
    report.complete = true;
    Ok(report)
}

/// Opens a target, checks that the target contains no data of other programs, and fills the target.
fn prepare(options: &Options, place: Place, address: &Address) -> Result<Ours, CalibrateError> {
    let ours = Ours::open(address, options.bytes)?;
    if place == Place::Nbd && !options.destroy && what_it_holds(ours.target())? == Holds::Data {
        return Err(TargetError::HoldsData { address: address.to_string() }.into());
    }
    if place == Place::File && !ours.driver().contains("O_DIRECT") {
        let (address, driver) = (address.to_string(), ours.driver().to_owned());
        return Err(CalibrateError::Cached { address, driver });
    }
    if place != Place::Null {
        ours.fill()?;
    }
    Ok(ours)
}

/// Program that runs a cell, and whether it verifies reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Fio,
    Ours,
    /// Weir with read verification.
    Verified,
}

impl Side {
    fn of(place: Place, cell: &Cell) -> &'static [Self] {
        if cell.is_read && place != Place::Null {
            &[Self::Fio, Self::Ours, Self::Verified]
        } else {
            &[Self::Fio, Self::Ours]
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Fio => "fio",
            Self::Ours => "weir",
            Self::Verified => "weir, verifying",
        }
    }
}

/// Runs a cell with fio and with Weir in turn. Returns false if the calibration was stopped early.
fn measure(
    options: &Options,
    fio: &Fio,
    ours: &Ours,
    (place, cell): (Place, &Cell),
    found: &mut CellReport,
    next: &mut dyn FnMut(String) -> bool,
) -> Result<bool, CalibrateError> {
    for round in 0..options.runs {
        let mut sides = Side::of(place, cell).to_vec();
        // Reverse the order of the programs in every second round, so that no program always has
        // the same predecessor.
        if round % 2 == 1 {
            sides.reverse();
        }
        for side in sides {
            let (who, place, name, of) = (side.name(), found.place, &found.name, options.runs);
            if !next(format!("{place}: {name}, {who}, run {} of {of}", round + 1)) {
                return Ok(false);
            }
            let directory = options.directory.as_deref();
            match side {
                Side::Fio => found.fio.push(fio.run(&found.name, &found.job, directory)?),
                Side::Ours => found.ours.push(ours.run(cell, options.run_ms, ReadChecks::Off)?),
                Side::Verified => {
                    found.verified.push(ours.run(cell, options.run_ms, ReadChecks::Stamps)?);
                }
            }
        }
    }
    Ok(true)
}

impl CellReport {
    fn begin(options: &Options, place: Place, cell: &Cell) -> Self {
        Self {
            place: place.name(),
            name: cell.name(),
            job: fio::job(options, place, cell),
            content: (!cell.is_read).then_some(cells::CONTENT),
            fio: Vec::new(),
            ours: Vec::new(),
            verified: Vec::new(),
            results: Vec::new(),
            cost: None,
            verification: None,
        }
    }

    fn compare(&mut self) {
        let of = |figure| agree::compare(figure, &self.ours, &self.fio);
        let results = [Figure::Iops, Figure::P50, Figure::P99];
        self.cost = Some(of(Figure::Cpu));
        let cpu = |runs: &[DriverRun]| runs.iter().map(|run| run.cpu_us).collect::<Vec<_>>();
        self.verification = ratio_of_medians(&cpu(&self.verified), &cpu(&self.ours), SEED);
        if self.place != Place::Null.name() {
            self.results = results.map(of).into();
        }
    }
}
