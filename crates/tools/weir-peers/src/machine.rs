//! Facts about the machine that a reader needs to understand the figures.
//!
//! The facts contain no names of machines or people.
//!
//! Invariant: a fact that is not available is shown as `unknown`, never left out.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use weir_command::command;

/// A fact with its name.
type Fact = (String, String);

/// Facts about the machine, each with its name, in the order of the table rows. `peers`: versions
/// of the other programs.
pub(crate) fn facts(data: &Path, weir: Option<&Path>, peers: Vec<Fact>) -> Result<Vec<Fact>> {
    let mut facts = vec![
        ("date".to_owned(), first_line(Command::new("date").args(["-u", "+%F"]))),
        ("CPU".to_owned(), cpu()),
        ("memory".to_owned(), memory()),
        ("kernel".to_owned(), first_line(Command::new("uname").arg("-rm"))),
        ("disk".to_owned(), disk(data)?),
        ("file system".to_owned(), file_system(data)),
    ];
    facts.extend(peers);
    if let Some(weir) = weir {
        facts.push(("weir".to_owned(), first_line(Command::new(weir).arg("--version"))));
        let commit = command::command("git").args(["describe", "--always", "--dirty"]).output();
        let commit = commit.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
        facts.push(("commit".to_owned(), known(commit.ok())));
    }
    Ok(facts)
}

/// Versions of the client and the other servers in benchmarks of block devices.
pub(crate) fn block_peers() -> Vec<Fact> {
    let version = |tool: &str| first_line(Command::new(tool).arg("--version"));
    ["fio", "qemu-nbd", "nbdkit"].map(|tool| (tool.to_owned(), version(tool))).into()
}

/// Versions of these Debian packages.
pub(crate) fn packages(names: &[&str]) -> Vec<Fact> {
    let version = |name: &str| {
        let mut query = Command::new("dpkg-query");
        first_line(query.args(["--show", "--showformat=${Version}", name]))
    };
    names.iter().map(|name| ((*name).to_owned(), version(name))).collect()
}

fn known(fact: Option<String>) -> String {
    fact.filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

fn first_line(command: &mut Command) -> String {
    let text = command::output(command).unwrap_or_default();
    known(text.lines().next().map(str::to_owned))
}

fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{}, {cores} cores", known(model.map(|(_, name)| name.to_owned())))
}

fn memory() -> String {
    known(memory_bytes().map(|bytes| format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30))))
}

/// Memory of the machine.
pub(crate) fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(total.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

/// Describes the block device that stores the folder: its kind and its write cache.
fn disk(data: &Path) -> Result<String> {
    let device = fs::metadata(data)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let Ok(folder) = fs::canonicalize(link) else {
        return Ok("unknown".to_owned());
    };
    // A partition has no queue directory; the directory of the whole disk is one level up.
    let whole =
        if folder.join("queue").is_dir() { Some(folder.as_path()) } else { folder.parent() };
    let Some(whole) = whole else {
        return Ok("unknown".to_owned());
    };
    let read = |name: &str| fs::read_to_string(whole.join(name)).map(|text| text.trim().to_owned());
    let name = known(whole.file_name().map(|name| name.to_string_lossy().into_owned()));
    let model = read("device/model").unwrap_or_else(|_| "no model name".to_owned());
    let turns = match read("queue/rotational").as_deref() {
        Ok("0") => "not rotational",
        Ok(_) => "rotational",
        Err(_) => "rotation unknown",
    };
    let cache = known(read("queue/write_cache").ok());
    Ok(format!("{name} ({model}, {turns}), write cache: {cache}"))
}

fn file_system(data: &Path) -> String {
    let mut stat = Command::new("findmnt");
    stat.args(["--noheadings", "--output", "FSTYPE,OPTIONS", "--target"]).arg(data);
    first_line(&mut stat).split_whitespace().collect::<Vec<_>>().join(", ")
}
