//! Cost figures of a run, and the node size that a rate needs.
//!
//! The profile contains the prices and the node sizes.
//!
//! Invariants: an advised node size has the margin of the profile left; above the largest size
//! there is no advice.

use serde::Serialize;

use crate::spec::{CostSpec, SizingSpec};
use crate::verdict::JudgedRun;

/// Row of the sizing table in the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SizeRow {
    /// Name of the cell, or `requirement`.
    pub name: String,
    /// Verdict on the cell; `None` in the row `requirement`, because its rate was not measured.
    pub verdict: Option<&'static str>,
    /// Operations per second.
    pub iops: f64,
    /// Payload in MiB per second; `None` if it was not measured.
    pub mib_s: Option<f64>,
    /// Operations per second plus the margin of the sizing table.
    pub with_margin_iops: f64,
    /// Smallest node size that sustains `with_margin_iops`; `None` if no size does.
    pub size: Option<String>,
}

/// Rows of the sizing table: first the requirement, then each measured cell. Empty if the spec
/// contains no node sizes.
pub fn sizes(run: &JudgedRun) -> Vec<SizeRow> {
    let spec = &run.result().spec;
    let Some(sizing) = &spec.sizing else { return Vec::new() };
    let row = |name: &str, verdict, iops: f64, mib_s| SizeRow {
        name: name.to_owned(),
        verdict,
        iops,
        mib_s,
        with_margin_iops: with_margin(sizing, iops),
        size: size_for(sizing, iops).map(str::to_owned),
    };
    let need = spec.require.as_ref().and_then(|require| require.iops);
    let cells = run.result().cells.iter().zip(run.cells());
    let measured = cells.filter(|(_, judged)| judged.summary.runs > 0).map(|(cell, judged)| {
        let summary = &judged.summary;
        let mib_s = Some(summary.mib_s.median);
        row(&cell.spec.name, Some(judged.verdict()), summary.iops.median, mib_s)
    });
    need.map(|need| row("requirement", None, need, None)).into_iter().chain(measured).collect()
}

/// Smallest node size that sustains `iops` with the margin of the sizing table.
pub fn size_for(sizing: &SizingSpec, iops: f64) -> Option<&str> {
    let needed = with_margin(sizing, iops);
    let mut sizes = sizing.bins_iops.iter().zip(&sizing.labels);
    sizes.find(|(bin, _)| needed <= **bin).map(|(_, label)| label.as_str())
}

/// Price in dollars for each GB of usable space; `None` if the space is 0.
pub fn usd_per_gb(cost: &CostSpec) -> Option<f64> {
    (cost.usable_gb > 0.0).then(|| cost.hardware_usd / cost.usable_gb)
}

/// Price in dollars for each operation per second; `None` if the rate is 0.
pub fn usd_per_iops(cost: &CostSpec, iops: f64) -> Option<f64> {
    (iops > 0.0).then(|| cost.hardware_usd / iops)
}

fn with_margin(sizing: &SizingSpec, iops: f64) -> f64 {
    let carried = 1.0 - sizing.margin_pct / 100.0;
    if carried > 0.0 { iops / carried } else { f64::INFINITY }
}
