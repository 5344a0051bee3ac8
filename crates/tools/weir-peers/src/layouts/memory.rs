//! RAM that a server needs for a large volume, after the volume is written and after it is
//! overwritten at random.
//!
//! weir-dataset/examples/large_volume.rs performs the measurement: it runs the engine on a disk
//! that stores no data in RAM.
//!
//! Invariant: the figures for each TiB are extrapolated from the measured volume. Memory that
//! `--memory` limits is shown as measured.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_command::command;

use crate::document::judged;

const PACKAGE: [&str; 5] = ["--release", "--package", "weir-dataset", "--example", "large_volume"];
const GIBIBYTES: u64 = 16;
/// Memory of the server in MiB (`--memory`): so little that the map (128 MiB) and the remap tables
/// of a volume of [`GIBIBYTES`] compete for it.
const MEMORY_MEBIBYTES: u64 = 256;
/// Amount of data to overwrite, as a multiple of the volume's size.
const OVERWRITES: u64 = 2;
const MIB: f64 = (1 << 20) as f64;
const TIB: f64 = (1_u64 << 40) as f64;

/// Memory figures of the server at one point in time.
struct Stage(Value);

impl Stage {
    fn number(&self, name: &str) -> Result<f64> {
        self.0[name].as_f64().with_context(|| format!("no {name} in {}", self.0))
    }

    fn per_tib(&self, name: &str) -> Result<f64> {
        Ok(self.number(name)? / self.number("volume_bytes")? * TIB)
    }
}

/// All figures of the memory measurement.
pub(super) struct Figures {
    written: Stage,
    overwritten: Stage,
}

/// Runs the memory measurement, with the files of the disk under `data`.
pub(super) fn measure(data: &Path) -> Result<Figures> {
    eprintln!("bench: memory of {GIBIBYTES} GiB, written and overwritten {OVERWRITES} x");
    let sizes = [GIBIBYTES, MEMORY_MEBIBYTES, OVERWRITES].map(|size| size.to_string());
    let mut program = command::command("cargo");
    program.args(["run", "--quiet"]).args(PACKAGE).arg("--").arg(data).args(sizes);
    of_lines(&command::output(&mut program)?)
}

fn of_lines(lines: &str) -> Result<Figures> {
    let stages = lines.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
    let last = |name: &str| {
        let stage = stages.iter().rev().find(|stage| stage["stage"] == name);
        stage.cloned().map(Stage).with_context(|| format!("no stage {name}"))
    };
    let figures = Figures { written: last("written")?, overwritten: last("overwritten")? };
    let whole = figures.written.number("used_bytes")? / figures.written.number("volume_bytes")?;
    ensure!((whole - 1.0).abs() < 1e-9, "the volume was not written in full: {whole}");
    Ok(figures)
}

impl Figures {
    /// Formats the table with its bar (the required value).
    pub(super) fn table(&self) -> Result<String> {
        let mut text = String::from("| RAM of a large volume | written | overwritten |\n");
        text.push_str("| --- | --- | --- |\n");
        let mut row = |what: &str, cell: &dyn Fn(&Stage) -> Result<String>| -> Result<()> {
            let (written, overwritten) = (cell(&self.written)?, cell(&self.overwritten)?);
            writeln!(text, "| {what} | {written} | {overwritten} |")?;
            Ok(())
        };
        row("resident memory, highest so far, by `--memory`", &|stage| {
            let ratio = stage.number("peak_bytes")? / MIB / MEMORY_MEBIBYTES as f64;
            Ok(judged(ratio, ratio <= 1.0, "<= 1"))
        })?;
        for (what, name) in [
            ("of that tree nodes in the cache", "node_cache_bytes"),
            ("blocks in the cache", "data_cache_bytes"),
            ("remap tables", "table_bytes"),
        ] {
            row(what, &|stage| Ok(format!("{:.1} MiB", stage.number(name)? / MIB)))?;
        }
        for (what, name) in [
            ("segment table, per TiB", "segment_bytes"),
            ("list of the remap tables, per TiB", "list_bytes"),
            ("remap tables on disk, per TiB", "stored_table_bytes"),
        ] {
            row(what, &|stage| Ok(format!("{:.1} MiB", stage.per_tib(name)? / MIB)))?;
        }
        writeln!(
            text,
            "\nThe engine alone, on a disk that keeps its content in files: a volume of \
             {GIBIBYTES} GiB of incompressible 4 KiB blocks, {} MiB of map, `--memory` \
             {MEMORY_MEBIBYTES} MiB; then {OVERWRITES} x overwritten at random with the pool \
             80 % live. Segment table and list grow with the pool and are in RAM; map and remap \
             tables are cached.",
            GIBIBYTES * 8,
        )?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(stage: &str, used: u64, peak_mib: u64) -> String {
        format!(
            "{{\"stage\":\"{stage}\",\"volume_bytes\":1073741824,\"used_bytes\":{used},\
             \"peak_bytes\":{},\"node_cache_bytes\":1,\"data_cache_bytes\":1,\"table_bytes\":1,\
             \"segment_bytes\":1024,\"list_bytes\":1,\"stored_table_bytes\":1}}",
            peak_mib << 20
        )
    }

    #[test]
    fn memory_above_the_budget_misses_the_bar() {
        let written = [line("written", 1, 1), line("written", 1 << 30, 100)].join("\n");
        let text = format!("{written}\n{}", line("overwritten", 1 << 30, 512));
        let table = of_lines(&text).unwrap().table().unwrap();
        assert!(table.contains("0.39 (<= 1: met) | 2.00 (<= 1: **missed**)"), "{table}");
        assert!(table.contains("segment table, per TiB | 1.0 MiB"), "{table}");
    }

    #[test]
    fn partly_written_volume_is_an_error() {
        let text = [line("written", 1 << 29, 1), line("overwritten", 1 << 29, 1)].join("\n");
        assert!(of_lines(&text).is_err());
    }
}
