//! `weir bench` with operations on files: whole rows of them, and mixes of data and metadata.
//!
//! Not here: the choice of the operations and the check of the files (the tests of weir-bench).
//!
//! Invariants: no test asserts a speed; after each run, the directory has only the files of the
//! dataset.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::bench::{Bench, signal};
use crate::common::{code, eventually, text};

/// Profile with a row for each operation on files, and with a mix.
const FILES: &str = r#"
schema = 1
name = "files"
title = "Files"
dataset = { files = 4, file_size = "1MiB" }
content = { compress = 1.0, dedupe_pct = 0, unit = "4KiB", seed = 42 }
durability = { writes = "none" }

[phases]
fill = { block = "64KiB", in_flight = 4 }
measure = { warmup = "50ms", duration = "300ms", runs = 2 }

[[test]]
name = "create"
op = "create"
files = 500
file_size = "512B"
duration = "20s"
threads = [2]

[[test]]
name = "stat"
op = "stat"
pattern = "random"
files = 100
threads = [2]

[[test]]
name = "rename"
op = "rename"
files = 100
directory = "shared"
threads = [2]

[[test]]
name = "readdir"
op = "readdir"
files = 100
threads = [2]

[[test]]
name = "readdirplus"
op = "readdirplus"
files = 100
threads = [2]

[[test]]
name = "extract"
op = "extract"
files = 500
file_size = "512B"
duration = "20s"
threads = [2]

[[test]]
name = "remove"
op = "remove"
duration = "20s"
pattern = "random"
files = 500
directory = "shared"
threads = [2]

[[test]]
name = "mix"
pattern = "random"
block = "4KiB"
read_pct = 70
metadata_pct = 5
qd = [4]
"#;

/// Names in the directory of the target, without the files of the dataset.
fn left(bench: &Bench, target: &str) -> Vec<String> {
    let entries = fs::read_dir(bench.path(target)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with("weir-bench-0000")).collect()
}

fn class<'a>(run: &'a Value, op: &str) -> &'a Value {
    let classes = run["classes"].as_array().unwrap();
    classes.iter().find(|class| class["op"] == op).unwrap_or_else(|| panic!("no {op}: {run}"))
}

#[test]
fn operations_on_files_and_a_mix_are_measured_on_a_directory() {
    let bench = Bench::new();
    fs::write(bench.path("ops.toml"), FILES).unwrap();
    let told =
        bench.weir(&["run", "-p", "./ops.toml", "-t", "dir:target", "-o", "out", "--json"]).ok();
    let told = told.json();
    assert_eq!(told["complete"], true);
    let cells = told["cells"].as_array().unwrap();
    for cell in cells {
        let verdict = cell["verdict"].as_str().unwrap();
        assert!(!["invalid", "corrupt"].contains(&verdict), "{cell}");
    }
    let result = bench.result("out");
    for (cell, (op, listed)) in result["cells"].as_array().unwrap().iter().zip([
        ("create", 1000),
        ("stat", 200),
        ("rename", 200),
        ("readdir", 200),
        ("readdirplus", 200),
        ("extract", 1000),
        ("remove", 0),
    ]) {
        for run in cell["runs"].as_array().unwrap() {
            let ops = class(run, op)["ops"].as_u64().unwrap();
            let is_whole = ["create", "extract", "remove"].contains(&op);
            assert!(if is_whole { ops == 1000 } else { ops > 0 }, "{op}: {ops}");
            let files = &run["files"];
            assert_eq!((&files["missing"], &files["unexpected"]), (&0.into(), &0.into()), "{op}");
            assert_eq!(files["listed"], listed, "{op}");
        }
    }
    let bytes = class(&result["cells"][0]["runs"][0], "create")["bytes"].as_u64();
    assert_eq!(bytes, Some(1000 * 512));
    let (mut metadata, mut data) = (0, 0);
    for run in result["cells"][7]["runs"].as_array().unwrap() {
        let ops = |op| class(run, op)["ops"].as_u64().unwrap();
        metadata += ops("metadata");
        data += ops("read") + ops("write");
        let kinds = run["metadata_ops"].as_object().unwrap();
        let all: u64 = kinds.values().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(all, ops("metadata"));
        assert!(kinds.contains_key("getattr") && kinds.contains_key("lookup"), "{kinds:?}");
    }
    let pct = 100.0 * metadata as f64 / (metadata + data) as f64;
    assert!((3.0..7.0).contains(&pct), "{metadata} of {}", metadata + data);
    let mix = &cells[7];
    assert!(mix["summary"]["metadata_iops"]["median"].as_f64().unwrap() > 0.0, "{mix}");
    assert!(mix["summary"]["metadata_latency"]["mean_us"].as_f64().unwrap() > 0.0, "{mix}");
    let report = fs::read_to_string(bench.path("out/report.md")).unwrap();
    assert!(report.contains("| metadata/s |"), "{report}");
    let html = fs::read_to_string(bench.path("out/report.html")).unwrap();
    assert!(html.contains("metadata operations") && html.contains("The directories listed 2000"));
    let csv = fs::read_to_string(bench.path("out/cells.csv")).unwrap();
    assert!(csv.lines().next().unwrap().contains("metadata_iops"), "{csv}");
    assert_eq!(left(&bench, "target"), Vec::<String>::new());
    let again = bench.weir(&["compare", "out", "out", "--json"]);
    assert!(again.out.contains("metadata IOPS"), "{}", again.out);
}

