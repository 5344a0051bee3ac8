//! Runs the simulated scenario of one seed: a pool under load, whose power is cut at many steps;
//! every recovered pool is checked.
//!
//! `cargo run --release -p weir-sim --example one_seed -- 7`; without a number it runs seed 1.
//!
//! Not here: many seeds, and memory over a long run (the binary; `make sim`).
//!
//! Invariant: a seed always runs the same steps.

#![expect(clippy::print_stdout, reason = "the report is the result")]

use std::error::Error;

use weir_pool::PlantedBug;
use weir_sim::{CoveragePoint, Effort, Scenario, enumerate};

fn main() -> Result<(), Box<dyn Error>> {
    let seed = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    let scenario = Scenario::of_seed(seed, PlantedBug::None);
    let (layout, room, trouble) = (scenario.layout, scenario.room, scenario.trouble);
    println!("seed {seed}: layout {layout:?}, space {room:?}, faults {trouble:?}");

    // An error names the step and the plan of the power cut, so that the user can repeat this cut.
    let report = enumerate(scenario, Effort::default())?;
    println!("{} steps, {} recovered pools checked", report.steps, report.recoveries);
    let covered = CoveragePoint::ALL.into_iter().filter(|at| report.coverage.count(*at) > 0);
    println!("covered: {:?}", covered.collect::<Vec<_>>());
    assert!(report.recoveries > 0, "the power was cut");
    Ok(())
}
