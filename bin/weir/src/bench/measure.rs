//! The verbs that measure: run, validate, rerun, and the one-minute benchmark.
//!
//! Not here: the phases and the load of a measurement (weir-bench), output (show).
//!
//! Invariants: the result is on disk before the report is written; only a complete run can pass a
//! validation.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use weir_api::ApiError;
use weir_base::ErrorKind;
use weir_bench::clients::Clients;
use weir_bench::requirement::{self, Outcome};
use weir_bench::result::RunResult;
use weir_bench::run::{self, Before, RunError};
use weir_bench::spec::{CostSpec, RunSpec};
use weir_bench::target::{Address, Target};
use weir_bench::verdict::{Finding, JudgedRun};
use weir_bench::{compare, report};

use crate::bench::agents::AgentsArgs;
use crate::bench::answer::{Answer, invalid};
use crate::bench::folder::Folder;
use crate::bench::plan::{DestroyArgs, FilesArgs, Plan, ProfileArgs, TargetArgs, open, plan, told};
use crate::bench::progress::Watch;
use crate::bench::{folder, show};
use crate::cli::base::output;

/// Options of all verbs that measure.
#[derive(Debug, Args)]
struct MeasureArgs {
    #[command(flatten)]
    destroy: DestroyArgs,
    #[command(flatten)]
    agents: AgentsArgs,
    /// Directory for result.json and the report [default: a directory here with the time in its
    /// name]
    #[arg(short, long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
    /// Verdicts that lead to exit code 1, in addition to an incomplete run: names as in the table,
    /// any, or none
    #[arg(long, value_name = "VERDICTS", value_delimiter = ',', value_parser = FailOn::parse,
        default_value = "invalid,corrupt,holes")]
    fail_on: Vec<FailOn>,
}

/// One word of `--fail-on`: a verdict that makes the command fail, or `any` or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailOn {
    Any,
    None,
    One(Finding),
}

impl FailOn {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "any" => return Ok(Self::Any),
            "none" => return Ok(Self::None),
            _ => {}
        }
        let found = Finding::ALL.into_iter().find(|finding| finding.name() == text);
        found.map(Self::One).ok_or_else(|| {
            let names = Finding::ALL.map(Finding::name).join(", ");
            format!("no verdict is called {text:?}; known: {names}; or any, none")
        })
    }
}

/// Returns `Yes` if none of the verdicts requires exit code 1.
fn answer(judged: &JudgedRun, fail_on: &[FailOn]) -> Answer {
    if fail_on.contains(&FailOn::None) {
        return Answer::Yes;
    }
    let fails = |finding: &Finding| {
        fail_on.iter().any(|word| [FailOn::Any, FailOn::One(*finding)].contains(word))
    };
    let is_bad = !judged.result().complete || judged.findings().iter().any(fails);
    if is_bad { Answer::No } else { Answer::Yes }
}

/// Arguments of `weir bench run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    files: FilesArgs,
    /// Target to measure: PATH, file:PATH, dir:PATH, nbd://HOST/EXPORT,
    /// nbd+unix:///EXPORT?socket=PATH, iscsi://HOST/TARGET/LUN, nfs://HOST/EXPORT/DIR or null:
    #[arg(short, long, value_name = "TARGET", required_unless_present = "resume")]
    target: Option<String>,
    #[command(flatten)]
    with: MeasureArgs,
    /// Resume the stopped or killed run in this directory
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["out", "profile", "target",
        "op", "scale", "variant", "seed", "size", "runs", "verify"])]
    resume: Option<PathBuf>,
}

/// Arguments of `weir bench validate`.
#[derive(Debug, Args)]
pub(super) struct ValidateArgs {
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    with: MeasureArgs,
    /// Requirement, such as 216iops,p99=20ms [default: the requirement of the profile]
    #[arg(long, value_name = "BOUNDS", value_parser = requirement::parse_need)]
    need: Option<weir_bench::spec::Requirement>,
    /// Price of the hardware, for dollars per GB and per IOPS
    #[arg(long, value_name = "DOLLARS", requires = "usable_gb")]
    hardware_usd: Option<f64>,
    /// Usable space in GB (10^9 bytes)
    #[arg(long, value_name = "GB", requires = "hardware_usd")]
    usable_gb: Option<f64>,
}

/// Arguments of `weir bench rerun`.
#[derive(Debug, Args)]
pub(super) struct RerunArgs {
    /// Result file, or its directory
    result: PathBuf,
    /// Target to measure [default: the target of the result]
    #[arg(short, long, value_name = "TARGET")]
    target: Option<String>,
    #[command(flatten)]
    with: MeasureArgs,
}

/// A file that is removed when its `Temporary` is dropped.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // Ignore the error: `drop` cannot return it. If the file remains, its name shows which
        // program created it.
        drop(std::fs::remove_file(&self.0));
    }
}

/// Runs the one-minute benchmark on a temporary file.
pub(super) fn minute(dir: &Path, json: bool) -> Result<Answer, ApiError> {
    let name = format!(".weir-bench-{}.tmp", std::process::id());
    let temporary = Temporary(dir.join(name));
    let target = temporary.0.display().to_string();
    output::say(&format!("weir: about a minute on a file of 512 MiB in {}", dir.display()));
    let profile = ProfileArgs::quick();
    let Plan { spec, target } = plan(&profile, &target, &DestroyArgs::nothing())?;
    let judged = measured(&spec, &*target, &Clients::none(), Before::default(), None)?;
    show::run(&judged, None, json)?;
    if !json {
        output::say(
            "\nFor a report: weir bench run --target TARGET; profiles: weir bench profiles",
        );
    }
    let default = [Finding::Invalid, Finding::Corrupt, Finding::Holes].map(FailOn::One);
    Ok(answer(&judged, &default))
}