#[test]
fn operations_on_files_need_no_profile() {
    let bench = Bench::new();
    let words = ["run", "--op", "create,remove", "--files", "500", "--workers", "2", "--runs", "1"];
    let rest = ["--file-size", "4KiB", "--shared", "-t", "dir:target", "-o", "out"];
    let told = bench.weir(&[&words[..], &rest[..]].concat()).ok();
    assert!(told.out.contains("Operations on files"), "{}", told.out);
    let result = bench.result("out");
    let run = |cell: usize| &result["cells"][cell]["runs"][0];
    assert_eq!(class(run(0), "create")["ops"], 1000);
    assert_eq!(class(run(0), "create")["bytes"], 1000 * 4096);
    assert_eq!(class(run(1), "remove")["ops"], 1000);
    assert_eq!(left(&bench, "target"), Vec::<String>::new());
    bench
        .weir(&["run", "--op", "create", "-t", "file.dat", "-o", "refused"])
        .fails(code::INVALID, &["target with files", "dir:PATH", "kind file"]);
    assert!(!bench.path("file.dat").exists());
    bench
        .weir(&["run", "--op", "chmod", "-t", "dir:target"])
        .fails(2, &["create, stat, remove, rename, readdir, readdirplus, extract"]);
    bench.weir(&["run", "--op", "stat", "-p", "vm", "-t", "dir:target"]).fails(2, &["--profile"]);
}

/// Profile with 4 rows of data.
const MATRIX: &str = r#"
schema = 1
name = "pair"
title = "Pair"
dataset = { files = 4, file_size = "1MiB" }
content = { compress = 1.0, dedupe_pct = 0, unit = "4KiB", seed = 42 }
durability = { writes = "none" }
load = { mode = "closed", workers = 2, window = 2 }

[matrix]
pattern = ["random", "seq"]
read_pct = [100, 0]
seq_read_pct = [0, 100]
block = ["4KiB"]

[phases]
fill = { block = "64KiB", in_flight = 4 }
measure = { warmup = "50ms", duration = "300ms", runs = 2 }
"#;

/// Rows of the tables of one result in a report on several results, as fields. The first row has
/// the heads of the columns.
fn rows_of(report: &str, name: &str) -> Vec<Vec<String>> {
    let sections = report.split("\n### ").filter(|text| text.starts_with(&format!("{name}, ")));
    let lines = sections.flat_map(str::lines).filter(|line| line.starts_with("| "));
    let fields = |line: &str| line.trim_matches('|').split('|').map(|f| f.trim().into()).collect();
    let all: Vec<Vec<String>> = lines.map(fields).collect();
    let heads = all.first().expect("a table").clone();
    let rows = all.into_iter().filter(|row| row[0] != "verdict" && !row[0].starts_with("--"));
    std::iter::once(heads).chain(rows.filter(|row| !row[0].contains("not judged"))).collect()
}

#[test]
fn report_on_several_results_has_their_columns_and_differences() {
    let bench = Bench::new();
    fs::write(bench.path("pair.toml"), MATRIX).unwrap();
    for name in ["one", "two", "other"] {
        let target = format!("dir:target-{name}");
        bench.weir(&["run", "-p", "./pair.toml", "-t", &target, "-o", name]).ok();
    }
    let words = ["report", "one", "two", "--peer", "other", "--out", "all", "--json"];
    let files = bench.weir(&words).ok().json()["files"].as_array().unwrap().len();
    assert_eq!(files, 2, "Markdown and HTML");
    let report = fs::read_to_string(bench.path("all/report.md")).unwrap();
    assert!(report.starts_with("# pair: one, two, other\n"), "{report}");
    for name in ["one", "two"] {
        let rows = rows_of(&report, name);
        assert!(rows[0].contains(&"ops/s published".to_owned()), "{rows:?}");
        assert_eq!(rows.len(), 5, "heads and four rows: {rows:?}");
    }
    // The last two columns of the other product are quotients.
    let (own, peer) = (rows_of(&report, "one"), rows_of(&report, "other"));
    assert_eq!(peer[0][8..], ["ops/s: one / this", "mean ms: one / this"], "{:?}", peer[0]);
    assert_eq!(peer.len(), 5, "{peer:?}");
    let number = |field: &str| field.replace(',', "").parse::<f64>().unwrap();
    for (own, peer) in own.iter().zip(&peer).skip(1) {
        assert_eq!(own[1..3], peer[1..3], "the same settings");
        let [ours, theirs, quotient] = [&own[4], &peer[4], &peer[8]].map(|field| number(field));
        // The report rounds the quotient.
        let error = (ours / theirs - quotient).abs();
        assert!(error < 0.06 + quotient / 50.0, "{ours} by {theirs} is not {quotient}");
    }
    let conclusions = report.split("## Conditions").next().unwrap();
    for part in ["two by one, row by row: rate ", "one by other, row by row: rate ", " rows)"] {
        assert!(conclusions.contains(part), "no {part:?} in {conclusions}");
    }
    let html = fs::read_to_string(bench.path("all/report.html")).unwrap();
    assert!(html.contains("one by other, row by row"), "{html}");
    // A report with a result that cannot be read fails.
    bench.weir(&["report", "one", "--peer", "none"]).fails(code::NOT_FOUND, &["cannot read none"]);
}

#[test]
fn ctrl_c_removes_the_files_of_a_run() {
    let bench = Bench::new();
    let words = ["run", "--op", "stat", "--files", "500", "-t", "dir:target", "-o", "out"];
    let mut command = bench.command(&words);
    let child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    eventually("the files exist", Duration::from_mins(1), || {
        bench.path("target").exists() && !left(&bench, "target").is_empty()
    });
    // The run measures for 10 s, so the signal arrives while the files exist.
    std::thread::sleep(Duration::from_millis(500));
    signal(&child, Signal::INT);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "not complete: {}", text(&ended));
    assert_eq!(left(&bench, "target"), Vec::<String>::new());
}
