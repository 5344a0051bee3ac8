//! Measures one cell on a temporary file, 4 KiB random reads for 1 s, and prints its verdict.
//!
//! `cargo run --release -p weir-bench --example one_cell`
//!
//! Invariant: no figure is printed without the verdict of its cell.

#![expect(clippy::print_stdout, reason = "the verdict is the result")]

use std::error::Error;

use weir_bench::clients::Clients;
use weir_bench::profile::{self, Options};
use weir_bench::result::RunResult;
use weir_bench::run::{Before, Observer, run};
use weir_bench::target::{self, Address};
use weir_bench::verdict::JudgedRun;

/// One run of one second is too short for valid figures, so the verdict is under-sampled.
const PROFILE: &str = r#"schema = 1
name = "one-cell"
dataset = { files = 1, file_size = "64MiB" }
content = { compress = 1.0, dedupe_pct = 0, unit = "4KiB", seed = 42 }
durability = { writes = "none" }
phases = { measure = { warmup = "100ms", duration = "1s", runs = 1 } }
[[test]]
name = "random read 4KiB"
pattern = "random"
block = "4KiB"
read_pct = 100
qd = [8]
"#;

/// Observer that prints nothing and never stops the run.
struct Quiet;

impl Observer for Quiet {
    fn begins(&mut self, _what: &str, _run: u32, _of: u32) {}
    fn done(&mut self, _part: f64) {}
    fn goes_on(&mut self) -> bool {
        true
    }
    fn keep(&mut self, _result: &RunResult) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = tempfile::NamedTempFile::new()?;
    let spec = profile::parse("one_cell.rs", PROFILE, &Options::default())?;
    let target = target::open(&Address::File(file.path().to_owned()), &spec.dataset)?;
    let result = run(&spec, &*target, &Clients::none(), vec![], Before::default(), &mut Quiet)?;
    let judged = JudgedRun::of(result);
    let cell = &judged.cells()[0];
    println!("{:.0} IOPS, verdict: {}", cell.summary.iops.median, cell.verdict());
    Ok(())
}
