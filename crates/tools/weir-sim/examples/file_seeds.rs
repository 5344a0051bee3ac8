//! Cuts the power of filesystems over a range of seeds, and checks each recovered pool.
//!
//! `cargo run --release -p weir-sim --example file_seeds -- 100 40` runs the seeds 100 to 139.
//!
//! Not here: pools with volumes (`one_seed`, and the binary).
//!
//! Invariant: a seed always runs the same steps.

#![expect(clippy::print_stdout, reason = "the report is the result")]

use std::error::Error;

use weir_sim::{FileCuts, FilesScenario, run_files};

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let first = numbers.next().unwrap_or(Ok(1))?;
    let seeds = numbers.next().unwrap_or(Ok(1))?;
    let mut all = FileCuts::default();
    for seed in first..first + seeds {
        all.add(run_files(FilesScenario::of_seed(seed))?);
    }
    println!("{seeds} seeds: {all:?}");
    assert!(all.cuts > 0, "the power was cut");
    Ok(())
}
