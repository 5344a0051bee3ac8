//! `weir bench` as a user sees it: runs, refusals, interruptions, requirements, comparisons.
//!
//! Not here: whether the figures are correct (the tests of weir-bench and `weir bench selftest`).
//!
//! Invariants: no test asserts a speed; runs are short, on files of a few MiB.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{Dirs, MIB, Ran, WEIR, code, eventually, text};

/// Profile with two cells of two short runs each.
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

/// Exit code of a command whose answer is no. Example: a requirement was missed.
const NO: i32 = 1;
/// Exit code for a full disk, as in docs/errors.md.
const NO_SPACE: i32 = 7;

/// Profile with many short runs, like bonnie++.
const FILE_TEST: &str = r#"
[[test]]
name = "bonnie"
engine = "bonnie"
size = "512KiB"
files = 64
runs = 5
"#;

pub(crate) struct Bench {
    dirs: Dirs,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let bench = Self { dirs: Dirs::new() };
        for (name, duration, more) in
            [("tiny", "300ms", ""), ("slow", "1s", ""), ("files", "300ms", FILE_TEST)]
        {
            let profile = TINY.replace("DURATION", duration) + more;
            fs::write(bench.path(&format!("{name}.toml")), profile).unwrap();
        }
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dirs.file(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(WEIR);
        command.arg("bench").args(words).current_dir(self.path("."));
        command
    }

    pub(crate) fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    pub(crate) fn weir(&self, words: &[&str]) -> Ran {
        Ran::of(&words.join(" "), &self.output(words))
    }

    /// Starts a run with a test profile on a file; the result is saved in the directory `out`.
    fn start(&self, profile: &str, target: &str, out: &str) -> Child {
        let words = ["run", "--profile", profile, "--target", target, "--out", out];
        self.command(&words).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    }

