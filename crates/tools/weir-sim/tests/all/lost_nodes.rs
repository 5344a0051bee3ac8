//! Tree nodes lost on every leg cost what is below them, over a fixed list of seeds; faults planted
//! there are noticed.
//!
//! Not here: the long run (`make sim`).

use weir_pool::PlantedBug;
use weir_sim::lose_nodes;

fn first_violation(bug: PlantedBug, seeds: u64) -> Option<String> {
    (1..=seeds).find_map(|seed| {
        std::panic::catch_unwind(|| lose_nodes(seed, bug))
            .unwrap_or_else(|_| Err(format!("seed {seed}: a panic")))
            .err()
    })
}

#[test]
fn a_lost_node_costs_what_is_below_it_and_nothing_else() {
    assert_eq!(first_violation(PlantedBug::None, 150), None);
}

#[test]
fn a_commit_that_fails_at_damage_is_noticed() {
    assert!(first_violation(PlantedBug::DamageFailsCommit, 10).is_some());
}

#[test]
fn a_lost_node_that_is_freed_while_markers_name_it_is_noticed() {
    assert!(first_violation(PlantedBug::LostNodeFreed, 600).is_some());
}

#[test]
fn a_recount_that_takes_unknown_blocks_for_dead_is_noticed() {
    assert!(first_violation(PlantedBug::UnknownTakenForDead, 600).is_some());
}
