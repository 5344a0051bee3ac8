//! Checks of the benchmark itself: on targets whose results are known, and against fio.
//!
//! Not here: the code of the checks and of the comparison (weir-bench).

use std::path::PathBuf;

use clap::Args;
use weir_api::ApiError;
use weir_base::{ErrorKind, size};
use weir_bench::calibrate::{self, CalibrateError, Options};
use weir_bench::run::RunError;
use weir_bench::selftest::{self, Scale};

use crate::bench::answer::Answer;
use crate::bench::plan::told;
use crate::bench::progress;
use crate::cli::base::output;

/// Arguments of `weir bench selftest`.
#[derive(Debug, Args)]
pub(super) struct SelftestArgs {
    /// Run for a few minutes instead of half a minute, for a quiet machine
    #[arg(long)]
    full: bool,
}

/// Arguments of `weir bench calibrate`.
#[derive(Debug, Args)]
pub(super) struct CalibrateArgs {
    /// Directory for a file to measure with both programs
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// NBD export to measure with both programs
    #[arg(long, value_name = "URI")]
    nbd: Option<String>,
    /// Allow the loss of all data on this export; must equal --nbd
    #[arg(long, value_name = "URI", requires = "nbd")]
    destroy: Option<String>,
    /// Size of the file, or of the used part of the export
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size::parse)]
    size: u64,
    /// Length of each run
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Runs of each cell by each program, alternately
    #[arg(long, value_name = "TIMES", default_value_t = calibrate::RUNS_MIN)]
    runs: u32,
}

/// Runs all checks of the self-test.
pub(super) fn selftest(arguments: &SelftestArgs, json: bool) -> Result<Answer, ApiError> {
    let scale = if arguments.full { Scale::Full } else { Scale::Short };
    let mut printed = Ok(());
    let report = selftest::run(scale, &mut |check| {
        if !json && printed.is_ok() {
            printed = output::print(&(check.text() + "\n"));
        }
    });
    printed?;
    output::print(&if json { output::json(&report)? } else { report.outcome() + "\n" })?;
    Ok(if report.passed() { Answer::Yes } else { Answer::No })
}

/// Measures the same load alternately with fio and with this program, and compares the results.
pub(super) fn calibrate(arguments: &CalibrateArgs, json: bool) -> Result<Answer, ApiError> {
    if arguments.destroy.is_some() && arguments.destroy != arguments.nbd {
        let message = "--destroy names a different export than --nbd";
        return Err(ApiError::new(ErrorKind::Invalid, message));
    }
    let options = Options {
        directory: arguments.dir.clone(),
        nbd: arguments.nbd.clone(),
        destroy: arguments.destroy.is_some(),
        bytes: arguments.size,
        run_ms: arguments.seconds * 1000,
        runs: arguments.runs,
        ..Options::default()
    };
    let bar = progress::bar();
    let report = calibrate::run(&options, &mut |step| {
        bar.set_message(step.what.clone());
        bar.set_position(progress::steps(step.done));
        true
    });
    bar.finish_and_clear();
    let report = report.map_err(|error| match &error {
        CalibrateError::Run(RunError::Target(target)) => told(target),
        CalibrateError::Fio(_) => {
            ApiError::new(ErrorKind::NotFound, error.to_string()).with_action(error.action())
        }
        _ => ApiError::new(ErrorKind::Invalid, error.to_string()).with_action(error.action()),
    })?;
    output::print(&if json { output::json(&report)? } else { report.markdown() })?;
    Ok(if report.agrees() { Answer::Yes } else { Answer::No })
}
