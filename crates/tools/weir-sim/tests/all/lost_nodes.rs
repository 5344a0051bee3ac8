//! Lost tree nodes over a fixed list of seeds: a lost node affects only the blocks below it, and
//! the simulation detects planted bugs in the code for lost nodes.
//!
//! No other program runs this simulation; `make sim` runs scenarios only.

use weir_pool::PlantedBug;
use weir_sim::{lose_nodes, lose_object_nodes};

type Lose = fn(u64, PlantedBug) -> Result<(), String>;

fn first_violation(bug: PlantedBug, seeds: u64) -> Option<String> {
    first_violation_of(lose_nodes, bug, seeds)
}

fn first_violation_of(lose: Lose, bug: PlantedBug, seeds: u64) -> Option<String> {
    (1..=seeds).find_map(|seed| {
        std::panic::catch_unwind(|| lose(seed, bug))
            .unwrap_or_else(|_| Err(format!("seed {seed}: a panic")))
            .err()
    })
}

#[test]
fn lost_node_affects_only_the_blocks_below_it() {
    assert_eq!(first_violation(PlantedBug::None, 150), None);
}

#[test]
fn commit_that_fails_on_damage_is_noticed() {
    assert!(first_violation(PlantedBug::DamageFailsCommit, 10).is_some());
}

#[test]
fn freeing_a_lost_node_under_damage_markers_is_noticed() {
    assert!(first_violation(PlantedBug::LostNodeFreed, 600).is_some());
}

#[test]
fn recount_that_frees_unknown_blocks_is_noticed() {
    assert!(first_violation(PlantedBug::UnknownTakenForDead, 600).is_some());
}

#[test]
fn lost_node_affects_only_the_objects_below_it() {
    assert_eq!(first_violation_of(lose_object_nodes, PlantedBug::None, 100), None);
}

#[test]
fn bugs_with_lost_nodes_of_objects_are_noticed() {
    let bugs =
        [PlantedBug::DamageFailsCommit, PlantedBug::LostNodeFreed, PlantedBug::UnknownTakenForDead];
    for bug in bugs {
        assert!(first_violation_of(lose_object_nodes, bug, 600).is_some(), "{bug:?}");
    }
}
