//! `cargo xtask soak`: the long tests before a release, split into pieces. One call runs some of
//! the pieces; later calls run the rest.
//!
//! Not here: the list of pieces (plan.rs), the load (load.rs), the stored results (results.rs).
//!
//! Invariants:
//! - soak runs each piece once for a commit, also if the piece failed; after a failure it continues
//!   with the other pieces;
//! - the output of a piece goes to a log file, which soak keeps only if the piece failed;
//! - every piece runs under a memory limit and a time limit.

pub(crate) mod load;
mod memory;
mod plan;
mod results;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use memory::Limit;
use plan::{Kind, Piece};
use results::{Outcome, Tree, Verdict};
use weir_command::command;

use crate::runner::process::{self, Job};
use crate::{e2e, fuzz, setup, sim};

/// Maximum number of log lines in the result of a failed piece.
const DETAIL_LINES: usize = 3;

/// Options of the task: the time limit of the call, or a report of the results.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Start a piece only if it ends within this many minutes; without it, run all remaining pieces
    #[arg(long)]
    minutes: Option<u64>,
    /// Print the results of this commit and run no piece
    #[arg(long, conflicts_with = "minutes")]
    report: bool,
}

/// Runs `cargo xtask soak`.
pub(crate) fn main(args: &Args) -> Result<()> {
    let start = Instant::now();
    let folder = command::target().join("soak");
    let path = folder.join("results.jsonl");
    let tree = tree()?;
    let plan = plan::pieces(&fuzz::targets()?);
    if !args.report {
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let end = args.minutes.map(|minutes| start + Duration::from_mins(minutes));
        run_pieces(&plan, &tree, &folder, &path, end)?;
    }
    let outcomes = results::read(&path)?;
    let results = results::of_tree(&outcomes, &tree);
    println!("\n{}", results::report(&plan, &tree, &results));
    if results.iter().any(|one| one.verdict == Verdict::Failed) {
        bail!("a piece failed; its line in {} contains the reason", path.display());
    }
    Ok(())
}

/// Runs the pieces that have no result yet, until the time limit of the call.
fn run_pieces(
    plan: &[Piece],
    tree: &Tree,
    folder: &Path,
    path: &Path,
    end: Option<Instant>,
) -> Result<()> {
    setup::for_clients()?;
    process::begin()?;
    let limit = Limit::new();
    println!("limit of memory: {}", limit.words());
    let mut programs = Programs::default();
    for piece in plan {
        let outcomes = results::read(path)?;
        let is_done = results::of_tree(&outcomes, tree).iter().any(|one| one.piece == piece.name());
        let needs = usual_time(piece.kind(), &outcomes);
        // The build has taken time, so check again whether the piece ends before the time limit.
        if is_done || !fits(needs, end) {
            continue;
        }
        ensure!(self::tree()? == *tree, "files changed during the soak; start it again");
        programs.build(piece.kind())?;
        if !fits(needs, end) {
            continue;
        }
        let outcome = run(piece, tree, folder, &limit, &programs)?;
        println!(
            "{}: {:?} after {:.0} s: {}",
            outcome.piece, outcome.verdict, outcome.seconds, outcome.detail
        );
        results::append(path, &outcome)?;
    }
    Ok(())
}

/// Returns the expected time of a piece: the longest recorded time of the pieces of its kind, or
/// the default of the kind if no time was recorded.
fn usual_time(kind: Kind, outcomes: &[Outcome]) -> Duration {
    let seconds = outcomes.iter().filter(|one| one.kind == kind).map(|one| one.seconds);
    Duration::from_secs_f64(seconds.reduce(f64::max).unwrap_or(kind.usual_seconds()))
}

fn fits(time: Duration, end: Option<Instant>) -> bool {
    end.is_none_or(|end| Instant::now() + time <= end)
}

/// Reads the commit under test, and whether the work tree differs from it.
fn tree() -> Result<Tree> {
    let dirty = !command::git(&["status", "--porcelain"])?.is_empty();
    Ok(Tree { commit: command::git(&["rev-parse", "HEAD"])?, dirty })
}

/// Kinds of pieces whose programs this call of soak has already built.
#[derive(Default)]
struct Programs(Vec<Kind>);

impl Programs {
    /// Builds the programs of this kind. The memory limit does not apply here, because compilers
    /// exceed it.
    fn build(&mut self, kind: Kind) -> Result<()> {
        if self.0.contains(&kind) {
            return Ok(());
        }
        match kind {
            Kind::Recoveries => {
                command::cargo(&["build", "--profile", "ci", "--package", "weir-sim"])?;
            }
            Kind::Seeds => sim::build_examples()?,
            Kind::Load => command::cargo(&["build", "--profile", "ci", "--package", "weir"])?,
            Kind::Fuzz => fuzz::build()?,
            Kind::Tests => e2e::build()?,
            Kind::Deny => setup::cargo_tool(setup::DENY)?,
        }
        self.0.push(kind);
        Ok(())
    }
}

