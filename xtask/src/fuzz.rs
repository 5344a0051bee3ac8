//! `cargo xtask fuzz`: runs libFuzzer on every parser of untrusted bytes, two parsers at a time.
//!
//! Not here: the targets (fuzz/).
//!
//! Invariants:
//! - the task fails with a message if there are no fuzz targets, if cargo-fuzz is missing, or after
//!   a crash;
//! - the stable toolchain of the workspace suffices: only the address sanitizer would need a
//!   nightly toolchain. Coverage works without the sanitizer, and the parsers contain no unsafe
//!   code, which the sanitizer would check.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result, bail};
use weir_command::command;

use crate::setup;

/// Number of targets that run concurrently; CI has two cores.
const AT_ONCE: usize = 2;

/// Default time of each target in seconds. `make test` runs the same targets for 5 s without
/// instrumentation (crates/tools/weir-fuzz).
const SECONDS: u32 = 60;

/// Targets to fuzz, and the time for each.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Target to fuzz; all targets if absent
    target: Option<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = SECONDS)]
    seconds: u32,
}

/// Runs `cargo xtask fuzz`.
pub(crate) fn main(args: &Args) -> Result<()> {
    setup::for_clients()?;
    let mut targets = targets()?;
    if let Some(only) = &args.target {
        if !targets.contains(only) {
            bail!("no fuzz target {only:?}; there are: {}", targets.join(", "));
        }
        targets.retain(|target| target == only);
    }
    fuzz(&targets, args.seconds)
}

/// Lists all targets.
pub(crate) fn targets() -> Result<Vec<String>> {
    setup::cargo_tool(setup::FUZZ)?;
    let list = command::output(command::command("cargo").args(["fuzz", "list"]))?;
    let targets: Vec<String> = list.lines().map(str::to_owned).collect();
    if targets.is_empty() {
        bail!("fuzz/ has no targets");
    }
    Ok(targets)
}

/// Builds all targets.
pub(crate) fn build() -> Result<()> {
    let mut build = command::command("cargo");
    build.args(["fuzz", "build", "--sanitizer", "none", "--target-dir"]);
    command::run(build.arg(command::root().join("fuzz/target")))
}

fn fuzz(targets: &[String], seconds: u32) -> Result<()> {
    let fuzz = command::root().join("fuzz");
    build()?;
    let programs = fuzz.join("target").join(host()?).join("release");
    for pair in targets.chunks(AT_ONCE) {
        let mut running = Vec::new();
        for target in pair {
            running.push(Run::start(target, seconds, &fuzz, &programs)?);
        }
        for run in running {
            println!("{}", run.finish()?);
        }
    }
    Ok(())
}

/// A fuzz target that is running.
struct Run<'a> {
    target: &'a str,
    child: Child,
    log: PathBuf,
}

impl<'a> Run<'a> {
    /// Starts the program of the target directly: killing `cargo fuzz` would leave that program
    /// running.
    fn start(target: &'a str, seconds: u32, fuzz: &Path, programs: &Path) -> Result<Self> {
        let artifacts = fuzz.join("artifacts").join(target);
        fs::create_dir_all(&artifacts)?;
        let log = artifacts.join("last.log");
        let file = File::create(&log)?;
        let mut command = Command::new(programs.join(target));
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        command.arg(format!("-max_total_time={seconds}"));
        // An input that takes 10 s or 1 GiB counts as a fault, like a panic.
        command.args(["-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"]);
        command.args(corpora(fuzz, target)?);
        command.stdout(file.try_clone()?).stderr(file);
        let child =
            command.spawn().with_context(|| format!("cannot start fuzz target {target}"))?;
        Ok(Self { target, child, log })
    }

    /// Waits for the target; returns one line with the number of inputs tried.
    fn finish(mut self) -> Result<String> {
        let status = self.child.wait()?;
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        if !status.success() {
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(40)..].join("\n");
            bail!("fuzz target {} failed ({status}):\n{tail}", self.target);
        }
        let tried = stat(&log, "number_of_executed_units")
            .with_context(|| format!("fuzz target {} ran no input: {log}", self.target))?;
        Ok(format!("fuzz {}: {tried} inputs, no failure", self.target))
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // The kill usually fails, because the program has already exited.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the corpus folder that libFuzzer extends, then the committed corpus folder: libFuzzer
/// writes new inputs to the first folder on its command line.
fn corpora(fuzz: &Path, target: &str) -> Result<Vec<PathBuf>> {
    let grown = fuzz.join("corpus").join(target);
    fs::create_dir_all(&grown)?;
    let seeds = command::root().join("crates/tools/weir-fuzz/corpus").join(target);
    Ok([grown, seeds].into_iter().filter(|folder| folder.is_dir()).collect())
}

/// Returns the target triple of this machine, for which cargo-fuzz builds.
fn host() -> Result<String> {
    let version = command::output(command::command("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// Returns the value of one of libFuzzer's final statistics, if it is above zero.
fn stat(log: &str, name: &str) -> Option<u64> {
    let line = log.lines().find(|line| line.contains(&format!("stat::{name}:")))?;
    line.rsplit(' ').next()?.parse().ok().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_final_statistics() {
        let log = "Done 7 runs\nstat::number_of_executed_units: 5012\nstat::peak_rss_mb: 40\n";
        assert_eq!(stat(log, "number_of_executed_units"), Some(5012));
        assert_eq!(stat("stat::number_of_executed_units: 0", "number_of_executed_units"), None);
        assert_eq!(stat("", "number_of_executed_units"), None);
    }
}
