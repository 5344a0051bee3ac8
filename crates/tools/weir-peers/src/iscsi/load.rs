//! Load of the iSCSI benchmark: a profile of rows that `weir bench` runs on a target.
//!
//! The rows are in `rows`, the targets in `servers`.
//!
//! Invariant: rows with and without flushes after writes are separate runs.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::rows::{ROWS, Row};
use super::servers::{Contestant, Servers, VOLUME_BYTES};
use crate::client::{self, Cpu};

/// Result of one row in one round.
pub(super) struct Sample {
    pub(super) row: &'static str,
    pub(super) ops_per_second: f64,
    pub(super) cpu_us_per_op: f64,
    pub(super) client_cpu_percent: f64,
}

/// Runs all rows of a target once.
pub(super) fn run(
    program: &Path,
    servers: &Servers,
    of: Contestant,
    seconds: u64,
    data: &Path,
) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for sync in [false, true] {
        let rows: Vec<&Row> = ROWS.iter().filter(|row| row.sync == sync && of.runs(row)).collect();
        if rows.is_empty() {
            continue;
        }
        let profile = data.join("profile.toml");
        fs::write(&profile, profile_of(&rows, seconds))?;
        let address = servers.address(of);
        let work = || client::run(program, &profile, &address, &data.join("run"));
        let (result, cpu) = Cpu::watch(servers.process(of), work)?;
        for row in rows {
            samples.push(sample(row, &result, &cpu)?);
        }
    }
    Ok(samples)
}

/// Returns the text of a profile with these rows, whose writes all have the same durability.
pub(super) fn profile_of(rows: &[&Row], seconds: u64) -> String {
    let writes = if rows.iter().any(|row| row.sync) {
        "writes = \"flush\", every_writes = 1"
    } else {
        "writes = \"none\""
    };
    let mut text = format!(
        "schema = 1\nname = \"iscsi\"\n\
         dataset = {{ files = 1, file_size = \"{VOLUME_BYTES}B\" }}\n\
         content = {{ compress = 1.0, dedupe_pct = 0, unit = \"4KiB\", seed = 42 }}\n\
         durability = {{ {writes} }}\n\
         [phases]\nfill = {{ block = \"1MiB\", in_flight = 8 }}\n\
         measure = {{ warmup = \"1s\", duration = \"{seconds}s\", runs = 1 }}\n"
    );
    for Row { name, pattern, block_bytes, read_pct, depth, .. } in rows {
        write!(
            text,
            "[[test]]\nname = \"{name}\"\npattern = \"{pattern}\"\nblock = \"{block_bytes}B\"\n\
             read_pct = {read_pct}\nqd = [{depth}]\n"
        )
        .expect("a String takes every write");
    }
    text
}

fn sample(row: &Row, result: &Value, cpu: &Cpu) -> Result<Sample> {
    let wanted = if row.read_pct > 0 { "read" } else { "write" };
    let figures = client::figures(result, cpu, row.name, &[wanted])?;
    Ok(Sample {
        row: row.name,
        ops_per_second: figures.ops_per_second,
        cpu_us_per_op: figures.server_cpu_us_per_op,
        client_cpu_percent: figures.client_cpu_percent,
    })
}
