//! `cargo xtask bench-files`: compares a mounted Weir filesystem with other FUSE servers, and the
//! NFS server of Weir with Ganesha.
//!
//! `nfs` is the part with NFS. `peers` compares block devices. The bars (required values) are the
//! project's own requirements.
//!
//! Invariants:
//! - each contender has its data on one ext4 filesystem (tests: in memory), and is measured in turn
//!   with the others, so that a noisy minute affects all contenders;
//! - every sample is kept in `files.json` in the folder of the run; the tables show medians;
//! - a run has a deadline; the tables show measurements after the deadline as not measured;
//! - the servers, mounts and loop devices end with this process, however this process ends.

mod contenders;
mod passthrough;
mod report;
mod results;
mod rows;
mod steps;
mod visits;
mod weir;
pub(crate) mod worker;
mod zfs_fuse;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use contenders::{Contender, Kind};

use regex::Regex;
use results::Results;
use visits::{Counts, Visit, stored_bytes, touch_memory};

use crate::machine;
use crate::mounted::{self, Base};
use crate::nfs::{self, Group};
use crate::place::{self, Place};

/// Debian packages whose versions the table shows.
const PACKAGES: [&str; 2] = ["libfuse3-dev", "zfs-fuse"];

/// Selection and length of the measurement.
#[expect(clippy::struct_excessive_bools, reason = "options of the command line")]
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One round of short runs: a first impression, not a result.
    #[arg(long)]
    quick: bool,
    /// Only measurements whose name matches: small-1, small-4, sequential, fsync, and nfs-matrix,
    /// nfs-large, nfs-small, nfs-sync, nfs-names-durable, nfs-names-volatile, nfs-extract
    #[arg(long, value_name = "REGEX")]
    only: Option<Regex>,
    /// Only servers whose name matches: ext4, `passthrough_ll`, zfs-fuse, Weir
    #[arg(long, value_name = "REGEX")]
    servers: Option<Regex>,
    /// Turns for each measurement; default 3, with --quick 1.
    #[arg(long)]
    rounds: Option<usize>,
    /// Number of small files; default 20,000, with --quick 2,000.
    #[arg(long)]
    files: Option<u64>,
    /// Size of the large file in MiB; default 1,024, with --quick 128.
    #[arg(long, value_name = "MIB")]
    large: Option<u64>,
    /// Seconds of each series of fsyncs; default 6, with --quick 2.
    #[arg(long)]
    seconds: Option<u64>,
    /// Seconds of each row of the NFS part; default 2, with --quick 1.
    #[arg(long)]
    nfs_seconds: Option<u64>,
    /// Number of files of the archive in the NFS part; default 70,000, with --quick 500.
    #[arg(long, value_name = "FILES")]
    untar: Option<u64>,
    /// In the NFS part, Weir stores one copy of each block, as Ganesha; default: a mirror.
    #[arg(long)]
    single_copy: bool,
    /// For tests on a busy machine: store the data in memory, do not call sync(2), and do not drop
    /// the caches of the kernel. Omits the rows of cold files.
    #[arg(long)]
    in_memory: bool,
    #[command(flatten)]
    place: Place,
    /// True if this process has its own mount namespace.
    #[arg(long, hide = true)]
    in_namespace: bool,
}

/// Length of a run.
struct Pace {
    rounds: usize,
    counts: Counts,
    deadline: Duration,
    is_in_memory: bool,
}

impl Args {
    /// Returns the selected servers of the mounts.
    fn kinds(&self) -> Vec<Kind> {
        let wanted =
            |kind: &Kind| self.servers.as_ref().is_none_or(|only| only.is_match(kind.name()));
        Kind::ALL.into_iter().filter(wanted).collect()
    }

    /// Returns the selected measurements of the mounts.
    fn visits(&self) -> Vec<Visit> {
        let chosen =
            |visit: &Visit| self.only.as_ref().is_none_or(|only| only.is_match(&visit.name()));
        Visit::all().into_iter().filter(chosen).collect()
    }

    /// Returns true if a selected measurement needs Weir.
    fn measures_weir(&self) -> bool {
        let by_mounts = !self.visits().is_empty() && self.kinds().contains(&Kind::Weir);
        let by_nfs = !self.groups().is_empty() && nfs::ganesha::is_installed();
        by_mounts || by_nfs
    }

    /// Returns the selected groups of rows of the NFS part.
    fn groups(&self) -> Vec<Group> {
        let chosen = |group: &Group| {
            let name = format!("nfs-{}", group.name());
            self.only.as_ref().is_none_or(|only| only.is_match(&name))
        };
        Group::ALL.into_iter().filter(chosen).collect()
    }

    /// Length of the NFS part; `None` if it is not selected, or Ganesha is not installed.
    fn nfs(&self) -> Option<nfs::Pace> {
        let groups = self.groups();
        if groups.is_empty() {
            return None;
        }
        if !nfs::ganesha::is_installed() {
            eprintln!("bench: no NFS part: Ganesha, rpcbind or ip is not installed");
            return None;
        }
        let (rounds, seconds, extracted) = if self.quick { (1, 1, 500) } else { (3, 2, 70_000) };
        Some(nfs::Pace {
            rounds: self.rounds.unwrap_or(rounds),
            seconds: self.nfs_seconds.unwrap_or(seconds).max(1),
            extracted: self.untar.unwrap_or(extracted).max(1),
            is_single: self.single_copy,
            warm_files: if self.quick { 1 } else { WARM_FILES },
            groups,
        })
    }
}

