//! Offloaded operations: the target zeroes and clones 40 GiB.
//!
//! The figures come from `weir target selftest`, which also checks the correctness of the
//! operations.
//!
//! Invariant: a figure that is missing in the self-test's report is an error.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::servers::Servers;

const SECONDS_MAX: f64 = 1.0;
const WIRE_BYTES_MAX: f64 = 1e6;

/// Results of the operations: name, seconds, and bytes on the wire.
pub(super) struct Offloads(Vec<(&'static str, f64, f64)>);

/// Measures the offloaded operations of the target.
pub(super) fn measure(program: &Path, servers: &Servers) -> Result<Offloads> {
    let words = ["target", "selftest", "--pool", "bench", "--size", "40GiB", "--json"];
    let report: Value = serde_json::from_str(&servers.weir(program, &words)?)?;
    let tests = report["primitives"].as_array().context("no primitives")?;
    let figure = |(name, title)| {
        let test = tests.iter().find(|test| test["name"] == name);
        let test = test.with_context(|| format!("nothing of {name}"))?;
        let number = |key: &str| test[key].as_f64().with_context(|| format!("no {key} of {name}"));
        Ok((title, number("seconds")?, number("wire_bytes")?))
    };
    let wanted = [
        ("write-same", "zeroing 40 GiB by WRITE SAME"),
        ("copy", "cloning 40 GiB by EXTENDED COPY"),
    ];
    Ok(Offloads(wanted.into_iter().map(figure).collect::<Result<_>>()?))
}

impl Offloads {
    pub(super) fn rows(&self, text: &mut String) {
        for (title, seconds, wire_bytes) in &self.0 {
            let is_met = *seconds < SECONDS_MAX && *wire_bytes < WIRE_BYTES_MAX;
            let verdict = if is_met { "met" } else { "**missed**" };
            let kilobytes = wire_bytes / 1e3;
            writeln!(
                text,
                "| {title} | {seconds:.3} s, {kilobytes:.0} kB on the wire | < 1 s, < 1 MB: \
                 {verdict} |"
            )
            .expect("a String takes every write");
        }
    }
}
