//! `weir bench` as a person uses it: runs, refusals, interruptions, requirements, comparisons.
//!
//! Not here: whether figures are right (the crate's own tests and `weir bench selftest`).
//!
//! Invariants: nothing is asserted of how fast anything is; runs are short, on files of a few MiB.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in shared functions too")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{Dirs, MIB, Ran, WEIR, code, eventually, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Two cells of two short runs each.
const TINY: &str = r#"
schema = 1
name = "tiny"
title = "Tiny"
dataset = { files = 1, file_size = "8MiB" }
content = { compress = 1.0, dedupe_pct = 0, unit = "4KiB", seed = 42 }
durability = { writes = "none" }

[phases]
fill = { block = "64KiB", in_flight = 4 }
measure = { warmup = "50ms", duration = "DURATION", runs = 2 }
verify = { sample_pct = 100 }

[[test]]
name = "reads"
pattern = "random"
block = "4KiB"
read_pct = 100
qd = [4]

[[test]]
name = "writes"
pattern = "random"
block = "4KiB"
read_pct = 0
qd = [4]
"#;

/// Failed: the answer is no.
const NO: i32 = 1;

struct Bench {
    dirs: Dirs,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { dirs: Dirs::new() };
        for (name, duration) in [("tiny", "300ms"), ("slow", "1s")] {
            let profile = TINY.replace("DURATION", duration);
            fs::write(bench.path(&format!("{name}.toml")), profile).unwrap();
        }
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dirs.file(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(WEIR);
        command.arg("bench").args(words).current_dir(self.path("."));
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn weir(&self, words: &[&str]) -> Ran {
        Ran::of(&words.join(" "), &self.output(words))
    }

    /// A run of a profile of ours on a file, kept in a directory.
    fn start(&self, profile: &str, target: &str, out: &str) -> Child {
        let words = ["run", "--profile", profile, "--target", target, "--out", out];
        self.command(&words).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    }

    fn result(&self, out: &str) -> Value {
        let text = fs::read_to_string(self.path(out).join("result.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
}

fn runs(result: &Value) -> Vec<usize> {
    let cells = result["cells"].as_array().unwrap();
    cells.iter().map(|cell| cell["runs"].as_array().unwrap().len()).collect()
}

fn has_result(out: &Path, enough: impl Fn(&Value) -> bool) -> bool {
    let text = fs::read_to_string(out.join("result.json")).unwrap_or_default();
    serde_json::from_str(&text).is_ok_and(|result: Value| enough(&result))
}

#[test]
fn a_run_leaves_a_result_and_a_report_with_verdicts() {
    let bench = Bench::new();
    let words = ["run", "-p", "./tiny.toml", "-t", "file.dat", "-o", "out", "--json"];
    let told = bench.weir(&words).ok().json();
    assert_eq!(told["complete"], true);
    let verdicts: Vec<&str> = told["cells"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cell| cell["verdict"].as_str().unwrap())
        .collect();
    // Half a second of two runs is too little, and the run says so.
    assert_eq!(verdicts.len(), 2);
    assert!(verdicts.iter().all(|verdict| *verdict != "valid" && *verdict != "corrupt"));
    let result = bench.result("out");
    assert_eq!(runs(&result), [2, 2]);
    assert_eq!(result["phases"][0]["name"], "fill");
    let verified = &result["cells"][1]["verified"];
    assert_eq!((verified["blocks"].as_u64(), verified["bad"].as_u64()), (Some(2048), Some(0)));
    let html = fs::read_to_string(bench.path("out/report.html")).unwrap();
    assert!(html.contains("<svg") && !html.contains("<script") && !html.contains("http://"));
    let csv = fs::read_to_string(bench.path("out/cells.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 4, "a head and a line per run:\n{csv}");
    assert!(bench.path("out/report.md").exists());
    // Made again from the result alone.
    fs::remove_file(bench.path("out/report.html")).unwrap();
    bench.weir(&["report", "out"]).ok();
    assert_eq!(fs::read_to_string(bench.path("out/report.html")).unwrap(), html);
    bench.weir(&words).fails(code::EXISTS, &["holds the result of another run", "--resume"]);
}

#[test]
fn a_target_that_holds_data_is_not_touched_unless_it_is_named() {
    let bench = Bench::new();
    let mut mine = b"my thesis".repeat(1000);
    mine.resize(10_000, b'.');
    fs::write(bench.path("mine.dat"), &mine).unwrap();
    let run = ["run", "-p", "./tiny.toml", "-t", "mine.dat", "-o", "out"];
    bench.weir(&run).fails(code::EXISTS, &["mine.dat holds data", "--destroy mine.dat"]);
    let other = [&run[..], &["--destroy", "other.dat"]].concat();
    bench.weir(&other).fails(code::INVALID, &["--destroy names \"other.dat\""]);
    assert_eq!(fs::read(bench.path("mine.dat")).unwrap(), mine, "neither changed nor longer");
    let named = [&run[..], &["--destroy", "mine.dat"]].concat();
    bench.weir(&named).ok();
    // What an earlier run left may be written over.
    let again = ["run", "-p", "./tiny.toml", "-t", "mine.dat", "-o", "again"];
    bench.weir(&again).ok();
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let bench = Bench::new();
    let run =
        |target: &str| bench.weir(&["run", "-p", "./tiny.toml", "-t", target, "-o", "refused"]);
    run("s3://bucket").fails(code::INVALID, &["this kind of address is unknown"]);
    run("/dev/there-is-none").fails(code::NOT_FOUND, &["/dev/there-is-none"]);
    run("nbd://127.0.0.1:1/x").fails(code::UNAVAILABLE, &["127.0.0.1"]);
    run("null:4MiB").fails(code::INVALID, &["null:", "the dataset"]);
    assert!(!Path::new("/dev/there-is-none").exists());
    let tiny = TINY.replace("DURATION", "300ms");
    let wrong = tiny.replace("read_pct = 100", "read_percent = 100");
    fs::write(bench.path("wrong.toml"), wrong).unwrap();
    bench
        .weir(&["run", "-p", "./wrong.toml", "-t", "null:", "-o", "refused"])
        .fails(code::INVALID, &["wrong.toml", "read_percent", "read_pct"]);
    let odd = tiny.replace("block = \"4KiB\"", "block = \"1000\"");
    fs::write(bench.path("odd.toml"), odd).unwrap();
    bench
        .weir(&["run", "-p", "./odd.toml", "-t", "odd.dat", "-o", "refused"])
        .fails(code::INVALID, &["1000"]);
    bench
        .weir(&["validate", "-p", "quick", "-t", "null:", "--need", "fast"])
        .fails(2, &["bad requirement", "216iops"]);
}

#[test]
fn a_killed_run_goes_on_at_the_next_cell() {
    let bench = Bench::new();
    let mut child = bench.start("./slow.toml", "file.dat", "out");
    let out = bench.path("out");
    eventually("one cell is measured", Duration::from_mins(1), || {
        has_result(&out, |result| !runs(result).is_empty())
    });
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    let before = bench.result("out");
    assert_eq!(before["complete"], false);
    // The rest need not take as long as it would have.
    let kept = before["cells"][0]["runs"][0]["started_unix_ms"].clone();
    bench.weir(&["run", "--resume", "out"]).ok();
    let after = bench.result("out");
    assert_eq!((after["complete"].clone(), runs(&after)), (Value::Bool(true), vec![2, 2]));
    let there = after["cells"].as_array().unwrap().iter().any(|cell| {
        cell["runs"].as_array().unwrap().iter().any(|run| run["started_unix_ms"] == kept)
    });
    assert!(there, "what was measured before is kept");
    bench.weir(&["run", "--resume", "out"]).fails(code::EXISTS, &["complete"]);
}

#[test]
fn ctrl_c_keeps_and_reports_what_was_measured() {
    let bench = Bench::new();
    let child = bench.start("./slow.toml", "file.dat", "out");
    let out = bench.path("out");
    eventually("one cell is measured", Duration::from_mins(1), || {
        has_result(&out, |result| !runs(result).is_empty())
    });
    signal(&child, Signal::INT);
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended));
    let result = bench.result("out");
    assert_eq!(result["complete"], false);
    assert!(runs(&result).iter().sum::<usize>() < 4);
    let report = fs::read_to_string(bench.path("out/report.md")).unwrap();
    assert!(report.contains("Tiny"), "{report}");
}

#[test]
fn a_requirement_ends_in_pass_or_fail() {
    let bench = Bench::new();
    let validate = |need: &str, out: &str| {
        let target = ["-t", "null:", "--need", need, "--runs", "3", "--json"];
        let words = [&["validate", "-p", "./tiny.toml", "-o", out][..], &target].concat();
        let output = bench.output(&words);
        let told: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", text(&output)));
        (output.status.code(), told["assessment"]["outcome"].as_str().unwrap().to_owned())
    };
    // No storage answers within a nanosecond, ours in memory included.
    let (status, outcome) = validate("500iops,p50=1ns", "fails");
    assert_eq!((status, outcome.as_str()), (Some(NO), "fail"));
    let report = fs::read_to_string(bench.path("fails/report.md")).unwrap();
    assert!(report.contains("FAIL"), "{report}");
}

#[test]
fn results_of_other_content_are_not_ranked_and_a_rerun_answers() {
    let bench = Bench::new();
    let other = TINY.replace("DURATION", "300ms").replace("compress = 1.0", "compress = 4.0");
    fs::write(bench.path("other.toml"), other).unwrap();
    for (profile, out) in [("./tiny.toml", "one"), ("./other.toml", "two")] {
        bench.weir(&["run", "-p", profile, "-t", "file.dat", "-o", out]).ok();
    }
    let compared = bench.output(&["compare", "one", "two", "--json"]);
    assert!(compared.status.success(), "{}", text(&compared));
    let compared: Value = serde_json::from_slice(&compared.stdout).unwrap();
    let refused = compared["refused"].as_array().unwrap();
    assert!(refused.iter().any(|why| why.as_str().unwrap().contains("content")), "{compared}");
    let output = bench.output(&["rerun", "one", "-o", "three", "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Two short runs show nothing; that is said, and is not yes.
    assert_eq!(told["answer"], "cannot tell", "{told}");
    assert_eq!(output.status.code(), Some(NO));
    assert_eq!(bench.result("one")["spec_hash"], bench.result("three")["spec_hash"]);
    fs::write(bench.path("no.json"), "{}").unwrap();
    bench.weir(&["report", "no.json"]).fails(code::INVALID, &["no.json is no result"]);
}

#[test]
fn traps_are_named_and_profiles_travel_to_fio_and_back() {
    let bench = Bench::new();
    let job = "[global]\nioengine=libaio\n[short]\nrw=randread\nbs=4k\nsize=64m\nruntime=5\n\
               time_based=1\nfilename=x.dat\n";
    fs::write(bench.path("short.fio"), job).unwrap();
    let output = bench.output(&["lint", "-p", "short.fio"]);
    assert_eq!(output.status.code(), Some(NO), "{}", text(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("why:"), "{}", text(&output));
    let exported = bench.output(&["export", "-p", "./tiny.toml", "-t", "file.dat"]);
    assert!(exported.status.success(), "{}", text(&exported));
    fs::write(bench.path("tiny.fio"), &exported.stdout).unwrap();
    common::tool("fio", &["--parse-only", &bench.name("tiny.fio")]);
    let listed = bench.weir(&["profiles", "--json"]).ok().json();
    assert_eq!(listed["profiles"].as_array().unwrap().len(), 9);
}

#[test]
fn weir_is_measured_over_nbd() {
    let bench = Bench::new();
    let server = bench.dirs.start();
    let disk = bench.dirs.disk("disk", 256 * MIB);
    server.weir(&format!("pool create tank {}", disk.display())).ok();
    server.volume("tank/v", "64M");
    let words = ["run", "-p", "./tiny.toml", "-t", &server.uri("tank/v"), "-o", "out", "--json"];
    let told = bench.weir(&words).ok().json();
    assert_eq!(
        (told["complete"].clone(), told["target"]["kind"].clone()),
        (true.into(), "nbd".into())
    );
    let verified = &bench.result("out")["cells"][1]["verified"];
    assert_eq!((verified["blocks"].as_u64(), verified["bad"].as_u64()), (Some(2048), Some(0)));
    server.stop_clean();
}
