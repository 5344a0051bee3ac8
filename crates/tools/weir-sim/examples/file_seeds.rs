//! Cuts the power of filesystems over a range of seeds, and checks each recovered filesystem.
//!
//! `cargo run --release -p weir-sim --example file_seeds -- 100 40` runs the seeds 100 to 139.
//!
//! Not here: pools with volumes (`one_seed`, and the binary).
//!
//! Invariant: a seed always runs the same steps.

#![expect(clippy::print_stdout, reason = "the report is the result")]

use std::error::Error;

use weir_pool::PlantedBug;
use weir_sim::cut_files;

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let first = numbers.next().unwrap_or(Ok(1))?;
    let seeds = numbers.next().unwrap_or(Ok(1))?;
    let (mut cuts, mut lost) = (0, 0);
    for seed in first..first + seeds {
        let counted = cut_files(seed, PlantedBug::None)?;
        cuts += counted.cuts;
        lost += counted.lost;
    }
    println!("{seeds} seeds: {cuts} recoveries, {lost} of them lost changes");
    assert!(cuts > 0, "the power was cut");
    Ok(())
}
