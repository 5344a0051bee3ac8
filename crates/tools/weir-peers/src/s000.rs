//! `cargo xtask bench-s000`: repeats the reference document 000 over NFS, with Weir's pools in the
//! layouts of the document and with Ganesha on ext4, and writes one report.
//!
//! `nfs` compares both servers with bars; `layouts` compares layouts over NBD.
//!
//! Invariants:
//! - every server runs the same profile of `weir bench` with the same data and the same time for
//!   each row, one server after the other, with its disks on one ext4;
//! - the servers end with this process, however this process ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use weir_command::command;

use crate::mounted::{self, Base};
use crate::nfs::ganesha::{self, Export, Ganesha};
use crate::nfs::weir::{self, Weir};
use crate::place::{self, Place};
use crate::{document, machine};

const PROFILE: &str = "s000-nexenta-vm";
/// Number of shares of the document.
const SHARES: u32 = 8;
/// Addresses of loopback from which the 128 workers connect: Weir accepts 64 connections from each.
const SOURCES: &str = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4";
/// Space on the disks for each byte of data: the layouts store 1.25 to 2 bytes, and a pool needs
/// free space to write to.
const SPACE_TIMES: u64 = 6;
/// Markers of the conclusions in a document.
const MARKERS: (&str, &str) = ("<!-- bench-s000: begin -->", "<!-- bench-s000: end -->");
/// Smallest disk of a pool: the intent log takes a part of a disk, and a small log fills within a
/// second. The files are sparse.
const DISK_BYTES_MIN: u64 = 8 << 30;

/// Options of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds of each row.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Seconds of load before each row.
    #[arg(long, default_value_t = 1)]
    warmup: u64,
    /// Measurements of each row.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Data of the 120 files in MiB, rounded down to whole blocks of each file.
    #[arg(long, value_name = "MIB", default_value_t = 1920)]
    data: u64,
    /// Memory of each Weir server in MiB; default: half of the machine's memory. Ganesha uses the
    /// page cache: all free memory.
    #[arg(long, value_name = "MIB")]
    memory: Option<u64>,
    /// Only layouts whose name matches: mirrors, raidz1, raidz2, raidz1-async1, ganesha
    #[arg(long, value_name = "REGEX")]
    only: Option<regex::Regex>,
    /// Folder for the report; default target/bench/s000.
    #[arg(long, value_name = "FOLDER")]
    report: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    /// True if this process has its own namespaces.
    #[arg(long, hide = true)]
    in_namespace: bool,
}

/// A layout of the document, scaled to files as disks: as many disks as in the document.
struct Layout {
    /// Name of the result and of the columns of the report.
    name: &'static str,
    /// Variant of the profile.
    variant: &'static str,
    /// Words of `pool create` for one vdev, with a `#` for each disk.
    vdev: &'static str,
    vdevs: u64,
    /// Disks of a vdev that store data, without copies and parity.
    data_disks: u64,
    record: &'static str,
    protection: &'static str,
}

const LAYOUTS: [Layout; 4] = [
    Layout {
        name: "mirrors",
        variant: "mirrors",
        vdev: "mirror # #",
        vdevs: 12,
        data_disks: 1,
        record: "32KiB",
        protection: "12 mirrors of 2",
    },
    Layout {
        name: "raidz2",
        variant: "raidz2",
        vdev: "raidz2 # # # # # #",
        vdevs: 4,
        data_disks: 4,
        record: "128KiB",
        protection: "4 raidz2 (4+2)",
    },
    Layout {
        name: "raidz1",
        variant: "raidz1",
        vdev: "raidz1 # # # # #",
        vdevs: 4,
        data_disks: 4,
        record: "128KiB",
        protection: "4 raidz1 (4+1)",
    },
    Layout {
        name: "raidz1-async1",
        variant: "async1-100pct-data",
        vdev: "raidz1 # # # # #",
        vdevs: 4,
        data_disks: 4,
        record: "128KiB",
        protection: "4 raidz1 (4+1)",
    },
];

/// Name of the result of Ganesha.
const GANESHA: &str = "ganesha";

/// Runs the benchmark.
pub(crate) fn main(args: &Args) -> Result<()> {
    if !args.in_namespace {
        // The build may need the network, which the namespace does not have.
        return mounted::into_own_namespace(&args.place.program_words()?);
    }
    mounted::prepare_network()?;
    let program = args.place.program()?;
    let dir = args.place.folder()?;
    let report = args.report.clone().unwrap_or_else(|| dir.join("s000"));
    let data = dir.join("s000-data");
    place::empty(&data)?;
    let base = Base::new(&data)?;
    let results = data.join("results");
    place::empty(&results)?;
    let packages = machine::packages(&ganesha::PACKAGES);
    let facts = machine::facts(base.path(), Some(&program), packages)?;
    let done = measure(args, &program, base.path(), &results);
    drop(base);
    let (own, peers) = done?;
    fs::create_dir_all(&report)?;
    let mut command = Command::new(&program);
    command.args(["bench", "report"]).args(&own);
    for peer in &peers {
        command.arg("--peer").arg(peer);
    }
    let written = command::output(command.arg("--out").arg(&report));
    // The results of the runs are large; the report has their figures.
    for result in own.iter().chain(&peers) {
        let name = result.file_name().unwrap_or_default().to_string_lossy().into_owned();
        fs::copy(result.join("cells.csv"), report.join(format!("{name}.csv")))?;
    }
    fs::remove_dir_all(&data)?;
    println!("{}", written?);
    let text = fs::read_to_string(report.join("report.md"))?;
    let conclusions = conclusions(&text).context("the report has no conclusions")?;
    args.place.print(&format!("{conclusions}\n\n{}", document::facts_table(&facts)), MARKERS)
}

