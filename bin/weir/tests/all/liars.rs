//! Verdicts of `weir bench` on disks that lie or fail, measured over NBD and as files.
//!
//! Not here: unit tests of each rule with made-up figures (weir-bench).
//!
//! Invariant: no verdict in this file depends on the load of the machine. Tests that need an idle
//! machine are in `steady`.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::liar::{Act, Kind, Liar};
use crate::common::{Dirs, GIB, Ran, WEIR, code, eventually};
use serde_json::Value;

/// Exit code of a command whose answer is no, for example because a finding fails the run.
pub(crate) const NO: i32 = 1;
pub(crate) const MS: Duration = Duration::from_millis(1);

pub(crate) const PROFILE: &str = r#"
schema = 1
name = "liars"
title = "Liars"
dataset = { files = 1, file_size = "8MiB" }
content = { compress = 1.0, dedupe_pct = 0, unit = "4KiB", seed = 42 }
durability = { writes = "none" }

[phases]
fill = { block = "256KiB", in_flight = 4 }
measure = { warmup = "200ms", duration = "3s", runs = 3 }
verify = { sample_pct = 100 }

[[test]]
name = "row"
pattern = "random"
block = "4KiB"
read_pct = READS
LOAD
"#;

/// Profile for `validate` that searches for the highest rate in short steps. A step only decides
/// whether its rate meets the requirement; there are at most 30 steps.
pub(crate) const KNEE: &str = r#"
[require]
iops = 1000

[[test]]
name = "knee"
pattern = "random"
block = "4KiB"
read_pct = 100
mode = "open"
search = { slo = "require", tolerance_pct = 3 }
duration = "300ms"
"#;

pub(crate) struct Bench(Dirs);

impl Bench {
    /// Creates a profile that has one row, with this percentage of reads and this load.
    pub(crate) fn new(reads: u32, load: &str) -> Self {
        let dirs = Dirs::new();
        let text = PROFILE.replace("READS", &reads.to_string()).replace("LOAD", load);
        fs::write(dirs.file("liars.toml"), text).unwrap();
        Self(dirs)
    }

    pub(crate) fn serve(&self, liar: Liar) -> String {
        liar.serve(&self.0.short("liar"))
    }

    pub(crate) fn short(&self, name: &str) -> PathBuf {
        self.0.short(name)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// Returns a `weir bench` command. If `words` state no target cache for an NBD export, adds the
    /// target cache `none`, because a liar has no page cache.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(WEIR);
        command.arg("bench").args(words).current_dir(self.path("."));
        let is_served = words.iter().any(|word| word.starts_with("nbd+unix:"));
        if is_served && !words.contains(&"--target-cache") {
            command.args(["--target-cache", "none"]);
        }
        command
    }

    fn weir(&self, words: &[&str]) -> Ran {
        Ran::of(&words.join(" "), &self.command(words).output().unwrap())
    }

    /// Measures a target. Returns the exit code, and the verdict and the details of the row.
    pub(crate) fn verdict(&self, target: &str, more: &[&str]) -> (Option<i32>, String, String) {
        let out = format!("out{}", fs::read_dir(self.path(".")).unwrap().count());
        let words = ["run", "-p", "./liars.toml", "-t", target, "-o", &out, "--json"];
        let output = self.command(&[&words[..], more].concat()).output().unwrap();
        let told: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", crate::common::text(&output)));
        let row = &told["cells"][0];
        let remarks = row["remarks"].as_array().unwrap().iter();
        let details: Vec<&str> = remarks.map(|r| r["detail"].as_str().unwrap()).collect();
        let verdict = row["verdict"].as_str().unwrap().to_owned();
        (output.status.code(), verdict, details.join("; "))
    }
}

/// Returns an open-loop load with this rate in operations per second.
pub(crate) fn open(rate: u32) -> String {
    format!("mode = \"open\"\nrate = {rate}\nworkers = 2")
}

#[test]
fn requirement_above_the_speed_of_the_disk_fails() {
    let bench = Bench::new(100, &format!("qd = [8]\n{KNEE}"));
    let target = bench.serve(Liar::honest(2 * MS, 190.0));
    let words = ["-t", &target, "--need", "216iops", "-o", "out", "--runs", "1"];
    let ran = bench.weir(&[&["validate", "-p", "./liars.toml"][..], &words].concat());
    assert_eq!(ran.code, Some(NO), "{}", ran.out);
    assert!(ran.out.contains("\nFAIL") && !ran.out.contains("PASS"), "{}", ran.out);
}

