//! The simulation notices faults: each planted one breaks a promise within a fixed list of seeds,
//! and the engine without it keeps all promises over the same seeds.
//!
//! Not here: the sound engine's long run (`make sim`).
//!
//! Invariant: nothing here is random; a fault that is not found any more is a weaker simulation.

use weir_pool::PlantedBug;
use weir_sim::{Effort, Scenario, enumerate};

/// Few recoveries of many scenarios find more than many of few.
const EFFORT: Effort = Effort {
    steps_per_million: 20_000,
    plans_per_step: 2,
    nested_per_million: 20_000,
    go_on_per_million: 20_000,
    absent_per_million: 100_000,
    own_losses_per_million: 0,
    old_per_million: 20_000,
};

/// Legs that come and go: several generations, and often one of two legs alone.
const LEGS: Effort = Effort {
    steps_per_million: 3_000,
    plans_per_step: 1,
    nested_per_million: 0,
    go_on_per_million: 500_000,
    absent_per_million: 500_000,
    own_losses_per_million: 0,
    old_per_million: 0,
};

/// Openings that are cut themselves, while a leg is away that comes back later.
const OPENINGS: Effort = Effort {
    steps_per_million: 30_000,
    plans_per_step: 2,
    nested_per_million: 1_000_000,
    go_on_per_million: 0,
    absent_per_million: 600_000,
    own_losses_per_million: 0,
    old_per_million: 0,
};

/// Old copies of legs, often.
const OLD: Effort = Effort {
    steps_per_million: 20_000,
    plans_per_step: 1,
    nested_per_million: 50_000,
    go_on_per_million: 50_000,
    absent_per_million: 0,
    own_losses_per_million: 0,
    old_per_million: 1_000_000,
};

/// Losses of the pool's own trees, after every cut.
const OWN: Effort = Effort {
    steps_per_million: 2_000,
    plans_per_step: 1,
    nested_per_million: 0,
    go_on_per_million: 0,
    absent_per_million: 0,
    own_losses_per_million: 1_000_000,
    old_per_million: 0,
};

/// Runs that are not cut, for what is wrong before any crash: many of them take little time.
const RUNS: Effort = Effort {
    steps_per_million: 0,
    plans_per_step: 0,
    nested_per_million: 0,
    go_on_per_million: 0,
    absent_per_million: 0,
    own_losses_per_million: 0,
    old_per_million: 0,
};

/// The first seed from 1 up to `seeds` that breaks a promise, and the violation.
fn first_violation(bug: PlantedBug, seeds: u64, effort: Effort) -> Option<(u64, String)> {
    first_of(1..=seeds, bug, effort)
}

/// The first of these seeds that breaks a promise, and the violation.
fn first_of(
    seeds: impl IntoIterator<Item = u64>,
    bug: PlantedBug,
    effort: Effort,
) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let violation = enumerate(Scenario::for_bug(seed, bug), effort).err()?;
        Some((seed, violation.to_string()))
    })
}

fn is_noticed(bug: PlantedBug, seeds: u64) {
    is_noticed_with(bug, seeds, EFFORT);
}

fn is_noticed_with(bug: PlantedBug, seeds: u64, effort: Effort) {
    let (seed, what) = first_violation(bug, seeds, effort).expect("a planted bug must be noticed");
    assert!(seed <= seeds && !what.is_empty());
}

#[test]
fn a_commit_without_its_flush_is_noticed() {
    is_noticed(PlantedBug::SkipCommitFlush, 20);
}

#[test]
fn a_log_batch_that_is_not_durable_is_noticed() {
    is_noticed(PlantedBug::AckBeforeLogDurable, 20);
}

#[test]
fn a_segment_reused_too_early_is_noticed() {
    is_noticed(PlantedBug::ReuseAtOnce, 60);
}

#[test]
fn a_remap_table_that_leads_beside_the_block_is_noticed() {
    is_noticed(PlantedBug::RemapOffByOne, 20);
}

#[test]
fn a_changed_remap_table_that_leaves_ram_before_it_is_stored_is_noticed() {
    is_noticed(PlantedBug::RemapTableLeavesEarly, 60);
}

#[test]
fn the_place_of_a_cleaned_segment_reused_too_early_is_noticed() {
    is_noticed(PlantedBug::FreeTooEarly, 60);
}

#[test]
fn a_checksum_not_compared_is_noticed() {
    is_noticed(PlantedBug::SkipChecksum, 20);
}

#[test]
fn a_log_batch_not_replayed_is_noticed() {
    is_noticed(PlantedBug::DropLastBatch, 20);
}

#[test]
fn a_wrong_parity_strip_is_noticed() {
    is_noticed(PlantedBug::WrongParityStrip, 20);
}

#[test]
fn parity_made_anew_too_early_is_noticed() {
    let often = Effort { go_on_per_million: 200_000, old_per_million: 0, ..EFFORT };
    // It takes a scrub between two cuts. One scenario in fifty has one and costs seconds: those
    // that do come first.
    let seeds = [80, 77].into_iter().chain(1..=100);
    let (_, what) = first_of(seeds, PlantedBug::ParityAnewTooEarly, often).expect("noticed");
    assert!(what.contains("no other copy or parity"), "{what}");
}

