//! Tests of comparisons: each pair of results differs in only one property.

use super::*;
use crate::bonnie::{BonnieResult, BonnieRun, Figure as PhaseFigure, Phase};
use crate::fixture;
use crate::result::RunResult;
use crate::spec::Durability;
use crate::verdict::{Finding, Remark};

/// Result with three runs around `iops`, whose rates differ by half a percent.
fn result(iops: u64, latency_us: u64) -> RunResult {
    let run = |iops| fixture::closed_run(iops, 5, 75, latency_us, latency_us * 2);
    let runs = [iops, iops + iops / 200, iops - iops / 200].map(run);
    fixture::result(vec![fixture::cell("random 4KiB", runs.to_vec())])
}

fn valid(result: RunResult) -> JudgedRun {
    let none = vec![Vec::new(); result.cells.len()];
    JudgedRun::with_remarks(result, none)
}

fn compared(change: impl Fn(&mut RunResult)) -> Comparison {
    let mut new = result(2000, 500);
    change(&mut new);
    Comparison::of(&valid(result(1000, 1000)), &valid(new))
}

#[test]
fn doubled_throughput_and_halved_latency_are_faster() {
    let found = compared(|_| {});
    let cell = &found.cells[0];
    let words: Vec<Option<Word>> = cell.figures.iter().map(|figure| figure.word).collect();
    assert_eq!(words, [Some(Word::Faster); 3], "{cell:?}");
    let ratio = cell.figures[0].ratio.unwrap();
    assert!((ratio.ratio - 2.0).abs() < 1e-9 && ratio.low > 1.9, "{ratio:?}");
    assert_eq!(
        (cell.figures[1].name, cell.figures[1].new < cell.figures[1].old),
        ("mean latency", true)
    );
    let back = Comparison::of(&valid(result(2000, 500)), &valid(result(1000, 1000)));
    assert_eq!(back.cells[0].figures[0].word, Some(Word::Slower));
    assert_eq!(back.cells[0].figures[1].word, Some(Word::Slower));
    let same = Comparison::of(&valid(result(1000, 1000)), &valid(result(1003, 1000)));
    assert_eq!(same.cells[0].figures[0].word, Some(Word::NoDifferenceShown));
}

#[test]
fn ranking_is_refused_with_its_reason() {
    let refused = |change: fn(&mut RunResult), reason: &str| {
        let found = compared(change);
        assert!(found.refused.iter().any(|said| said.contains(reason)), "{reason}: {found:?}");
        assert!(found.cells[0].figures.iter().all(|figure| figure.word.is_none()));
        assert!(found.text().contains("not ranked"), "{}", found.text());
    };
    refused(|new| new.spec.durability = Durability::Fua, "durability");
    refused(|new| new.spec.dataset.file_bytes *= 2, "dataset");
    refused(|new| new.spec.content.compress = 2.0, "content");
    let other_seed = compared(|new| new.spec.content.seed = 7);
    assert!(other_seed.refused.is_empty(), "{other_seed:?}");
}

#[test]
fn different_protection_or_unknown_cache_forbids_ranking() {
    let compared = |old: (Option<&str>, Option<u64>), new: (Option<&str>, Option<u64>)| {
        let with = |(protection, cache): (Option<&str>, Option<u64>)| {
            let mut result = result(1000, 1000);
            result.target.protection = protection.map(str::to_owned);
            result.target.cache_bytes = cache;
            valid(result)
        };
        Comparison::of(&with(old), &with(new))
    };
    let no_cache = Some(0);
    let mirror = || (Some("mirror"), no_cache);
    assert_eq!(compared(mirror(), (Some("raidz1"), no_cache)).refused.len(), 1);
    assert!(compared(mirror(), mirror()).refused.is_empty());
    let unknown = compared(mirror(), (None, no_cache));
    assert!(unknown.refused.is_empty() && !unknown.differences.is_empty(), "{unknown:?}");
    // Regression: a run served from memory was ranked "2.6 times faster" than a disk.
    for (old, new, which) in [
        (None, no_cache, "of the old target is unknown"),
        (no_cache, None, "of the new target is unknown"),
        (None, None, "of both targets is unknown"),
    ] {
        let found = compared((None, old), (None, new));
        assert!(found.is_refused() && found.refused[0].contains(which), "{found:?}");
    }
    // The dataset has 1 GiB, and only one of the two caches can hold all of it.
    let straddles = compared((None, Some(2 << 30)), (None, Some(512 << 20)));
    assert!(straddles.refused[0].contains("4GiB"), "{straddles:?}");
    assert!(compared((None, Some(256 << 20)), (None, Some(512 << 20))).refused.is_empty());
    assert!(compared((None, Some(2 << 30)), (None, Some(4 << 30))).refused.is_empty());
}

#[test]
fn invalid_cell_is_not_ranked() {
    let remark = Remark {
        finding: Finding::CacheResident,
        detail: "it fits".to_owned(),
        action: "use more".to_owned(),
        latency_only: false,
    };
    let spoiled = JudgedRun::with_remarks(result(2000, 500), vec![vec![remark]]);
    let found = Comparison::of(&valid(result(1000, 1000)), &spoiled);
    let cell = &found.cells[0];
    assert_eq!((cell.old_verdict, cell.new_verdict), ("valid", "cache-resident"));
    assert!(cell.refused[0].contains("it fits") && cell.figures[0].word.is_none());
    assert!(found.refused.is_empty(), "other cells could be ranked");
    assert!(found.text().contains("cache-resident"));
}