/// Runs one piece and returns its result.
fn run(
    piece: &Piece,
    tree: &Tree,
    folder: &Path,
    limit: &Limit,
    programs: &Programs,
) -> Result<Outcome> {
    debug_assert!(programs.0.contains(&piece.kind()));
    let (name, kind) = (piece.name(), piece.kind());
    println!("{name} ...");
    let data = folder.join(&name);
    let log = folder.join(format!("{name}.log"));
    let limit_seconds = Duration::from_secs(kind.limit_seconds());
    let command = command_of(piece, &data, limit)?;
    let end = process::run(Job { command, log: &log, limit: limit_seconds })?;
    let text = fs::read(&log).with_context(|| log.display().to_string())?;
    let text = String::from_utf8_lossy(&text);
    let mut outcome = Outcome {
        tree: tree.clone(),
        piece: name,
        kind,
        seeds: None,
        recoveries: 0,
        seconds: (end.time.as_secs_f64() * 10.0).round() / 10.0,
        verdict: Verdict::Passed,
        detail: limit.words(),
    };
    let mut failure = end.failure;
    if let Piece::Recoveries { first_seed, recoveries, .. } = piece {
        match simulated(&text) {
            Some((scenarios, checked)) if checked >= *recoveries || failure.is_some() => {
                outcome.seeds = Some((*first_seed, first_seed + scenarios.saturating_sub(1)));
                outcome.recoveries = checked;
            }
            _ => failure = failure.or(Some("too few recoveries".to_owned())),
        }
    }
    if let Piece::Seeds { first_seed, seeds, .. } = piece {
        outcome.seeds = Some((*first_seed, first_seed + seeds - 1));
    }
    match failure {
        None => {
            fs::remove_file(&log)?;
            if data.exists() {
                fs::remove_dir_all(&data)?;
            }
        }
        Some(why) => {
            let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
            let last = lines[lines.len().saturating_sub(DETAIL_LINES)..].join(" | ");
            outcome.verdict = Verdict::Failed;
            outcome.detail = format!("{why}: {last}; log: {}; {}", log.display(), limit.words());
        }
    }
    Ok(outcome)
}

fn command_of(piece: &Piece, data: &Path, limit: &Limit) -> Result<Command> {
    let built = |name: &str| -> PathBuf { command::target().join("ci").join(name) };
    let own = std::env::current_exe().context("this program has no file")?;
    let mut command;
    match piece {
        Piece::Recoveries { first_seed, recoveries, .. } => {
            command = limit.command(&built("weir-sim"));
            command.args(["--seed", &first_seed.to_string()]);
            command.args(["--recoveries", &recoveries.to_string()]);
        }
        Piece::Seeds { scenarios, first_seed, seeds, .. } => {
            let example = scenarios.example().context("pools have no example")?;
            command = limit.command(&built("examples").join(example));
            command.args([first_seed, seeds].map(u64::to_string));
        }
        Piece::Load { .. } => {
            command = limit.command(&own);
            command.arg("soak-load").arg("--weir").arg(built("weir")).arg("--dir").arg(data);
        }
        Piece::Fuzz { target } => {
            command = limit.command(&own);
            command.args(["fuzz", target, "--seconds", &plan::FUZZ_SECONDS.to_string()]);
        }
        Piece::Tests { tests, .. } => {
            command = limit.command(&own);
            command.args(["e2e", tests.filter]).env(tests.length.0, tests.length.1);
        }
        Piece::Deny => {
            command = limit.command(Path::new("cargo"));
            command.args(["deny", "check", "licenses", "bans", "sources"]);
        }
    }
    command.current_dir(command::root());
    Ok(command)
}

/// Parses the numbers of scenarios and recoveries from the last line that the simulator printed.
fn simulated(log: &str) -> Option<(u64, u64)> {
    let line = log.lines().rev().find(|line| line.contains(" recoveries in "))?;
    let (scenarios, rest) = line.split_once(" scenarios, ")?;
    let (recoveries, _) = rest.split_once(" recoveries in ")?;
    Some((scenarios.trim().parse().ok()?, recoveries.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulator_counts_are_parsed() {
        let log = "layout x\n\n12 scenarios, 25013 recoveries in 200 s\n";
        assert_eq!(simulated(log), Some((12, 25013)));
        assert_eq!(simulated("BROKEN"), None);
    }

    #[test]
    fn piece_starts_only_if_it_ends_in_time() {
        let now = Instant::now();
        let minute = Duration::from_mins(1);
        assert!(fits(minute, None) && fits(minute, Some(now + 2 * minute)));
        assert!(!fits(3 * minute, Some(now + 2 * minute)));
        let usual = Duration::from_secs_f64(Kind::Load.usual_seconds());
        assert_eq!(usual_time(Kind::Load, &[]), usual);
    }
}