    pub(crate) fn result(&self, out: &str) -> Value {
        let text = fs::read_to_string(self.path(out).join("result.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

pub(crate) fn signal(child: &Child, signal: Signal) {
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
fn run_writes_a_result_and_a_report_with_verdicts() {
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
    // Two runs of half a second each are too short for the verdict `valid`.
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
    // `weir bench report` needs only the result file to write the reports again.
    fs::remove_file(bench.path("out/report.html")).unwrap();
    bench.weir(&["report", "out"]).ok();
    assert_eq!(fs::read_to_string(bench.path("out/report.html")).unwrap(), html);
    bench.weir(&words).fails(code::EXISTS, &["holds the result of another run", "--resume"]);
}

#[test]
fn target_with_data_is_overwritten_only_with_destroy() {
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
    // A run may overwrite the data of an earlier run.
    let again = ["run", "-p", "./tiny.toml", "-t", "mine.dat", "-o", "again"];
    bench.weir(&again).ok();
}

#[test]
fn invalid_targets_and_profiles_are_refused_by_name() {
    let bench = Bench::new();
    let run =
        |target: &str| bench.weir(&["run", "-p", "./tiny.toml", "-t", target, "-o", "refused"]);
    run("s3://bucket").fails(code::INVALID, &["unknown kind of address"]);
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
fn killed_run_resumes_at_the_next_cell() {
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
    // The result of the resumed run must contain the run from before the interruption: its start
    // time is unchanged.
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
fn killed_run_keeps_completed_file_tests() {
    let bench = Bench::new();
    let mut child = bench.start("./files.toml", "file.dat", "out");
    let out = bench.path("out");
    let done = |result: &Value| result["bonnie"]["runs"].as_array().map_or(0, Vec::len);
    eventually("one file test is done", Duration::from_mins(1), || {
        has_result(&out, |result| done(result) > 0)
    });
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    let before = bench.result("out");
    assert!((1..5).contains(&done(&before)), "{}", done(&before));
    bench.weir(&["run", "--resume", "out"]).ok();
    let after = bench.result("out");
    assert_eq!((after["complete"].clone(), done(&after)), (Value::Bool(true), 5));
    let kept = before["bonnie"]["runs"].as_array().unwrap();
    assert_eq!(kept[..], after["bonnie"]["runs"].as_array().unwrap()[..kept.len()]);
    // The killed run may leave the directory that it used in the target; all other runs removed
    // theirs.
    let left = fs::read_dir(bench.path(".")).unwrap().flatten();
    let left = left.filter(|entry| entry.file_name().to_string_lossy().contains("bonnie"));
    assert!(left.count() <= 1);
}

/// A small file system in RAM, which is unmounted when its `SmallDisk` is dropped.
pub(crate) struct SmallDisk(pub(crate) PathBuf);

impl SmallDisk {
    pub(crate) fn mounted(path: PathBuf, size: &str) -> Self {
        fs::create_dir(&path).unwrap();
        let options = format!("size={size}");
        let at = path.display().to_string();
        let mounted = crate::common::run("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", &at]);
        let told = text(&mounted);
        assert!(mounted.status.success(), "this test mounts a small tmpfs, as root: {told}");
        Self(path)
    }

    /// Uses up all free space of the file system.
    fn fill(&self) {
        let mut ballast = fs::File::create(self.0.join("ballast")).unwrap();
        while ballast.write_all(&[7; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        crate::common::run("umount", &[&self.0.display().to_string()]);
    }
}

#[test]
fn full_report_disk_loses_no_result() {
    let bench = Bench::new();
    let disk = SmallDisk::mounted(bench.path("small"), "4M");
    let elsewhere = bench.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let words = ["run", "-p", "./slow.toml", "-t", "file.dat", "-o", "small/out"];
    let mut command = bench.command(&words);
    command.env("TMPDIR", &elsewhere).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let out = bench.path("small/out");
    eventually("measuring has begun", Duration::from_mins(1), || has_result(&out, |_| true));
    disk.fill();
    let output = child.wait_with_output().unwrap();
    let place = fs::read_dir(&elsewhere).unwrap().next().expect("it is kept").unwrap().path();
    let kept = place.join("result.json").display().to_string();
    let ran = Ran::of("run on a full disk", &output);
    ran.fails(NO_SPACE, &["small/out/result.json", "the run continues", &kept]);
    let result = bench.result(&place.display().to_string());
    assert_eq!((result["complete"].clone(), runs(&result)), (Value::Bool(true), vec![2, 2]));
    assert!(!out.join(".result.json.new").exists(), "half a result would take room");
    // The result that was saved before the file system filled up is intact: a report can be written
    // from it.
    assert_eq!(bench.result("small/out")["complete"], false);
    bench.weir(&["report", &kept]).ok();
    assert!(place.join("report.html").exists());
}

#[test]
fn ctrl_c_saves_and_reports_partial_results() {
    let bench = Bench::new();
    let child = bench.start("./slow.toml", "file.dat", "out");
    let out = bench.path("out");
    eventually("one cell is measured", Duration::from_mins(1), || {
        has_result(&out, |result| !runs(result).is_empty())
    });
    signal(&child, Signal::INT);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(NO), "not complete: {}", text(&ended));
    let result = bench.result("out");
    assert_eq!(result["complete"], false);
    assert!(runs(&result).iter().sum::<usize>() < 4);
    let report = fs::read_to_string(bench.path("out/report.md")).unwrap();
    assert!(report.contains("Tiny"), "{report}");
}

#[test]
fn results_with_different_content_are_not_ranked() {
    let bench = Bench::new();
    let other = TINY.replace("DURATION", "300ms").replace("compress = 1.0", "compress = 4.0");
    fs::write(bench.path("other.toml"), other).unwrap();
    for (profile, out) in [("./tiny.toml", "one"), ("./other.toml", "two")] {
        bench.weir(&["run", "-p", profile, "-t", "file.dat", "-o", out]).ok();
    }
    let compared = bench.output(&["compare", "one", "two", "--json"]);
    assert_eq!(compared.status.code(), Some(NO), "nothing is ranked: {}", text(&compared));
    let compared: Value = serde_json::from_slice(&compared.stdout).unwrap();
    let refused = compared["refused"].as_array().unwrap();
    assert!(refused.iter().any(|why| why.as_str().unwrap().contains("content")), "{compared}");
    let output = bench.output(&["rerun", "one", "-o", "three", "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Two short runs are not enough to show a difference. The output says so, and the exit code
    // means no.
    assert_eq!(told["answer"], "cannot tell", "{told}");
    assert_eq!(output.status.code(), Some(NO));
    assert_eq!(bench.result("one")["spec_hash"], bench.result("three")["spec_hash"]);
    fs::write(bench.path("no.json"), "{}").unwrap();
    bench.weir(&["report", "no.json"]).fails(code::INVALID, &["no.json is not a result"]);
}

#[test]
fn lint_names_traps_and_export_writes_valid_fio_jobs() {
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
    crate::common::tool("fio", &["--parse-only", &bench.name("tiny.fio")]);
    let listed = bench.weir(&["profiles", "--json"]).ok().json();
    assert_eq!(listed["profiles"].as_array().unwrap().len(), 11);
}

/// Job file that a user may have: it would write 200 GiB for an hour.
const LONG_JOB: &str = "[global]
ioengine=libaio
direct=1 # around the page cache
group_reporting
size=200g
runtime=1h
time_based
[oltp] ; behind a section
rw=randrw
rate_iops=100,200
iodepth=32
norandommap
[scan]
stonewall
rw=read
bsrange=64k-1m
iodepth=8
";

#[test]
fn profile_file_runs_unscaled_by_default() {
    let bench = Bench::new();
    fs::write(bench.path("long.fio"), LONG_JOB).unwrap();
    let long = TINY.replace("DURATION", "1h").replace("8MiB", "200GiB");
    fs::write(bench.path("long.toml"), long).unwrap();
    for profile in ["long.fio", "./long.toml"] {
        let exported = bench.output(&["export", "-p", profile, "-t", "x.dat"]);
        let job = String::from_utf8_lossy(&exported.stdout).into_owned();
        let has = |line: &str| job.lines().any(|it| it == line);
        assert!(has("size=214748364800") && has("runtime=3600000ms"), "{}", text(&exported));
        fs::write(bench.path("export.fio"), &exported.stdout).unwrap();
        crate::common::tool("fio", &["--parse-only", &bench.name("export.fio")]);
        let asked = bench.output(&["export", "-p", profile, "--scale", "standard"]);
        let job = String::from_utf8_lossy(&asked.stdout).into_owned();
        assert!(job.contains("\nsize=8589934592\n"), "{}", text(&asked));
        assert!(job.contains("\nruntime=60000ms\n"), "{}", text(&asked));
    }
    let exported = bench.output(&["export", "-p", "long.fio", "-t", "x.dat"]);
    let job = String::from_utf8_lossy(&exported.stdout).into_owned();
    let by_path = "/dev/disk/by-path/pci-0000:00:1f.2-ata-1";
    let exported = bench.output(&["export", "-p", "long.fio", "-t", by_path]);
    let named = String::from_utf8_lossy(&exported.stdout).into_owned();
    assert!(named.contains("filename=/dev/disk/by-path/pci-0000\\:00\\:1f.2-ata-1\n"), "{named}");
    bench
        .weir(&["export", "-p", "long.fio", "-t", "a#b"])
        .fails(code::INVALID, &["fio cannot read the path"]);
    for line in ["rw=randrw", "rate_iops=100,200", "rw=read", "bsrange=65536-1048576"] {
        assert!(job.lines().any(|it| it == line), "{line}:\n{job}");
    }
}

#[test]
fn lint_names_all_skipped_or_changed_words_of_a_job_file() {
    let bench = Bench::new();
    fs::write(bench.path("long.fio"), LONG_JOB.replacen("direct=1", "nice=5", 1)).unwrap();
    let output = bench.output(&["lint", "-p", "long.fio", "--json"]);
    assert_eq!(output.status.code(), Some(NO), "{}", text(&output));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let skipped = told["skipped"].as_array().unwrap();
    assert_eq!(skipped.len(), 1, "{told}");
    assert_eq!((&skipped[0]["word"], &skipped[0]["line"]), (&"group_reporting".into(), &4.into()));
    let traps = told["traps"].as_array().unwrap();
    let named = |words: &str| traps.iter().any(|it| it["what"].as_str().unwrap().contains(words));
    assert!(named("long.fio:3: `nice`") && named("no `direct=1`") && named("a rate"), "{told}");
    let shown = bench.output(&["lint", "-p", "long.fio"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("long.fio:4: `group_reporting` is skipped: "), "{shown}");
}

#[test]
fn invalid_imported_files_are_refused_with_the_line() {
    let bench = Bench::new();
    let cases: [(&str, &[u8], &str); 6] = [
        ("odd.fio", b"[job]\nrw=randread\nsize=1g\nruntime=60\nblok=4k\n", "odd.fio:5: "),
        ("share.fio", b"[job]\nrw=read\nsize=50%\nfilename=x\nruntime=60\n", "share.fio:3: "),
        ("bytes.fio", b"[job]\n\xff\xfe\n", "bytes.fio:2: "),
        ("odd.icf", b"'Run Time\n\tlong\n", "odd.icf:2: "),
        ("empty.icf", b"", "empty.icf:1: "),
        ("odd.toml", b"schema = 1\nname = \n", "odd.toml:2: "),
    ];
    for (name, bytes, place) in cases {
        fs::write(bench.path(name), bytes).unwrap();
        let profile = format!("./{name}");
        for verb in ["lint", "export"] {
            bench.weir(&[verb, "-p", &profile]).fails(code::INVALID, &[place]);
        }
        bench.weir(&["run", "-p", &profile, "-t", "new.dat"]).fails(code::INVALID, &[place]);
        assert!(!bench.path("new.dat").exists(), "{name}: nothing is made");
    }
}

/// The rows of this job file use features that only imported job files have: a sequential scan, a
/// range of sizes, and a rate for each direction.
#[test]
fn job_file_is_measured_and_its_writes_are_verified() {
    let bench = Bench::new();
    let job = "[global]\nioengine=libaio\ndirect=1\nsize=50%\nfilename=x\nruntime=1\ntime_based\n\
               iodepth=8\nverify=crc32c\nnorandommap\n[mixed]\nrw=randrw\nbsrange=4k-64k\n\
               rate_iops=200,400\nrate_process=poisson\n[part]\nstonewall\nrw=randwrite\n\
               percentage_random=30\nnumjobs=2\n[all]\nstonewall\nrw=rw\nbs=16k,4k\nnumjobs=2\n";
    fs::write(bench.path("job.fio"), job).unwrap();
    fs::write(bench.path("file.dat"), vec![0; 32 << 20]).unwrap();
    let words =
        ["run", "-p", "job.fio", "-t", "file.dat", "--destroy", "file.dat", "-o", "out", "--json"];
    let ran = bench.output(&words);
    assert!(ran.status.success(), "{}", text(&ran));
    let told = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(told.contains("job.fio:11: job \"mixed\": a rate"), "{told}");
    let result = bench.result("out");
    assert_eq!(result["spec"]["scale"], "seed");
    assert_eq!(result["spec"]["dataset"]["file_bytes"], 16 << 20, "half of the file");
    assert_eq!(runs(&result), [1, 1, 1]);
    for cell in result["cells"].as_array().unwrap() {
        assert_eq!(cell["spec"]["duration_ms"], 1000, "{}", cell["spec"]);
        let verified = &cell["verified"];
        assert_eq!((verified["blocks"].as_u64(), verified["bad"].as_u64()), (Some(4096), Some(0)));
    }
    let classes = result["cells"][0]["runs"][0]["classes"].as_array().unwrap();
    let ops = |op: &str, figure: &str| {
        let class = classes.iter().find(|class| class["op"] == op).unwrap();
        class[figure].as_u64().unwrap()
    };
    let (reads, writes) = (ops("read", "ops"), ops("write", "ops"));
    assert!(writes > reads && reads > 0, "twice as many writes as reads: {reads}, {writes}");
    let mean = ops("write", "bytes") / writes;
    assert!((8 << 10..64 << 10).contains(&mean), "sizes between 4 and 64 KiB: {mean}");
}

#[test]
fn weir_is_measured_over_nbd() {
    let bench = Bench::new();
    let server = bench.dirs.start();
    let disk = bench.dirs.disk("disk", 256 * MIB);
    server.weir(&format!("pool create tank {}", disk.display())).ok();
    server.volume("tank/v", "64M");
    let words = ["run", "-p", "./tiny.toml", "-t", &server.uri("tank/v"), "-o", "out", "--json"];
    let told = server.bench(&words).ok().json();
    assert_eq!(
        (told["complete"].clone(), told["target"]["kind"].clone()),
        (true.into(), "nbd".into())
    );
    let target = &told["target"];
    let memory = server.weir("server show --json").json()["memory_cap_bytes"].clone();
    assert_eq!(
        (target["cache_bytes"].clone(), target["cache_source"].clone()),
        (memory, "told".into())
    );
    assert_eq!(target["protection"], "none", "one disk");
    assert_eq!(target["features"][0], "checksums");
    let facts = &target["facts"];
    let durable = facts["durable writes"].as_str().unwrap();
    assert!(durable.contains("flush") && durable.contains("target's statement"), "{durable}");
    assert!(facts["second reads"].as_str().unwrap().starts_with("first "), "{facts}");
    let verified = &bench.result("out")["cells"][1]["verified"];
    assert_eq!((verified["blocks"].as_u64(), verified["bad"].as_u64()), (Some(2048), Some(0)));
    server.stop_clean();
}

/// A network namespace with an agent, connected by a veth pair to the namespace of the test.
/// Dropping the `Host` ends the agent and removes the veth pair.
struct Host {
    name: String,
    address: String,
    agent: Child,
}

impl Host {
    /// Starts host `number`, which is 1 or 2.
    fn start(bench: &Bench, number: u32) -> Self {
        let pid = std::process::id();
        let name = format!("weir-{pid}-{number}");
        let (here, there) = (format!("wh{pid}-{number}"), format!("wt{pid}-{number}"));
        // The addresses are from the block for network benchmarks (RFC 2544), which this machine
        // does not use.
        let net = format!("198.{}.{}", 17 + number, pid % 250);
        let ip = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let made = crate::common::run("ip", &words);
            let told = text(&made);
            assert!(made.status.success(), "this test makes networks, as root: ip {line}: {told}");
        };
        ip(&format!("netns add {name}"));
        ip(&format!("link add {here} type veth peer name {there} netns {name}"));
        ip(&format!("addr add {net}.1/30 dev {here}"));
        ip(&format!("link set {here} up"));
        ip(&format!("-n {name} addr add {net}.2/30 dev {there}"));
        ip(&format!("-n {name} link set {there} up"));
        let address = format!("{net}.2:10910");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &name, WEIR, "bench", "agent", "--listen", &address]);
        command.args(["--secret-file", &bench.name("secret")]).current_dir(bench.path("."));
        let agent = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("the agent listens", Duration::from_secs(30), || {
            std::net::TcpStream::connect(&address).is_ok()
        });
        Self { name, address, agent }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // `ip netns exec` has replaced itself by the agent, so killing the child ends the agent.
        // The kernel removes both ends of the veth pair together.
        drop(self.agent.kill());
        drop(self.agent.wait());
        crate::common::run("ip", &["netns", "del", &self.name]);
    }
}

#[test]
fn agents_in_two_networks_measure_together() {
    let bench = Bench::new();
    let both = TINY.replace("DURATION", "1s").replace("qd = [4]", "qd = [4]\nclients = 2");
    fs::write(bench.path("both.toml"), both).unwrap();
    crate::common::write_secret(&bench.path("secret"), "a secret of this test alone");
    let hosts = [1, 2].map(|number| Host::start(&bench, number));
    let mut words = vec!["run", "-p", "./both.toml", "-t", "file.dat", "-o", "out", "--json"];
    words.extend(["--secret-file", "secret"]);
    hosts.iter().for_each(|host| words.extend(["--agent", &host.address]));
    // On a busy machine, one client may start more than 10 ms after the other, and the result is
    // then invalid. `--fail-on none` keeps the exit code at 0 in this case.
    words.extend(["--fail-on", "none"]);
    bench.weir(&words).ok();
    let result = bench.result("out");
    assert_eq!((result["complete"].clone(), runs(&result)), (Value::Bool(true), vec![2, 2]));
    for cell in result["cells"].as_array().unwrap() {
        assert_eq!(cell["failure"], Value::Null, "{}", cell["failure"]);
        for run in cell["runs"].as_array().unwrap() {
            let shares = run["clients"].as_array().unwrap();
            assert!(shares.iter().all(|share| share["iops"].as_f64() > Some(0.0)), "{shares:?}");
            assert_eq!((shares.len(), run["corrupt"].as_u64()), (2, Some(0)));
            let skew_ms = run["start_skew_ms"].as_f64().expect("of two clients");
            eprintln!("start skew: {skew_ms:.3} ms");
        }
    }
    let verified = &result["cells"][1]["verified"];
    assert_eq!((verified["blocks"].as_u64(), verified["bad"].as_u64()), (Some(2048), Some(0)));
    // With another secret, the agents refuse to measure.
    crate::common::write_secret(&bench.path("other"), "another secret than theirs");
    let at = words.iter().position(|word| *word == "secret").unwrap();
    (words[at], words[6]) = ("other", "refused");
    bench.weir(&words).fails(code::UNAVAILABLE, &[&hosts[0].address, "secret"]);
}
