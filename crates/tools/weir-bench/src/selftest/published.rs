//! Checks that the published rows of the largest reference document are consistent, because reports
//! compare results with these rows.
//!
//! `reference` reads the rows.
//!
//! Invariant: the check covers every row except the fills; a row without figures is a fault.
//!
//! Theory. 128 workers (as in the profile) with a window of w have at most 128 w operations in
//! flight, and rate times mean latency is the number of operations in flight (Little's law).
//! Latencies are printed to 0.1 ms, so the check allows half of that before it calls a row
//! impossible. The minimum number in flight is not known; the published rows have 35 to 100 % of
//! the window in flight.

use super::{Item, Seen};
use crate::reference::{self, Row};

const FILE: &str = "s000-nexenta-vm.csv";
const ROWS: usize = 147;
const WORKERS: f64 = 128.0;
const LATENCY_STEP_MS: f64 = 0.1;
const IN_FLIGHT_PCT_MIN: f64 = 30.0;
const MIX_POINTS: f64 = 1.0;

pub(super) fn items() -> Vec<Item> {
    let wanted = "all rows are readable, consistent with Little's law, and within 1 point of their \
                  stated mix";
    vec![Item::new("147 published rows", wanted, |_| Ok(look()))]
}

fn look() -> Seen {
    let published = match reference::load(FILE) {
        Ok(published) => published,
        Err(error) => return Seen::of(false, error.to_string()),
    };
    let rows: Vec<&Row> = published.rows.iter().filter(|row| row.cell != "fill").collect();
    let wrong: Vec<String> = rows.iter().filter_map(|row| fault(row)).collect();
    let count = published.rows.len();
    let fills = count - rows.len();
    if let Some(first) = wrong.first() {
        return Seen::of(false, format!("{} of {count} rows are wrong: {first}", wrong.len()));
    }
    let off = rows.iter().filter_map(|row| Some((row.mix_pct()? - row.read_pct?).abs()));
    let off = off.fold(0.0, f64::max);
    let text =
        format!("{count} rows, {fills} of them fills; mixes deviate by at most {off:.2} points");
    Seen::of(count == ROWS, text)
}

/// Describes the fault of a published row; `None` if the row has no fault.
fn fault(row: &Row) -> Option<String> {
    let name = format!("{}, {}", row.table, row.cell);
    let figures = (row.total_ops_s, row.latency_ms, row.window, row.mix_pct(), row.read_pct);
    let (Some(ops_s), Some(latency_ms), Some(window), Some(mix), Some(read)) = figures else {
        return Some(format!("{name}: figures are missing"));
    };
    let possible = WORKERS * f64::from(window);
    let lowest = ops_s * (latency_ms - LATENCY_STEP_MS / 2.0) / 1000.0;
    let highest = ops_s * (latency_ms + LATENCY_STEP_MS / 2.0) / 1000.0;
    if lowest > possible || highest < possible * IN_FLIGHT_PCT_MIN / 100.0 {
        return Some(format!("{name}: {lowest:.0} in flight, at most {possible:.0} are possible"));
    }
    if (mix - read).abs() > MIX_POINTS {
        return Some(format!("{name}: {mix:.1} % reads instead of {read:.1} %"));
    }
    None
}
