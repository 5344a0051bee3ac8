//! Lost records and misreading legs over a fixed list of seeds: no flushed or restored block is
//! lost, and the simulation detects planted bugs in the code for lost records.
//!
//! No other program runs this simulation; `make sim` runs scenarios only.

use weir_pool::PlantedBug;
use weir_sim::lose_records;

fn first_violation(bug: PlantedBug, seeds: u64) -> Option<String> {
    (1..=seeds).find_map(|seed| {
        std::panic::catch_unwind(|| lose_records(seed, bug))
            .unwrap_or_else(|_| Err(format!("seed {seed}: a panic")))
            .err()
    })
}

#[test]
fn lost_records_cost_no_flushed_or_restored_block() {
    assert_eq!(first_violation(PlantedBug::None, 120), None);
}

#[test]
fn dropping_logged_parts_of_unreadable_records_is_noticed() {
    assert!(first_violation(PlantedBug::ReplayDropsParts, 30).is_some());
}

#[test]
fn freeing_the_record_that_a_partial_record_replaced_is_noticed() {
    assert!(first_violation(PlantedBug::ReplacedFreed, 30).is_some());
}

#[test]
fn sharing_a_restored_block_with_its_lost_copy_is_noticed() {
    assert!(first_violation(PlantedBug::HintOutlivesDamage, 60).is_some());
}

#[test]
fn repair_that_writes_unverified_neighbours_is_detected() {
    assert!(first_violation(PlantedBug::NeighboursUnverified, 60).is_some());
}
