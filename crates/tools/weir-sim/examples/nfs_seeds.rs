//! Runs NFS clients with lost and repeated calls over a range of seeds, on a server that crashes.
//!
//! `cargo run --profile ci -p weir-sim --example nfs_seeds -- 100 40` runs the seeds 100 to 139.
//!
//! Not here: clients that use weir-fs directly (`file_seeds`).
//!
//! Invariant: a seed always runs the same steps.

#![expect(clippy::print_stdout, reason = "the report is the result")]

use std::error::Error;

use weir_sim::{NfsCounts, NfsScenario, run_nfs};

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let first = numbers.next().unwrap_or(Ok(1))?;
    let seeds = numbers.next().unwrap_or(Ok(1))?;
    let (mut all, mut failed) = (NfsCounts::default(), 0);
    for seed in first..first + seeds {
        match run_nfs(NfsScenario::of_seed(seed)) {
            Ok(counts) => all.add(counts),
            Err(what) => {
                println!("{what}");
                failed += 1;
            }
        }
    }
    println!("{seeds} seeds, {failed} failed: {all:?}");
    assert!(failed == 0 && all.crashes > 0, "the server crashed, and no seed failed");
    Ok(())
}