/// The conclusions of a report, without their heading.
fn conclusions(report: &str) -> Option<&str> {
    let (_, rest) = report.split_once("\n## Conclusions\n")?;
    rest.split("\n## ").next().map(str::trim)
}

/// Measures each layout and Ganesha; returns the folders of the results of Weir and of the peers.
fn measure(
    args: &Args,
    program: &Path,
    base: &Path,
    results: &Path,
) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let chosen = |name: &str| args.only.as_ref().is_none_or(|only| only.is_match(name));
    let (mut own, mut peers) = (Vec::new(), Vec::new());
    for layout in LAYOUTS.iter().filter(|layout| chosen(layout.name)) {
        eprintln!("bench: {}: {}", layout.name, layout.protection);
        let dir = base.join(layout.name);
        let server = start(layout, args, program, &dir)?;
        let out = results.join(layout.name);
        let address = weir::address("/share{1..8}/bench", &keys());
        run(args, program, &address, layout.variant, layout.protection, &out)?;
        drop(server);
        fs::remove_dir_all(&dir)?;
        own.push(out);
    }
    ensure!(!own.is_empty(), "nothing to measure: --only matches no layout of Weir");
    if chosen(GANESHA) && !ganesha::is_installed() {
        eprintln!("bench: without Ganesha: it, rpcbind or ip is not installed");
    } else if chosen(GANESHA) {
        eprintln!("bench: Ganesha on ext4");
        let dir = base.join(GANESHA);
        place::empty(&dir)?;
        let export = |number: u32| {
            let name = format!("share{number}");
            Export { directory: dir.join(&name), name }
        };
        let exports: Vec<Export> = (1..=SHARES).map(export).collect();
        exports.iter().try_for_each(|export| fs::create_dir_all(&export.directory))?;
        let server = Ganesha::start(&dir, &exports)?;
        let out = results.join(GANESHA);
        let address = ganesha::address("/share{1..8}/bench", &keys());
        run(args, program, &address, LAYOUTS[0].variant, "ext4, no redundancy", &out)?;
        drop(server);
        fs::remove_dir_all(&dir)?;
        peers.push(out);
    }
    Ok((own, peers))
}

fn keys() -> String {
    format!("&source={SOURCES}")
}

/// Starts Weir with a pool of this layout, and with eight shared filesystems.
fn start(layout: &Layout, args: &Args, program: &Path, dir: &Path) -> Result<Weir> {
    let words: Vec<&str> = (0..layout.vdevs).map(|_| layout.vdev).collect();
    let disk_bytes = (args.data << 20) * SPACE_TIMES / (layout.vdevs * layout.data_disks);
    let disk_bytes = disk_bytes.max(DISK_BYTES_MIN);
    let memory_bytes = match args.memory {
        Some(mib) => mib << 20,
        None => machine::memory_bytes().context("the memory of this machine is unknown")? / 2,
    };
    let server = Weir::start(program, dir, memory_bytes, (&words.join(" "), disk_bytes))?;
    for number in 1..=SHARES {
        server.share(&format!("share{number}"), &["--record-size", layout.record], false)?;
    }
    Ok(server)
}

/// Runs the profile on a server. The row of the document is in the result.
fn run(
    args: &Args,
    program: &Path,
    address: &str,
    variant: &str,
    protection: &str,
    out: &Path,
) -> Result<()> {
    let Args { seconds, warmup, runs, data, .. } = args;
    let mut command = Command::new(program);
    command.args(["bench", "run", "--profile", PROFILE, "--variant", variant]);
    command.args(["--scale", "standard", "--size", &format!("{data}MiB")]);
    command.args(["--duration", &seconds.to_string(), "--warmup", &warmup.to_string()]);
    command.args(["--runs", &runs.to_string(), "--target-protection", protection]);
    command.args(["--fail-on", "invalid,corrupt,holes", "--target", address]);
    command.arg("--out").arg(out);
    eprintln!("{}", command::output(&mut command)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conclusions_end_at_the_next_heading() {
        let report = "# s000\n\n## Conclusions\n\n- one\n- two\n\n## Conditions\n\n- three\n";
        assert_eq!(conclusions(report), Some("- one\n- two"));
        assert_eq!(conclusions("# s000\n"), None);
    }

    #[test]
    fn layouts_have_as_many_disks_as_the_document() {
        let disks = |layout: &Layout| layout.vdev.matches('#').count() as u64 * layout.vdevs;
        let all: Vec<u64> = LAYOUTS.iter().map(disks).collect();
        assert_eq!(all, [24, 24, 20, 20]);
        for layout in &LAYOUTS {
            let redundant = if layout.name == "raidz2" { 2 } else { 1 };
            let in_vdev = layout.vdev.matches('#').count() as u64;
            assert_eq!(in_vdev, layout.data_disks + redundant, "{}", layout.name);
        }
    }
}