impl Pace {
    fn of(args: &Args) -> Self {
        let (rounds, files, large_mib, fsync_seconds, minutes) =
            if args.quick { (1, 2000, 128, 2, 4) } else { (3, 20_000, 1024, 6, 25) };
        let counts = Counts {
            files: args.files.unwrap_or(files).max(1),
            large_mib: args.large.unwrap_or(large_mib).max(1),
            fsync_seconds: args.seconds.unwrap_or(fsync_seconds),
            warm_seconds: if args.quick { 1 } else { WARM_SECONDS },
        };
        let rounds = args.rounds.unwrap_or(rounds);
        let deadline = Duration::from_mins(minutes);
        Self { rounds, counts, deadline, is_in_memory: args.in_memory }
    }
}

/// Files of 256 MiB that each NFS server writes first, so that no row pays for memory that was
/// never touched.
const WARM_FILES: u64 = 8;

/// Seconds for which a stream runs before the first measured fsync.
const WARM_SECONDS: u64 = 8;

/// Runs the benchmark of filesystems and of NFS.
pub(crate) fn main(args: &Args) -> Result<()> {
    if !args.in_namespace {
        // The build may need the network, which the namespace does not have.
        let words = if args.measures_weir() { args.place.program_words()? } else { Vec::new() };
        return mounted::into_own_namespace(&words);
    }
    mounted::prepare_network()?;
    let (dir, pace) = (args.place.folder()?, args.nfs());
    let is_nothing = mounts(args)?;
    let Some(pace) = pace else {
        ensure!(!is_nothing, "nothing to measure: --only and --servers leave nothing");
        return Ok(());
    };
    let data = dir.join("nfs-data");
    place::empty(&data)?;
    let base = base(&data, args.in_memory)?;
    let done = nfs::main(&args.place, base.path(), &args.place.program()?, &pace);
    drop(base);
    fs::remove_dir_all(&data)?;
    done
}

fn base(folder: &Path, is_in_memory: bool) -> Result<Base> {
    if is_in_memory { Base::in_memory(folder) } else { Base::new(folder) }
}

/// Runs the benchmark of mounted filesystems. Returns true if the options select none of it.
fn mounts(args: &Args) -> Result<bool> {
    let (kinds, visits) = (args.kinds(), args.visits());
    if kinds.is_empty() || visits.is_empty() {
        return Ok(true);
    }
    let is_weir = kinds.contains(&Kind::Weir);
    let weir = is_weir.then(|| args.place.program()).transpose()?;
    let dir = args.place.folder()?;
    let data = dir.join("files");
    place::empty(&data)?;
    let mut pace = Pace::of(args);
    if kinds.contains(&Kind::Passthrough) {
        let files_max = passthrough::raise_files_max().max(1);
        if pace.counts.files > files_max {
            eprintln!("bench: {files_max} small files: passthrough_ll may open no more");
            pace.counts.files = files_max;
        }
    }
    let mut results = Results {
        quick: args.quick,
        small_files: pace.counts.files,
        large_mib: pace.counts.large_mib,
        ..Results::default()
    };
    let measured = measure(&kinds, &visits, &pace, weir.as_deref(), &data, &mut results);
    // Even after an error, save the samples so far and delete the data.
    fs::write(dir.join("files.json"), serde_json::to_string_pretty(&results)?)?;
    fs::remove_dir_all(&data)?;
    measured?;
    let text = report::markdown(&results, &kinds, &rows::rows());
    args.place.print(&text, (report::BEGIN, report::END))?;
    Ok(false)
}

fn measure(
    kinds: &[Kind],
    visits: &[Visit],
    pace: &Pace,
    weir: Option<&Path>,
    data: &Path,
    results: &mut Results,
) -> Result<()> {
    let start = Instant::now();
    let base = base(data, pace.is_in_memory)?;
    results.machine = machine::facts(base.path(), weir, machine::packages(&PACKAGES))?;
    let mut running = Vec::new();
    for kind in kinds {
        if !kind.is_installed() {
            eprintln!("bench: {} is not installed", kind.name());
            continue;
        }
        eprintln!("bench: starting {}", kind.name());
        let mut contender = Contender::start(*kind, base.path(), weir, pace.is_in_memory)?;
        let stored = stored_bytes(&mut contender, pace.counts.files)?;
        results.stored_bytes.push((kind.name(), stored));
        touch_memory(&contender, pace.counts.large_mib)?;
        running.push(contender);
    }
    for round in 0..pace.rounds {
        for visit in visits {
            // The first contender after a pause finds the disk idle, so each round begins with
            // another contender.
            for turn in 0..running.len() {
                if start.elapsed() > pace.deadline {
                    results.cut_off = true;
                    continue;
                }
                let at = (round + turn) % running.len();
                visit.run(&mut running[at], pace.counts, round, results)?;
            }
        }
    }
    // The contenders have their data on the base.
    drop(running);
    drop(base);
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn runs_without_weir_build_no_weir() {
        let measures_weir = |line: &str| {
            Line::try_parse_from(line.split_whitespace()).map(|line| line.args.measures_weir())
        };
        for (line, expected) in [
            ("files --only fsync", true),
            ("files --only fsync --servers ext4|Weir", true),
            ("files --only fsync --servers ext4|passthrough_ll", false),
            ("files --only nfs-small", nfs::ganesha::is_installed()),
            ("files --only nothing", false),
        ] {
            assert_eq!(measures_weir(line).ok(), Some(expected), "{line}");
        }
    }
}
