//! NFS part of `cargo xtask bench-files`: compares Weir's NFS server with Ganesha.
//!
//! `files` compares mounted filesystems. The bars (required values) are the project's own
//! requirements.
//!
//! Invariants:
//! - one client, `weir bench`, measures both servers in turn, so that a noisy minute affects both;
//! - both servers have their data on one ext4;
//! - a run has a deadline; the tables show measurements after the deadline as not measured;
//! - the servers end with this process, however this process ends.

pub(crate) mod ganesha;
mod load;
mod report;
mod rows;
pub(crate) mod weir;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use ganesha::{Export, Ganesha};
use load::{Bench, Kind, Sample};
use report::Results;
pub(crate) use rows::Group;
use rows::Row;
use weir::Weir;
use weir_command::command;

use crate::document::facts_table;
use crate::place::{self, Place};
use crate::{machine, mounted};

/// Memory of the Weir server: more than the data of the rows.
const MEMORY_BYTES: u64 = 4 << 30;
/// Record size of Weir's filesystem for rows of data. The mirrors in the document 000 have the same
/// record size.
const RECORD: &str = "32KiB";
/// Size of each disk of Weir's pool; the disks are sparse files.
const DISK_BYTES: u64 = 24 << 30;
/// Time after which no further group of rows starts. The last group ends about a minute later.
const DEADLINE: Duration = Duration::from_mins(11);

/// Length and layout of the NFS part.
pub(crate) struct Pace {
    pub(crate) rounds: usize,
    /// Length of each timed row in seconds.
    pub(crate) seconds: u64,
    /// Number of files of the archive.
    pub(crate) extracted: u64,
    /// Number of files of 256 MiB that each server writes before the first row.
    pub(crate) warm_files: u64,
    /// Groups of rows to measure.
    pub(crate) groups: Vec<Group>,
    /// True if Weir's pool has one disk instead of a mirror.
    pub(crate) is_single: bool,
}

/// Runs the NFS part, and prints its tables.
pub(crate) fn main(place: &Place, base: &Path, program: &Path, pace: &Pace) -> Result<()> {
    let dir = base.join("nfs");
    place::empty(&dir)?;
    let rows = rows::rows(pace.extracted);
    let (mut samples, mut cut_off) = (Vec::new(), false);
    let measured = measure(program, &dir, (pace, &rows), &mut samples, &mut cut_off);
    // Even after an error, save the samples so far.
    let json = serde_json::to_string_pretty(&samples)?;
    fs::write(place.folder()?.join("nfs.json"), json)?;
    measured?;
    let facts = machine::facts(&dir, Some(program), machine::packages(&ganesha::PACKAGES))?;
    fs::remove_dir_all(&dir)?;
    let layout = if pace.is_single { "once" } else { "twice (a mirror of two files)" };
    let (rounds, extracted) = (pace.rounds, pace.extracted);
    let results = Results { rows: &rows, samples: &samples, rounds, cut_off, layout, extracted };
    let text = format!("{}\n{}", report::markdown(&results), facts_table(&facts));
    place.print(&text, (report::BEGIN, report::END))
}

fn measure(
    program: &Path,
    dir: &Path,
    (pace, rows): (&Pace, &[Row]),
    samples: &mut Vec<Sample>,
    cut_off: &mut bool,
) -> Result<()> {
    let start = Instant::now();
    eprintln!("bench: starting Weir and Ganesha");
    let layout = if pace.is_single { "#" } else { "mirror # #" };
    let weir = Weir::start(program, &dir.join("weir"), MEMORY_BYTES, (layout, DISK_BYTES))?;
    weir.share("durable", &["--record-size", RECORD], false)?;
    weir.share("volatile", &[], true)?;
    let ganesha = start_ganesha(dir)?;
    let (weir, ganesha, seconds) = (&weir, &ganesha, pace.seconds);
    let bench = Bench { program, weir, ganesha, dir: dir.to_owned(), rows, seconds };
    for kind in Kind::ALL {
        bench.warm(kind, pace.warm_files)?;
    }
    for round in 0..pace.rounds {
        for group in pace.groups.iter().copied() {
            if group == Group::Extract && round > 0 {
                continue;
            }
            // The first server after a pause finds the disk idle, so each round begins with the
            // other server.
            for turn in 0..Kind::ALL.len() {
                if start.elapsed() > DEADLINE {
                    *cut_off = true;
                    continue;
                }
                let kind = Kind::ALL[(round + turn) % Kind::ALL.len()];
                let began = Instant::now();
                samples.extend(bench.run(group, kind, round)?);
                let (name, server) = (group.name(), kind.name());
                eprintln!("bench: {name} {server} took {:.1} s", began.elapsed().as_secs_f64());
            }
        }
        eprintln!("bench: round {} ended after {:.0} s", round + 1, start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Starts Ganesha with a plain directory, and with one in which ext4 commits each change of a name
/// before it returns.
fn start_ganesha(dir: &Path) -> Result<Ganesha> {
    let exports = ["durable", "volatile"]
        .map(|name| Export { name: name.to_owned(), directory: dir.join("ganesha").join(name) });
    for export in &exports {
        fs::create_dir_all(&export.directory)?;
    }
    // The data of tests is in memory, where no change is durable.
    if mounted::is_ext4(dir)? {
        // New directories inherit the flag (chattr(1)).
        command::output(Command::new("chattr").arg("+D").arg(&exports[0].directory))?;
    }
    Ganesha::start(dir, &exports)
}