/// Runs a profile from its beginning, or resumes a run that was stopped.
pub(super) fn run(arguments: &RunArgs, json: bool) -> Result<Answer, ApiError> {
    let (spec, target, before, folder) = match (&arguments.resume, &arguments.target) {
        (Some(path), _) => resumed(path, &arguments.with.destroy)?,
        (None, Some(target)) => {
            let profile = arguments.files.replace(&arguments.profile);
            let Plan { spec, target } = plan(&profile, target, &arguments.with.destroy)?;
            let folder = arguments.with.folder(&spec)?;
            (spec, target, Before::default(), folder)
        }
        (None, None) => return Err(invalid(&"no target is given")),
    };
    let clients = arguments.with.agents.clients(&target.info().address)?;
    let judged = reported(&spec, &*target, &clients, before, &folder)?;
    show::run(&judged, Some(&folder), json)?;
    Ok(answer(&judged, &arguments.with.fail_on))
}

/// State from which a stopped run resumes.
type Resumed = (RunSpec, Box<dyn Target>, Before, Folder);

fn resumed(path: &Path, destroy: &DestroyArgs) -> Result<Resumed, ApiError> {
    let RunResult { spec, target, cells, bonnie, complete, .. } = folder::read(path)?;
    if complete {
        let message = format!("the run in {} is complete", path.display());
        return Err(ApiError::new(ErrorKind::Exists, message)
            .with_action("repeat it with `weir bench rerun`, or write its report with `report`"));
    }
    let address = Address::parse(&target.address).map_err(|error| told(&error))?;
    let opened = open(&address, &spec, &target.address, destroy)?;
    // Leave out the cells that failed: they are measured again.
    let cells = cells.into_iter().filter(|cell| cell.failure.is_none()).collect();
    Ok((spec, opened, Before { cells, bonnie }, Folder::at(path)))
}

/// Runs a profile and checks whether the result meets the requirement.
pub(super) fn validate(arguments: &ValidateArgs, json: bool) -> Result<Answer, ApiError> {
    let target = &arguments.target.target;
    let Plan { spec, target } = plan(&arguments.profile, target, &arguments.with.destroy)?;
    let asked = requirement::validation(spec, arguments.need.clone());
    let mut spec = asked.map_err(|error| invalid(&error))?;
    if let (Some(hardware_usd), Some(usable_gb)) = (arguments.hardware_usd, arguments.usable_gb) {
        spec.cost = Some(CostSpec { hardware_usd, usable_gb });
    }
    let clients = arguments.with.agents.clients(&arguments.target.target)?;
    let folder = arguments.with.folder(&spec)?;
    let judged = reported(&spec, &*target, &clients, Before::default(), &folder)?;
    let assessment = requirement::assess(&judged);
    show::validation(&judged, assessment.as_ref(), &folder, json)?;
    let met = assessment.is_some_and(|found| found.outcome == Outcome::Pass);
    Ok(if met { Answer::Yes } else { Answer::No })
}

/// Repeats the run of a result and compares the new result with the old one.
pub(super) fn rerun(arguments: &RerunArgs, json: bool) -> Result<Answer, ApiError> {
    let old = folder::read(&arguments.result)?;
    let named = arguments.target.as_ref().unwrap_or(&old.target.address).clone();
    let address = Address::parse(&named).map_err(|error| told(&error))?;
    let (spec, old) = (old.spec.clone(), JudgedRun::of(old));
    let target = open(&address, &spec, &named, &arguments.with.destroy)?;
    let clients = arguments.with.agents.clients(&named)?;
    let folder = arguments.with.folder(&spec)?;
    let new = reported(&spec, &*target, &clients, Before::default(), &folder)?;
    let answer = compare::rerun(&old, &new);
    let text = if json { answer.json() + "\n" } else { answer.text() };
    output::print(&text)?;
    let same = answer.answer == compare::Answer::Reproduced;
    Ok(if same { Answer::Yes } else { Answer::No })
}

impl MeasureArgs {
    fn folder(&self, spec: &RunSpec) -> Result<Folder, ApiError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let path = self.out.clone();
        let path = path.unwrap_or_else(|| folder::default_path(&spec.name, now.as_millis() as u64));
        Folder::make(&path)
    }
}

/// Runs a measurement and saves its result, then writes the report.
fn reported(
    spec: &RunSpec,
    target: &dyn Target,
    clients: &Clients,
    before: Before,
    folder: &Folder,
) -> Result<JudgedRun, ApiError> {
    let judged = measured(spec, target, clients, before, Some(folder))?;
    folder.keep_somewhere(&judged)?;
    report::write(&judged, folder.path()).map_err(|error| {
        let kind = ErrorKind::Unavailable;
        ApiError::new(kind, error.to_string())
            .with_action(format!("weir bench report {}", folder.path().display()))
    })?;
    Ok(judged)
}

fn measured(
    spec: &RunSpec,
    target: &dyn Target,
    clients: &Clients,
    before: Before,
    folder: Option<&Folder>,
) -> Result<JudgedRun, ApiError> {
    let mut watch = Watch::new(folder)?;
    let command = std::env::args().collect();
    let done = run::run(spec, target, clients, command, before, &mut watch);
    watch.end();
    let result = done.map_err(|error| match &error {
        RunError::Target(error) => told(error),
        RunError::Fill { .. } => ApiError::new(ErrorKind::Unavailable, error.to_string())
            .with_action("check the target's logs and free space, and measure again"),
        _ => invalid(&error),
    })?;
    if watch.was_stopped() && !result.complete {
        output::say("weir: stopped; the results so far follow");
    }
    Ok(JudgedRun::of(result))
}
