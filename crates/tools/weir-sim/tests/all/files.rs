//! Power cuts of filesystems over a fixed list of seeds, and planted bugs.
//!
//! The simulation is in `weir_sim::files`.

use weir_pool::PlantedBug;
use weir_sim::{FileCuts, FilesScenario, LegFault, cut_files, run_files};

fn is_noticed(bug: PlantedBug, seeds: u64) -> bool {
    (1..=seeds).any(|seed| {
        let run = std::panic::catch_unwind(|| cut_files(seed, bug));
        run.is_err() || run.is_ok_and(|done| done.is_err())
    })
}

fn with_operator(seed: u64, bug: PlantedBug) -> FilesScenario {
    FilesScenario { has_operator: true, cuts_one_in: 24, ..FilesScenario::new(seed, bug) }
}

/// As [`is_noticed`], with other scenarios.
fn is_noticed_in(scenarios: impl IntoIterator<Item = FilesScenario>) -> bool {
    scenarios.into_iter().any(|scenario| {
        let run = std::panic::catch_unwind(|| run_files(scenario));
        run.is_err() || run.is_ok_and(|done| done.is_err())
    })
}

#[test]
fn snapshots_clones_and_rollbacks_are_exact_after_a_crash() {
    let mut all = FileCuts::default();
    for seed in 1..=2 {
        all.add(run_files(with_operator(seed, PlantedBug::None)).unwrap());
    }
    assert!(all.cuts > 120 && all.snapshots > all.cuts / 2, "{all:?}");
    assert!(all.clones > 0 && all.rolled_back > 0, "{all:?}");
    assert!(all.replicas > 0 && all.resumed > 0 && all.damaged > 0, "{all:?}");
}

#[test]
fn mirror_hides_the_faults_of_a_leg() {
    for (seed, fault) in (1..).zip(LegFault::ALL) {
        let scenario = with_operator(seed, PlantedBug::None);
        run_files(FilesScenario { fault: Some(fault), cuts_one_in: 60, ..scenario }).unwrap();
    }
}

#[test]
fn sync_of_several_log_batches_keeps_the_crash_promise() {
    let mut all = FileCuts::default();
    for seed in 1..=2 {
        let plain = FilesScenario::new(seed, PlantedBug::None);
        all.add(run_files(FilesScenario { is_large: true, ..plain }).unwrap());
    }
    assert!(all.cuts > 60 && all.lost > 30, "{all:?}");
}

#[test]
fn sync_that_ends_after_one_batch_is_noticed() {
    let plain = |seed| FilesScenario::new(seed, PlantedBug::SyncEndsEarly);
    let large = |seed| FilesScenario { is_large: true, cuts_one_in: 12, ..plain(seed) };
    assert!(is_noticed_in((1..=20).map(large)));
}

#[test]
fn removed_files_that_a_stream_lacks_are_noticed() {
    assert!(is_noticed_in((1..=20).map(|seed| with_operator(seed, PlantedBug::UnusedNotSent))));
}

#[test]
fn blocks_of_snapshots_that_are_freed_too_early_are_noticed() {
    for bug in [PlantedBug::SnapshotsNotAsked, PlantedBug::SharedFreed] {
        assert!(is_noticed_in((1..=20).map(|seed| with_operator(seed, bug))));
    }
}

#[test]
fn repeated_change_numbers_are_noticed() {
    assert!(is_noticed(PlantedBug::ChangesRepeat, 20));
}

#[test]
fn seek_that_ignores_dirty_data_is_noticed() {
    assert!(is_noticed(PlantedBug::SeekIgnoresDirty, 20));
}

#[test]
fn copy_that_ignores_dirty_data_is_noticed() {
    assert!(is_noticed(PlantedBug::CopyIgnoresDirty, 20));
}

fn folding(seed: u64, bug: PlantedBug) -> FilesScenario {
    FilesScenario { folds: true, cuts_one_in: 40, ..FilesScenario::new(seed, bug) }
}

#[test]
fn case_insensitive_filesystem_keeps_the_crash_promise() {
    let mut all = FileCuts::default();
    for seed in 1..=2 {
        let plain = folding(seed, PlantedBug::None);
        all.add(run_files(FilesScenario { cuts_one_in: 8, ..plain }).unwrap());
        let with_operator = with_operator(seed, PlantedBug::None);
        all.add(run_files(FilesScenario { folds: true, ..with_operator }).unwrap());
    }
    assert!(all.cuts > 200 && all.lost > 50, "{all:?}");
    assert!(all.snapshots > 20 && all.replicas > 0, "{all:?}");
}

#[test]
fn names_that_are_not_folded_are_noticed() {
    assert!(is_noticed_in((1..=3).map(|seed| folding(seed, PlantedBug::NamesNotFolded))));
}

#[test]
fn rename_that_keeps_the_old_spelling_is_noticed() {
    assert!(is_noticed_in((1..=5).map(|seed| folding(seed, PlantedBug::OldSpellingKept))));
}

#[test]
fn filesystem_keeps_the_crash_promise() {
    let (mut cuts, mut lost) = (0, 0);
    for seed in 1..=2 {
        let counted = cut_files(seed, PlantedBug::None).unwrap();
        cuts += counted.cuts;
        lost += counted.lost;
    }
    assert!(cuts > 800 && lost > 400, "{lost} of {cuts} cuts lost changes");
}

#[test]
fn names_that_are_logged_before_the_content_are_noticed() {
    assert!(is_noticed(PlantedBug::NamedNotLogged, 20));
}

#[test]
fn tail_of_a_shortened_file_is_noticed() {
    assert!(is_noticed(PlantedBug::TruncateLeavesTail, 20));
}

#[test]
fn root_of_a_neighbour_is_noticed() {
    assert!(is_noticed(PlantedBug::SlotHasNeighboursRoot, 20));
}

#[test]
fn dropped_log_batch_is_noticed() {
    assert!(is_noticed(PlantedBug::DropLastBatch, 20));
}

#[test]
fn removed_file_that_is_forgotten_is_noticed() {
    assert!(is_noticed(PlantedBug::RemovedFileForgotten, 20));
}

#[test]
fn blocks_of_a_freed_part_are_noticed() {
    assert!(is_noticed(PlantedBug::FreedPartStillCounted, 20));
}

#[test]
fn mask_of_an_old_mode_is_noticed() {
    assert!(is_noticed(PlantedBug::AclMaskKept, 20));
}

#[test]
fn leaked_attributes_are_noticed() {
    assert!(is_noticed(PlantedBug::AttributesLeaked, 20));
}

#[test]
fn usage_of_an_old_owner_is_noticed() {
    assert!(is_noticed(PlantedBug::UsageStaysAtOldOwner, 20));
}