/// Every 50th write is corrupted, and a later write of the same block repairs it. At the end about
/// one block in 50 is corrupt: 40 of 2,048.
#[test]
fn bit_flips_are_corrupt_and_exit_code_1() {
    let bench = Bench::new(0, "qd = [4]");
    let target = bench.serve(Liar::lying(MS, |op| {
        let is_one = op.kind == Kind::Write && op.number % 50 == 1;
        if is_one { Act::Flip } else { Act::Right }
    }));
    let (status, verdict, details) = bench.verdict(&target, &[]);
    assert_eq!((verdict.as_str(), status), ("corrupt", Some(NO)), "{details}");
    let (status, verdict, _) = bench.verdict(&target, &["--fail-on", "none"]);
    assert_eq!((verdict.as_str(), status), ("corrupt", Some(0)));
}

#[test]
fn single_run_is_under_sampled() {
    let bench = Bench::new(100, "qd = [8]");
    let target = bench.serve(Liar::honest(5 * MS, 1e6));
    let (_, verdict, details) = bench.verdict(&target, &["--runs", "1"]);
    assert_ne!(verdict, "valid");
    assert!(details.contains("one run shows little"), "{details}");
}

#[test]
fn file_in_memory_is_cache_resident() {
    let bench = Bench::new(100, "qd = [4]");
    let memory = tempfile::TempDir::new_in("/dev/shm").unwrap();
    let file = memory.path().join("disk");
    let words = ["run", "-p", "./liars.toml", "--runs", "1", "-t"];
    bench.weir(&[&words[..], &[file.to_str().unwrap(), "-o", "memory"]].concat()).ok();
    let result = fs::read_to_string(bench.path("memory/result.json")).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    let remarks = result["cells_judged"][0]["remarks"].as_array().unwrap();
    let cached = remarks.iter().find(|remark| remark["finding"] == "cache-resident").unwrap();
    assert!(cached["detail"].as_str().unwrap().contains("tmpfs"), "{cached}");
    let target = bench.serve(Liar::honest(4 * MS, 1e6));
    bench.weir(&[&words[..], &[&target, "-o", "disk"]].concat()).ok();
    let path = bench.path("disk/result.json");
    let mut result: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(result["cache_standing"], "cache-stated");
    // Change the result, as if the target were a server on another machine with an unknown cache.
    for key in ["cache_bytes", "cache_source"] {
        result["target"][key] = Value::Null;
    }
    fs::write(&path, result.to_string()).unwrap();
    let compared = bench.weir(&["compare", "disk", "memory"]);
    assert_eq!(compared.code, Some(NO), "{}", compared.out);
    let why = "the cache of the old target is unknown";
    assert!(compared.out.contains(why) && !compared.out.contains("faster"), "{}", compared.out);
    let told = bench.weir(&["compare", "disk", "memory", "--old-cache", "none"]);
    assert!(!told.out.contains("is unknown, and the cache may hold"), "{}", told.out);
    bench
        .weir(&["compare", "disk", "memory", "--old-cache", "some"])
        .fails(2, &["--old-cache <SIZE|none>"]);
}

#[test]
fn local_server_is_cache_resident_unless_stated() {
    let bench = Bench::new(100, "qd = [4]");
    let target = bench.serve(Liar::honest(4 * MS, 1e6));
    let mut command = Command::new(WEIR);
    command.args(["bench", "run", "-p", "./liars.toml", "--runs", "1", "-t", &target, "--json"]);
    let output = command.args(["-o", "out"]).current_dir(bench.path(".")).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["cache"], "cache-resident");
    let remarks = told["cells"][0]["remarks"].as_array().unwrap();
    let cached = remarks.iter().find(|remark| remark["finding"] == "cache-resident").unwrap();
    let detail = cached["detail"].as_str().unwrap();
    assert!(detail.contains("the server runs on this machine"), "{detail}");
    let (_, _, details) = bench.verdict(&target, &["--runs", "1"]);
    assert!(!details.contains("runs on this machine"), "{details}");
}

/// `weir bench` process in the background; dropping this value kills it.
struct Going(Child);

impl Drop for Going {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

// Regression: two runs on the same file overwrote each other's blocks, so both reported corrupt
// storage.
#[test]
fn target_in_use_is_refused() {
    let bench = Bench::new(100, "qd = [4]");
    let words = ["run", "-p", "./liars.toml", "-t", "file.dat", "-o"];
    let mut first = bench.command(&[&words[..], &["one"]].concat());
    let first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _first = Going(first);
    eventually("the first run began", Duration::from_mins(1), || {
        bench.path("one/result.json").exists()
    });
    bench
        .weir(&[&words[..], &["two"]].concat())
        .fails(code::BUSY, &["file.dat is in use by another program", "wait for the other run"]);

    bench.0.disk("member", GIB);
    let server = bench.0.start();
    server.weir("pool create tank member").ok();
    let member = bench.path("member").display().to_string();
    let words = ["run", "-p", "./liars.toml", "-t", &member, "--destroy", &member, "-o", "three"];
    bench.weir(&words).fails(code::BUSY, &["is in use by another program"]);
}
