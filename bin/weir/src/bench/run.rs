//! `weir bench`: measuring storage, Weir's own or any other.
//!
//! Not here: measuring, judging and reports (weir-bench).
//!
//! Invariants:
//! - figures are printed with their verdicts, and nowhere else;
//! - nothing is written to a target that holds data of others, unless it is named with --destroy;
//! - results are on disk before a report is made of them.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use weir_api::ApiError;

use crate::bench::answer::Answer;
use crate::bench::plan::ProfileArgs;
use crate::bench::{agents, measure, plan, results, trust};

/// The verbs of `weir bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    verb: Option<BenchVerb>,
    /// Without a verb: make the temporary file here
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    dir: PathBuf,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
enum BenchVerb {
    /// Do a profile on a target, and make a report of it
    Run(measure::RunArgs),
    /// Is a requirement met? Ends in PASS or FAIL, with the headroom
    Validate(measure::ValidateArgs),
    /// Do the run of a result file again: did it come out the same?
    Rerun(measure::RerunArgs),
    /// Two results side by side; refuses to rank what is not comparable
    Compare {
        /// Result file, or the directory that it is in
        old: PathBuf,
        /// Result file, or the directory that it is in
        new: PathBuf,
        /// Bytes that the caches of the old target hold, or none
        #[arg(long, value_name = "SIZE|none", value_parser = plan::cache)]
        old_cache: Option<u64>,
        /// Bytes that the caches of the new target hold, or none
        #[arg(long, value_name = "SIZE|none", value_parser = plan::cache)]
        new_cache: Option<u64>,
    },
    /// Make the report of a result file again
    Report {
        /// Result file, or the directory that it is in
        result: PathBuf,
        /// Directory for the report; without it, that of the result file
        #[arg(long, value_name = "DIRECTORY")]
        out: Option<PathBuf>,
    },
    /// Offer load for a coordinator on another host: `run --agent HOST` there
    Agent(agents::AgentArgs),
    /// Measure targets of known behaviour, and see whether it says what is known
    Selftest(trust::SelftestArgs),
    /// The same load with fio and with this program, in turns: do both find the same?
    Calibrate(trust::CalibrateArgs),
    /// Name the traps of a profile, a fio job file or an Iometer file before it is run, and the
    /// words of such a file that change nothing
    Lint(ProfileArgs),
    /// The profiles that come along; with a name, the text of one
    Profiles {
        /// Name
        name: Option<String>,
    },
    /// Write a profile as a job file for fio
    Export {
        #[command(flatten)]
        profile: ProfileArgs,
        /// File or device for the job file to name; without it, fio takes it from WEIR_TARGET
        #[arg(short, long, value_name = "PATH")]
        target: Option<String>,
    },
}

/// Runs a verb; `json` may also have been asked for before the noun.
pub(crate) fn run(arguments: &BenchArgs, json: bool) -> Result<Answer, ApiError> {
    let json = json || arguments.json;
    match &arguments.verb {
        None => measure::minute(&arguments.dir, json),
        Some(BenchVerb::Run(run)) => measure::run(run, json),
        Some(BenchVerb::Validate(validate)) => measure::validate(validate, json),
        Some(BenchVerb::Rerun(rerun)) => measure::rerun(rerun, json),
        Some(BenchVerb::Compare { old, new, old_cache, new_cache }) => {
            results::compare((old, *old_cache), (new, *new_cache), json)
        }
        Some(BenchVerb::Report { result, out }) => results::report(result, out.as_deref(), json),
        Some(BenchVerb::Agent(agent)) => agents::agent(agent),
        Some(BenchVerb::Selftest(selftest)) => trust::selftest(selftest, json),
        Some(BenchVerb::Calibrate(calibrate)) => trust::calibrate(calibrate, json),
        Some(BenchVerb::Lint(profile)) => results::lint(profile, json),
        Some(BenchVerb::Profiles { name }) => results::profiles(name.as_deref(), json),
        Some(BenchVerb::Export { profile, target }) => results::export(profile, target.as_deref()),
    }
}
