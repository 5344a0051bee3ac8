//! Cost and savings of block sharing (block clones and dedupe), measured by an example of the
//! engine.
//!
//! crates/engine/weir-dataset/examples/sharing.rs performs the measurement.
//!
//! Invariant: a missing figure is an error, never a blank in the table.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use weir_command::command;

/// Results of the sharing measurement.
pub(super) struct Figures(Value);

/// Runs all sharing measurements.
pub(super) fn measure(data: &Path, rounds: usize) -> Result<Figures> {
    eprintln!("bench: range clones and dedupe");
    let mut cargo = command::command("cargo");
    cargo.args(["run", "-q", "--release", "-p", "weir-dataset", "--example", "sharing", "--"]);
    cargo.arg("--dir").arg(data).arg("--rounds").arg(rounds.max(5).to_string());
    Ok(Figures(serde_json::from_str(&command::output(&mut cargo)?)?))
}

fn judged(cell: &str, met: bool, bar: &str) -> String {
    let verdict = if met { "met" } else { "**missed**" };
    format!("{cell} ({bar}: {verdict})")
}

impl Figures {
    fn number(&self, group: &str, name: &str) -> Result<f64> {
        self.0[group][name].as_f64().with_context(|| format!("no figure {group}.{name}"))
    }

    /// Formats the table.
    pub(super) fn table(&self) -> Result<String> {
        let mut text = String::from("| shared blocks | |\n| --- | --- |\n");
        let mut row = |what: &str, cell: String| {
            writeln!(text, "| {what} | {cell} |").expect("a string takes every line");
        };
        let ms = self.number("clone", "clone_1gib_ms")?;
        row("range clone of 1 GiB, ms", judged(&format!("{ms:.1}"), ms < 100.0, "< 100"));
        let kib = |name: &str| self.number("clone", name).map(|bytes| bytes / 1024.0);
        let data = (kib("data_read_bytes")?, kib("data_written_bytes")?);
        let cell = format!("{:.0}, {:.0}", data.0, data.1);
        row("... KiB of data read, and written", judged(&cell, data.0 + data.1 == 0.0, "none"));
        let nodes = (kib("nodes_read_bytes")?, kib("nodes_written_bytes")?);
        row("... KiB of nodes read, and written", format!("{:.0}, {:.0}", nodes.0, nodes.1));
        let all = (kib("disk_read_bytes")?, kib("disk_written_bytes")?);
        row("... KiB of anything read, and written", format!("{:.0}, {:.0}", all.0, all.1));
        let rate = self.number("unique", "rate_on_by_off")?;
        let cell = judged(&format!("{rate:.2}"), rate >= 0.85, ">= 0.85");
        row("unique 4 KiB blocks with dedupe, rate by without", cell);
        let times = self.number("unique", "blocks_by_slots")?;
        row("... blocks written by slots of the index", format!("{times:.1}"));
        let resident = self.0["unique"]["resident_bytes"].as_array().context("no memory")?;
        let mib = |at: Option<&Value>| {
            at.and_then(Value::as_f64).map(|bytes| bytes / f64::from(1 << 20)).context("no memory")
        };
        // The caches are full after half of the measurement, so memory must not grow in the second
        // half.
        let (half, last) = (mib(resident.get(resident.len() / 2))?, mib(resident.last())?);
        let flat = judged(&format!("{half:.0}, {last:.0}"), last <= half * 1.02, "flat");
        row("... MiB of memory after half of the turns and after all", flat);
        for found in self.0["duplicates"].as_array().context("no duplicates")? {
            let number = |name: &str| found[name].as_f64().with_context(|| format!("no {name}"));
            let (unit, part) = (number("unit_bytes")? / 1024.0, number("duplicates_of_blocks")?);
            let share = number("found_of_duplicates")? * 100.0;
            let what = format!("{:.0} % duplicates in units of {unit} KiB, found", part * 100.0);
            row(&what, judged(&format!("{share:.1} %"), share >= 95.0, ">= 95 %"));
        }
        Ok(text)
    }
}
