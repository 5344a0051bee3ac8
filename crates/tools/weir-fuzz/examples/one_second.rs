//! Runs the fuzz target of tree nodes for one second, without libFuzzer.
//!
//! `cargo run -p weir-fuzz --example one_second`
//!
//! `make fuzz` runs the targets guided by coverage.
//!
//! Invariant: the seed determines the mutated inputs.

#![expect(clippy::print_stdout, reason = "the count is the result")]

use std::time::Duration;

use weir_fuzz::{Plan, TARGETS, Watchdog, search};

fn main() {
    let target = TARGETS.iter().find(|target| target.name == "node").expect("it is a target");
    let watchdog = Watchdog::start(Duration::from_secs(10), 1 << 30, |input, what| {
        println!("{what}: an input of {} bytes", input.len());
        std::process::abort();
    });
    let plan = Plan { time: Duration::from_secs(1), seed: 1 };
    match search(target, &(target.seeds)(), plan, &watchdog) {
        Ok(tried) => println!("{} inputs, and no panic", tried.mutated),
        Err(failure) => panic!("{}: {:?}", failure.message, failure.input),
    }
}