#[test]
fn different_workloads_and_unmatched_cells_are_not_ranked() {
    let found = compared(|new| new.cells[0].spec.streams[0].read_pct = 0.0);
    assert!(found.cells[0].refused[0].contains("workload"), "{found:?}");
    let found = compared(|new| new.cells[0].spec.name = "other".to_owned());
    assert_eq!(found.unmatched, ["random 4KiB (only old)", "other (only new)"]);
    assert!(found.cells.is_empty());
}

/// Result of a bonnie test with three runs. Its write rate is about `kib_s`; its seek rates are
/// 100, 130 and 160 per second, so far apart that they cannot be ranked.
fn file_test(kib_s: f64) -> BonnieResult {
    let run = |part: f64| {
        let figure =
            |phase, rate| PhaseFigure { phase, rate, cpu_pct: 9.0, latency_us: 9.0, seconds: 9.0 };
        let seeks = figure(Phase::Seeks, 100.0 + 3_000.0 * (part - 1.0).abs());
        BonnieRun { figures: vec![figure(Phase::OutBlock, kib_s * part), seeks], bad_blocks: 0 }
    };
    BonnieResult {
        directory: "/data".to_owned(),
        file_bytes: 48 << 30,
        memory_bytes: 16 << 30,
        files: 16,
        runs_asked: 3,
        runs: [1.0, 1.01, 0.98].map(run).into(),
        notes: Vec::new(),
        failure: None,
    }
}

#[test]
fn bonnie_phases_are_ranked_like_cells() {
    let with = |file_test: Option<BonnieResult>| {
        let mut result = result(1000, 1000);
        result.bonnie = file_test;
        valid(result)
    };
    let compared =
        |new: Option<BonnieResult>| Comparison::of(&with(Some(file_test(1000.0))), &with(new));
    let found = compared(Some(file_test(2000.0)));
    let [_, writes, seeks] = found.cells.as_slice() else { panic!("{found:?}") };
    assert_eq!(writes.name, "file test: sequential output block (write)");
    assert_eq!(writes.figures[0].word, Some(Word::Faster), "{writes:?}");
    assert!(
        found.text().contains("rate 1,000 KiB/s -> 2,000 KiB/s, 2.000 times"),
        "{}",
        found.text()
    );
    assert!(seeks.figures[0].word.is_none() && seeks.refused[0].contains("unsteady"), "{seeks:?}");
    let other = compared(Some(BonnieResult { file_bytes: 1 << 40, ..file_test(2000.0) }));
    assert!(other.cells[1].refused[0].contains("differs: 48"), "{other:?}");
    assert_eq!(compared(None).unmatched, ["file test (only old)"]);
    let again = rerun(&with(Some(file_test(1000.0))), &with(Some(file_test(2000.0))));
    assert_eq!(again.answer, Answer::NotReproduced, "{again:?}");
}

#[test]
fn cell_without_a_common_figure_states_so() {
    let found = compared(|new| new.cells[0].runs.clear());
    assert!(found.cells[0].figures.is_empty());
    assert!(found.text().contains("no common figure"), "{}", found.text());
}

#[test]
fn json_has_the_rankings_and_the_schema() {
    let json: serde_json::Value = serde_json::from_str(&compared(|_| {}).json()).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["cells"][0]["figures"][0]["word"], "faster");
    assert_eq!(json["cells"][0]["old_verdict"], "valid");
}

#[test]
fn rerun_is_reproduced_or_not_or_undecided() {
    let again = |new: RunResult| rerun(&valid(result(1000, 1000)), &valid(new));
    assert_eq!(again(result(1010, 1000)).answer, Answer::Reproduced);
    let other = again(result(1500, 1000));
    assert_eq!(other.answer, Answer::NotReproduced);
    assert!(other.text().starts_with("not reproduced"), "{}", other.text());
    // If the ratio is close to the limit of 10 %, a spread of half a percent prevents an answer.
    let near = again(result(1099, 1000));
    assert_eq!(near.answer, Answer::CannotTell, "{near:?}");
    assert!(near.cells[0].reason.as_ref().unwrap().contains("more or longer runs"));
    let mut single = result(1000, 1000);
    single.cells[0].runs.truncate(1);
    assert_eq!(again(single).answer, Answer::CannotTell);
}

#[test]
fn rerun_of_another_spec_or_with_missing_cells_is_undecided() {
    let mut other = result(1000, 1000);
    other.spec_hash = "ff".to_owned();
    let found = rerun(&valid(result(1000, 1000)), &valid(other));
    assert_eq!(found.answer, Answer::CannotTell);
    assert!(found.reason.unwrap().contains("the spec differs"));
    let mut unfinished = result(1000, 1000);
    unfinished.cells.clear();
    let found = rerun(&valid(result(1000, 1000)), &valid(unfinished));
    assert_eq!(found.answer, Answer::CannotTell);
}
