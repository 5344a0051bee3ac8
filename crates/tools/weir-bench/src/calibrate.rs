//! The same load with fio and with our generator, side by side: do both find the same, and what
//! does an operation cost each?
//!
//! Not here: targets of known behaviour (selftest), job files of profiles (profile::fio).
//!
//! Invariants:
//! - both work on the same bytes of the same target, with the same block size, depth and time, past
//!   the page cache, one after the other in turns;
//! - both do the same work: fio does not verify what it reads, so neither do we where both are held
//!   against each other; what verifying costs on top is measured beside;
//! - what was written by us is read before anything is written by fio, so that it can be verified;
//! - a difference is told, never averaged away: the verdict is that of the medians and their
//!   interval.

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

/// Runs with each, at least.
pub const RUNS_MIN: u32 = 5;
/// Of the draws of an interval.
const SEED: u64 = 5;
/// The file that is made in the directory, and removed.
const FILE: &str = "weir-bench-calibrate.dat";

/// What is to be done, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where a file is made; `None`: none is.
    pub directory: Option<PathBuf>,
    /// URI of an NBD export, all of which may be written; `None`: none is used.
    pub nbd: Option<String>,
    /// Whether the export may hold data of others.
    pub destroy: bool,
    /// Bytes of the file, and those that are used of the export.
    pub bytes: u64,
    /// Length of each run.
    pub run_ms: u64,
    /// Runs of each cell with each of both; [`RUNS_MIN`] at least.
    pub runs: u32,
    /// The program.
    pub fio: PathBuf,
}

impl Default for Options {
    /// Null targets alone, five runs of five seconds.
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

/// Something that begins.
#[derive(Clone, Debug)]
pub struct Step {
    /// In words.
    pub what: String,
    /// Part of all runs that is done, 0 to 1.
    pub done: f64,
}

/// Why it cannot be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The other program.
    #[error(transparent)]
    Fio(#[from] FioError),
    /// The target, or our load on it.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Too little to compare.
    #[error("{runs} runs with each say too little; {RUNS_MIN} are the least")]
    FewRuns {
        /// As asked for.
        runs: u32,
    },
    /// The page cache would be measured.
    #[error("{address} is driven by {driver}: both must go past the page cache")]
    Cached {
        /// Of the target.
        address: String,
        /// How it is driven.
        driver: String,
    },
    /// What was read is not what was written.
    #[error("{address}: {blocks} blocks were not what was written")]
    Corrupt {
        /// Of the target.
        address: String,
        /// How many.
        blocks: u64,
    },
}

impl From<TargetError> for CalibrateError {
    fn from(error: TargetError) -> Self {
        Self::Run(error.into())
    }
}

impl CalibrateError {
    /// What the user can do.
    pub fn action(&self) -> String {
        let text = match self {
            Self::Fio(error) => error.action(),
            Self::Run(RunError::Target(error)) => return error.action(),
            Self::Run(_) => "use a size that is whole blocks of 1 MiB",
            Self::FewRuns { .. } => "leave out the number of runs, or raise it",
            Self::Cached { .. } => "name a directory of a file system that takes O_DIRECT",
            Self::Corrupt { .. } => "do not trust this storage with data; look at its logs",
        };
        text.to_owned()
    }
}

/// What one of both measured in one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DriverRun {
    /// Operations per second.
    pub iops: f64,
    /// Median latency in microseconds, from handing an operation over to seeing its answer; `None`
    /// of too few operations.
    pub p50_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
    /// Processor time, user and system, per operation in microseconds.
    pub cpu_us: f64,
}

/// A load on a target with both.
#[derive(Clone, Debug, Serialize)]
pub struct CellReport {
    /// `file`, `nbd`, `null`.
    pub place: &'static str,
    /// `4 KiB random read, 32 in flight`.
    pub name: String,
    /// The job as fio got it.
    pub job: String,
    /// What both wrote, where they did.
    pub content: Option<&'static str>,
    /// Runs of fio.
    pub fio: Vec<DriverRun>,
    /// Ours.
    pub ours: Vec<DriverRun>,
    /// Ours with reads verified, as every run of a profile does it; none where there is nothing to
    /// verify.
    pub verified: Vec<DriverRun>,
    /// What was found: operations per second, latencies; none of a null target.
    pub results: Vec<Compared>,
    /// What an operation cost.
    pub cost: Option<Compared>,
    /// Processor time per operation that verifies what it read, by that of one that does not.
    pub verification: Option<RatioInterval>,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct CalibrationReport {
    /// Name and version of this program.
    pub program: String,
    /// Of the other, as it says itself.
    pub fio: String,
    /// Where both ran.
    pub environment: Environment,
    /// How each place was driven by us.
    pub drivers: Vec<(String, String)>,
    /// Bytes used of each target.
    pub bytes: u64,
    /// Length of each run.
    pub run_ms: u64,
    /// In the order they were measured.
    pub cells: Vec<CellReport>,
    /// Whether nobody ended it early.
    pub complete: bool,
}

impl CalibrationReport {
    /// Whether both found the same everywhere.
    pub fn agrees(&self) -> bool {
        let mut results = self.cells.iter().flat_map(|cell| &cell.results);
        results.all(|result| result.holds == Some(true))
    }

    /// Whether an operation costs us no more than fio, on null and file targets.
    pub fn is_cheap(&self) -> bool {
        let cells = self.cells.iter().filter(|cell| cell.place != Place::Nbd.name());
        cells
            .map(|cell| &cell.cost)
            .all(|cost| cost.as_ref().is_some_and(|c| c.holds == Some(true)))
    }

    /// A section of Markdown, its heading of the second level.
    pub fn markdown(&self) -> String {
        text::markdown(self)
    }
}

/// Measures every cell with both. `tell` gets each run when it begins; false ends it early, with
/// what is there.
///
/// # Errors
/// fio is missing or fails, or a target does: nothing can be compared.
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

/// Opens a target, looks at what it holds and fills it.
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

/// Who does a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Fio,
    Ours,
    /// Ours, verifying what it reads.
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

/// Runs of a cell with each side in turns; false: it was ended early.
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
        // Who goes first changes, so that none always finds what the other left.
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
