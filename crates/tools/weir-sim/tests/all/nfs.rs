//! NFS clients with lost and repeated calls, on a server that crashes, and planted bugs.
//!
//! The simulation is in `weir_sim::files::nfs`.

use weir_pool::PlantedBug;
use weir_sim::{NfsCounts, NfsScenario, run_nfs};

/// Number of seeds of a run without a bug.
const SEEDS: u64 = 100;
/// Number of seeds within which a bug must be noticed.
const BUG_SEEDS: u64 = 40;

/// First violation that the clients or the checks notice.
fn noticed(bug: PlantedBug, seeds: u64) -> Option<String> {
    (1..=seeds).find_map(|seed| {
        let has_operator = seed.is_multiple_of(2);
        run_nfs(NfsScenario { has_operator, ..NfsScenario::new(seed, bug) }).err()
    })
}

#[test]
fn calls_run_once_and_acknowledged_changes_survive_crashes() {
    let mut all = NfsCounts::default();
    for seed in 1..=SEEDS {
        all.add(run_nfs(NfsScenario::of_seed(seed)).unwrap());
    }
    let NfsCounts { calls, crashes, lost, repeated, waited, forgotten, resent, .. } = all;
    assert!(calls > 40_000 && crashes > 200 && lost > 120, "{all:?}");
    assert!(repeated > 5_000 && waited > 500 && forgotten > 50 && resent > 300, "{all:?}");
    let NfsCounts { found_after_crash, twins, rewritten, lost_writes, .. } = all;
    assert!(found_after_crash > 10 && twins > 1_000, "{all:?}");
    assert!(rewritten > 500 && lost_writes > 200, "{all:?}");
    let NfsCounts { rollbacks, suspended, stale, .. } = all;
    assert!(rollbacks > 20 && suspended > 10 && stale > 300, "{all:?}");
}

#[test]
fn seed_repeats_a_run() {
    let run = || run_nfs(NfsScenario::of_seed(3)).unwrap();
    assert_eq!(run(), run());
}

#[test]
fn copy_of_a_call_that_runs_again_is_noticed() {
    let what = noticed(PlantedBug::RepliesForgotten, BUG_SEEDS).unwrap();
    assert!(what.contains("ran again") || what.contains("a copy of"), "{what}");
}

#[test]
fn reply_to_a_call_of_another_user_is_noticed() {
    let what = noticed(PlantedBug::CredentialIgnored, BUG_SEEDS).unwrap();
    assert!(what.contains("of user"), "{what}");
}

#[test]
fn verifier_that_outlives_a_crash_is_noticed() {
    let what = noticed(PlantedBug::VerifierStays, BUG_SEEDS).unwrap();
    assert!(what.contains("the verifier of a lost write"), "{what}");
}

#[test]
fn verifier_that_outlives_a_rollback_is_noticed() {
    let scenario = |seed| NfsScenario {
        has_operator: true,
        crashes: 0,
        ..NfsScenario::new(seed, PlantedBug::VerifierStays)
    };
    let what = (1..=BUG_SEEDS).find_map(|seed| run_nfs(scenario(seed)).err()).unwrap();
    assert!(what.contains("the verifier of a lost write"), "{what}");
}

#[test]
fn acknowledged_write_without_a_sync_is_noticed() {
    let what = noticed(PlantedBug::FileSyncNotSynced, BUG_SEEDS).unwrap();
    assert!(what.contains("has content"), "{what}");
}
