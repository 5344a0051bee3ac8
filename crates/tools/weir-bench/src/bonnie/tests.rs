//! Tests of the bonnie test: small runs in a temporary directory, and the verdicts on figures.
//!
//! The tests of the printed table are in `report`.

use std::path::Path;

use super::drive::{Job, Watch, drive};
use super::*;
use crate::result::TargetInfo;
use crate::spec::{BonnieSize, BonnieSpec, ContentSpec};
use crate::verdict::Finding;

const CONTENT: ContentSpec =
    ContentSpec { compress: 1.0, dedupe_pct: 0.0, unit_bytes: 4096, seed: 9 };

fn target(address: &Path, kind: &str) -> TargetInfo {
    let (address, kind) = (address.display().to_string(), kind.to_owned());
    TargetInfo { address, kind, ..TargetInfo::default() }
}

fn small(runs: u32) -> BonnieSpec {
    BonnieSpec { size: BonnieSize::Bytes { bytes: 256 << 10 }, files: 40, runs }
}

fn job<'a>(spec: &'a BonnieSpec, target: &'a TargetInfo) -> Job<'a> {
    Job { spec, content: &CONTENT, target, memory_bytes: 1 << 30, before: None }
}

/// Watcher that asks a closure whether to continue, and records each result that it receives.
struct Asking<F> {
    goes_on: F,
    kept: Vec<usize>,
}

fn asking<F: FnMut(u32, f64) -> bool>(goes_on: F) -> Asking<F> {
    Asking { goes_on, kept: Vec::new() }
}

impl<F: FnMut(u32, f64) -> bool> Watch for Asking<F> {
    fn goes_on(&mut self, run: u32, part: f64) -> bool {
        (self.goes_on)(run, part)
    }
    fn keep(&mut self, result: &BonnieResult) {
        self.kept.push(result.runs.len());
    }
}

fn files_in(directory: &Path) -> usize {
    std::fs::read_dir(directory).expect("it is there").count()
}

#[test]
fn real_run_has_every_figure_and_removes_its_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let beside = directory.path().join("target.dat");
    std::fs::write(&beside, [1; 100]).expect("it can be written");
    let (spec, target) = (small(2), target(&beside, "file"));
    let mut parts = Vec::new();
    let mut watch = asking(|run, part| {
        parts.push((run, part));
        true
    });
    let result = drive(&job(&spec, &target), &mut watch).expect("it can begin");
    assert_eq!(watch.kept, [1, 2], "each run is kept when it is done");
    assert_eq!((result.runs.len(), result.failure.as_deref()), (2, None));
    assert!(parts.iter().all(|(run, part)| (1..=2).contains(run) && (0.0..=1.0).contains(part)));
    assert!(parts.is_sorted_by(|a, b| a <= b) && !parts.is_empty(), "{parts:?}");
    for run in &result.runs {
        assert_eq!(run.figures.iter().map(|f| f.phase).collect::<Vec<_>>(), Phase::ALL);
        assert_eq!(run.bad_blocks, 0);
        for figure in &run.figures {
            let amount = match figure.phase {
                phase if phase.is_bytes() => 256.0,
                Phase::Seeks => 8192.0,
                _ => 40.0,
            };
            let done = figure.rate * figure.seconds;
            assert!((done / amount - 1.0).abs() < 1e-6, "{figure:?}");
            let longest_us = figure.seconds * 1e6 * (1.0 + 1e-9);
            assert!(figure.latency_us > 0.0 && figure.latency_us <= longest_us, "{figure:?}");
            assert!(figure.cpu_pct >= 0.0, "{figure:?}");
        }
    }
    assert!(result.notes.iter().any(|note| note.contains("not larger than the memory")));
    assert!(result.notes.iter().any(|note| note.contains("bonnie++ prints no figure")));
    assert_eq!(files_in(directory.path()), 1, "only the target is left");
    let json = serde_json::to_string(&result).expect("plain data");
    let again: BonnieResult = serde_json::from_str(&json).expect("as written");
    assert_eq!((again.runs.len(), again.notes), (2, result.notes));
}

