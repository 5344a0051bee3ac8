//! `weir bench`: benchmarks of Weir or any other storage.
//!
//! Not here: measurement, verdicts and reports (weir-bench).
//!
//! Invariants:
//! - the program never prints figures without their verdicts;
//! - the program does not write to a target that contains data, unless --destroy names the target;
//! - the result is on disk before the report is made.

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
    /// Without a verb: directory for the temporary file
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    dir: PathBuf,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
enum BenchVerb {
    /// Run a profile on a target and write a report
    Run(measure::RunArgs),
    /// Check a requirement: PASS or FAIL, with the headroom
    Validate(measure::ValidateArgs),
    /// Repeat the run of a result file and compare the results
    Rerun(measure::RerunArgs),
    /// Compare two results; results that are not comparable are not ranked
    Compare {
        /// Result file, or its directory
        old: PathBuf,
        /// Result file, or its directory
        new: PathBuf,
        /// Size of the old target's caches, or none
        #[arg(long, value_name = "SIZE|none", value_parser = plan::cache)]
        old_cache: Option<u64>,
        /// Size of the new target's caches, or none
        #[arg(long, value_name = "SIZE|none", value_parser = plan::cache)]
        new_cache: Option<u64>,
    },
    /// Write the report of a result file again, or one report on several results of a profile
    Report {
        /// Result file, or its directory; several results, such as of several layouts, have the
        /// names of their directories in the report
        #[arg(required = true, value_name = "RESULT")]
        results: Vec<PathBuf>,
        /// Result of another product, with which the report compares the first result; may be
        /// repeated
        #[arg(long = "peer", value_name = "RESULT")]
        peers: Vec<PathBuf>,
        /// Directory for the report [default: the directory of the result file, or the current
        /// directory for several results]
        #[arg(long, value_name = "DIRECTORY")]
        out: Option<PathBuf>,
    },
    /// Run load for a coordinator on another host, which uses `run --agent HOST`
    Agent(agents::AgentArgs),
    /// Measure targets of known behaviour and check the results
    Selftest(trust::SelftestArgs),
    /// Measure the same load with fio and with this program alternately, and compare the results
    Calibrate(trust::CalibrateArgs),
    /// List the traps of a profile, a fio job file or an Iometer file before a run, and the
    /// settings of such a file without an effect
    Lint(ProfileArgs),
    /// List the built-in profiles; with a name, print its text
    Profiles {
        /// Name of a profile
        name: Option<String>,
    },
    /// Print a profile as a job file for fio
    Export {
        #[command(flatten)]
        profile: ProfileArgs,
        /// File or device for the job file [default: fio reads it from WEIR_TARGET]
        #[arg(short, long, value_name = "PATH")]
        target: Option<String>,
    },
}

/// Runs a verb. `json` is true if the `--json` flag is before the noun.
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
        Some(BenchVerb::Report { results, peers, out }) => {
            results::report(results, peers, out.as_deref(), json)
        }
        Some(BenchVerb::Agent(agent)) => agents::agent(agent),
        Some(BenchVerb::Selftest(selftest)) => trust::selftest(selftest, json),
        Some(BenchVerb::Calibrate(calibrate)) => trust::calibrate(calibrate, json),
        Some(BenchVerb::Lint(profile)) => results::lint(profile, json),
        Some(BenchVerb::Profiles { name }) => results::profiles(name.as_deref(), json),
        Some(BenchVerb::Export { profile, target }) => results::export(profile, target.as_deref()),
    }
}