#[test]
fn a_stale_leg_that_is_trusted_is_noticed() {
    is_noticed_with(PlantedBug::StaleLegTrusted, 20, LEGS);
}

#[test]
fn an_old_copy_of_a_leg_that_is_trusted_is_noticed() {
    is_noticed_with(PlantedBug::OldLegTrusted, 20, OLD);
}

#[test]
fn disks_older_than_the_recorded_txg_are_noticed() {
    is_noticed_with(PlantedBug::OldDisksTrusted, 20, OLD);
}

#[test]
fn a_lost_tree_of_the_pool_that_is_not_written_anew_is_noticed() {
    is_noticed_with(PlantedBug::LostRootStays, 20, OWN);
}

#[test]
fn import_that_gives_up_unreadable_parts_is_noticed() {
    // One recovery in twenty loses a part of the directory and can read it again later.
    is_noticed_with(PlantedBug::UnreadGivenUp, 60, Effort { steps_per_million: 10_000, ..OWN });
}

#[test]
fn an_opening_that_writes_before_it_is_the_newest_is_noticed() {
    is_noticed_with(PlantedBug::OpensUnclaimed, 20, OPENINGS);
}

#[test]
fn a_resilver_that_skips_a_range_is_noticed() {
    is_noticed_with(PlantedBug::ResilverSkipsRange, 20, LEGS);
}

#[test]
fn a_vdev_that_leaves_too_early_is_noticed() {
    is_noticed(PlantedBug::VdevLeavesEarly, 40);
}

#[test]
fn a_log_that_moves_too_early_is_noticed() {
    // What shows it is a flush that was logged between the freeze of a txg and the uberblock that
    // moves the log, and a cut before the next uberblock: one move in ten. Half of all moves had no
    // clients beside them, as the operator outlasted these; more cuts per scenario were no help.
    is_noticed(PlantedBug::LogMovesEarly, 40);
}

#[test]
fn without_a_planted_bug_nothing_is_noticed() {
    assert_eq!(first_violation(PlantedBug::None, 20, EFFORT), None);
}

#[test]
fn without_a_planted_bug_legs_that_come_and_go_are_no_violation() {
    assert_eq!(first_violation(PlantedBug::None, 20, LEGS), None);
}

#[test]
fn without_a_planted_bug_openings_that_are_cut_are_no_violation() {
    assert_eq!(first_violation(PlantedBug::None, 2, OPENINGS), None);
}

#[test]
fn without_a_planted_bug_old_copies_of_legs_are_no_violation() {
    assert_eq!(first_violation(PlantedBug::None, 6, OLD), None);
}

#[test]
fn without_a_planted_bug_losses_of_own_trees_are_no_violation() {
    assert_eq!(first_violation(PlantedBug::None, 20, OWN), None);
}

#[test]
fn freeing_what_a_snapshot_ended_with_is_noticed() {
    is_noticed(PlantedBug::HeldOffByOne, 20);
}

#[test]
fn freeing_what_the_next_version_shares_is_noticed() {
    is_noticed(PlantedBug::SharedFreed, 20);
}

#[test]
fn cleaning_away_what_only_snapshots_hold_is_noticed() {
    is_noticed(PlantedBug::SnapshotsNotAsked, 20);
}

#[test]
fn freeing_a_snapshot_that_was_rolled_back_to_too_early_is_noticed() {
    // It takes a rollback and then the end of its snapshot: seed 91 is the first that shows it,
    // since the administrator has more to do.
    is_noticed(PlantedBug::OldestFreedFirst, 150);
}

#[test]
fn freeing_a_part_again_is_noticed() {
    is_noticed(PlantedBug::FreedAgain, 60);
}

#[test]
fn a_reference_that_is_dropped_twice_is_noticed() {
    is_noticed(PlantedBug::ReferenceDroppedTwice, 20);
}

#[test]
fn cleaning_away_what_only_others_refer_to_is_noticed() {
    is_noticed(PlantedBug::SharedNotAsked, 60);
}

#[test]
fn forgetting_the_rest_of_a_record_at_replay_is_noticed() {
    is_noticed(PlantedBug::ReplayForgetsRest, 20);
}

#[test]
fn taking_the_rest_of_a_record_for_what_it_was_is_noticed() {
    is_noticed(PlantedBug::RestOutlivesTxg, 60);
}

#[test]
fn a_clone_that_counts_for_no_quota_is_noticed() {
    is_noticed(PlantedBug::ClonesNotCounted, 60);
}

#[test]
fn a_trim_that_is_missing_in_a_difference_is_noticed() {
    is_noticed(PlantedBug::TrimsNotSent, 60);
}

#[test]
fn sharing_a_block_that_was_freed_is_noticed() {
    is_noticed_with(PlantedBug::HintOutlivesBlock, 600, RUNS);
}

#[test]
fn clones_of_one_txg_that_are_not_sorted_are_noticed() {
    is_noticed(PlantedBug::ClonesUnsorted, 60);
}

#[test]
fn a_part_of_a_record_that_undoes_a_clone_is_noticed() {
    is_noticed_with(PlantedBug::PartsBesideClones, 600, RUNS);
}

#[test]
fn a_write_that_a_crash_tears_at_ends_of_blocks_is_noticed() {
    is_noticed(PlantedBug::WritesCut, 20);
}