#[test]
fn test_can_be_cancelled_and_needs_a_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let (spec, here) = (small(3), target(directory.path(), "file"));
    let ended = drive(&job(&spec, &here), &mut asking(|run, _| run < 2));
    let ended = ended.expect("it can begin");
    assert_eq!((ended.runs.len(), ended.failure.as_deref()), (1, Some("it was ended")));
    assert_eq!(files_in(directory.path()), 0, "nothing is left");
    let refused = |spec: &BonnieSpec, target: &TargetInfo| {
        drive(&job(spec, target), &mut asking(|_, _| true)).expect_err("it cannot begin")
    };
    let device = target(Path::new("/dev/null"), "device");
    assert!(matches!(refused(&spec, &device), BonnieError::NoDirectory { .. }));
    let export = target(Path::new("nbd://host/export"), "nbd");
    assert!(matches!(refused(&spec, &export), BonnieError::NoDirectory { .. }));
    let huge = BonnieSpec { size: BonnieSize::MemoryTimes { times: 100.0 }, ..spec };
    let mut large = job(&huge, &here);
    large.memory_bytes = 1 << 50;
    let error = drive(&large, &mut asking(|_, _| true)).expect_err("no disk has that");
    assert!(matches!(error, BonnieError::NoSpace { .. }), "{error}");
}

#[test]
fn finished_runs_of_the_same_test_are_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let (spec, here) = (small(3), target(directory.path(), "file"));
    let first = drive(&job(&spec, &here), &mut asking(|run, _| run < 3)).expect("it can begin");
    assert_eq!(first.runs.len(), 2);
    let on_from = |before: &BonnieResult| {
        let mut begun = Vec::new();
        let mut watch = asking(|run, _| {
            begun.push(run);
            true
        });
        let job = Job { before: Some(before), ..job(&spec, &here) };
        let result = drive(&job, &mut watch).expect("it can begin");
        begun.dedup();
        (result, begun)
    };
    let (whole, begun) = on_from(&first);
    assert_eq!((&whole.runs[..2], whole.runs.len()), (&first.runs[..], 3));
    assert_eq!((begun, whole.failure.as_deref()), (vec![3], None));
    let (again, begun) = on_from(&whole);
    assert_eq!((again.runs, begun), (whole.runs, vec![]), "nothing is left to do");
    let other = BonnieResult { file_bytes: 1 << 20, ..first };
    assert_eq!(on_from(&other).1, [1, 2, 3], "runs of another file are not runs of this");
}

#[test]
fn labels_pair_output_with_write_and_input_with_read() {
    for phase in Phase::ALL {
        let label = phase.label();
        assert_eq!(label.contains("output"), label.contains("(write)"), "{label}");
        assert!(!label.contains("input") || label.contains("(read)"), "{label}");
    }
}

fn measured(rates: &[f64]) -> BonnieResult {
    let figure =
        |rate: f64, phase| Figure { phase, rate, cpu_pct: 50.0, latency_us: rate, seconds: 10.0 };
    let run = |rate: &f64| BonnieRun {
        figures: vec![figure(382_000.0, Phase::OutBlock), figure(*rate, Phase::Seeks)],
        bad_blocks: 0,
    };
    BonnieResult {
        directory: "/data".to_owned(),
        file_bytes: 48 << 30,
        memory_bytes: 16 << 30,
        files: 16_384,
        runs_asked: rates.len() as u32,
        runs: rates.iter().map(run).collect(),
        notes: Vec::new(),
        failure: None,
    }
}

/// Seek rates that the reference document `002` published. The rates vary by 34 %, and the document
/// printed the lowest rate as the average.
#[test]
fn columns_have_their_spread_and_verdict() {
    let seeks = [6300.0, 7034.0, 10_018.0, 5067.0, 11_517.0, 10_903.0, 5144.0, 5869.0];
    let mut result = measured(&seeks);
    let found = columns(&result);
    assert_eq!(found.len(), 2, "what was not measured has no column");
    assert_eq!((found[0].verdict(), found[0].cv_pct), ("valid", Some(0.0)));
    assert_eq!(
        (found[1].rate.median, found[1].rate.min, found[1].rate.max),
        (6667.0, 5067.0, 11_517.0)
    );
    assert!((found[1].cv_pct.expect("eight runs") - 34.0).abs() < 0.5);
    assert_eq!((found[1].verdict(), found[1].latency_us), ("unsteady", 11_517.0));
    result.memory_bytes = 48 << 30;
    let verdicts = |result: &BonnieResult| -> Vec<Vec<Finding>> {
        let remarks = |column: &Column| column.remarks.iter().map(|r| r.finding).collect();
        columns(result).iter().map(remarks).collect()
    };
    assert_eq!(verdicts(&result), [vec![], vec![Finding::CacheResident, Finding::Unsteady]]);
    result.runs.truncate(1);
    result.runs[0].bad_blocks = 1;
    let bad = [Finding::Corrupt, Finding::CacheResident, Finding::UnderSampled];
    assert_eq!(verdicts(&result), [vec![Finding::UnderSampled], bad.to_vec()]);
}
