//! Notes on a cell: conditions that a reader of the figures should know, but that do not invalidate
//! the figures.
//!
//! `judge` finds the faults that invalidate a figure.
//!
//! Invariant: a note contains an observation with its figure, and never changes a verdict.

use crate::judge::SMALL_DEPTH;
use crate::result::{CellResult, RunResult};
use crate::spec::LoadSpec;
use crate::summary::CellSummary;

/// If the mean queue depth is below this percentage of the specified depth, the report contains a
/// note on the cell.
const IN_FLIGHT_PCT: f64 = 97.0;
/// If the hypervisor took at least this percentage of the cores, the report contains a note.
const STEAL_PCT: f64 = 2.0;
/// If processes other than the generator use at least this percentage of the cores, the report
/// contains a note. A server on this machine counts as such a process.
const OTHERS_PCT: f64 = 15.0;

/// Returns the notes on a cell.
pub(crate) fn of(result: &RunResult, cell: &CellResult, summary: &CellSummary) -> Vec<String> {
    let mut notes = Vec::new();
    if let LoadSpec::Closed { workers, depth } = cell.spec.load {
        let wanted = f64::from(workers) * f64::from(depth) * f64::from(cell.spec.clients.max(1));
        let (found, pct) = (summary.in_flight, 100.0 * summary.in_flight / wanted.max(1.0));
        if summary.runs > 0 && wanted >= SMALL_DEPTH && pct < IN_FLIGHT_PCT {
            let more = 100.0 * (wanted / found.max(1e-9) - 1.0);
            notes.push(format!(
                "Weir's generator kept {found:.1} of {wanted:.0} operations in flight, so the \
                 true rate may be up to {more:.0} % higher; more `workers` in the profile help"
            ));
        }
    }
    let worst = |share: fn(&crate::result::CellRun) -> f64| {
        cell.runs.iter().chain(cell.points.iter().map(|point| &point.run)).map(share)
    };
    let steal = worst(|run| run.steal_pct).fold(0.0, f64::max);
    if steal >= STEAL_PCT {
        notes.push(format!("the hypervisor took {steal:.0} % of this machine's cores"));
    }
    let others = worst(|run| run.others_pct).fold(0.0, f64::max);
    if others >= OTHERS_PCT {
        let whose = if is_local(&result.target.address) { ", including the server" } else { "" };
        notes.push(format!("other processes used {others:.0} % of this machine's cores{whose}"));
    }
    notes
}

/// True if the address belongs to a server on the machine of the generator.
pub(crate) fn is_local(address: &str) -> bool {
    let Some((scheme, rest)) = address.split_once("://") else { return false };
    let host = rest.split('/').next().unwrap_or_default();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    scheme.ends_with("+unix")
        || host.starts_with("127.")
        || host.starts_with("localhost")
        || host.starts_with("[::1]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn queue_depth_slightly_below_target_is_noted() {
        // By Little's law, 1,000 operations per second at 14.9 ms give 14.9 operations in flight,
        // of the specified 16.
        let run = || fixture::closed_run(1000, 10, 75, 14_900, 14_900);
        let result = fixture::result(vec![fixture::cell("row", vec![run(), run(), run()])]);
        let judged = crate::verdict::JudgedRun::of(result);
        assert_eq!(judged.cells()[0].verdict(), "valid", "{:?}", judged.cells()[0].remarks);
        let [note] = judged.cells()[0].notes.as_slice() else { panic!("one note") };
        assert_eq!(
            note,
            "Weir's generator kept 14.9 of 16 operations in flight, so the true rate may be up to \
             7 % higher; more `workers` in the profile help"
        );
    }

    #[test]
    fn cpu_use_by_hypervisor_and_others_is_noted() {
        let run = || crate::result::CellRun {
            steal_pct: 12.0,
            others_pct: 40.0,
            ..fixture::closed_run(1000, 10, 75, 16_000, 16_000)
        };
        let mut result = fixture::result(vec![fixture::cell("row", vec![run(), run(), run()])]);
        result.target.address = "nbd://127.0.0.1/tank/v".to_owned();
        let judged = crate::verdict::JudgedRun::of(result);
        let notes = judged.cells()[0].notes.join("; ");
        assert!(notes.contains("hypervisor took 12 %") && notes.contains("40 %"), "{notes}");
        assert!(notes.contains("including the server"), "{notes}");
        assert!(!is_local("nbd://store/tank/v") && !is_local("/dev/nbd0"));
        assert!(is_local("nbd+unix:///tank/v?socket=/run/nbd"));
        assert!(is_local("iscsi://user@[::1]/iqn/0"));
    }
}
