//! Describes in words which share of the data of a run was verified.
//!
//! `load` and `verify` perform the verification.
//!
//! Invariant: each share names its total (reads, bytes or blocks) and how the data was compared
//! (only the stamp, or every byte).

use crate::result::{CellResult, Coverage, RunResult};

/// Describes the verified share of the reads of all cells.
pub(crate) fn of_reads(result: &RunResult) -> String {
    let mut all = Coverage::default();
    result.cells.iter().flat_map(CellResult::measured).for_each(|run| all.add(&run.coverage));
    if all.reads == 0 {
        return "no reads".to_owned();
    }
    format!(
        "{} % of the reads by the stamp of at least one block, {} % of their bytes byte by byte",
        pct(all.checked_reads, all.reads),
        pct(all.compared_bytes, all.bytes)
    )
}

/// Describes the share of the blocks that the verification read after the last run.
pub(crate) fn of_blocks(result: &RunResult) -> String {
    let Some(found) = result.cells.iter().find_map(|cell| cell.verified.as_ref()) else {
        return "nothing".to_owned();
    };
    let asked = result.spec.cells.iter().map(|cell| cell.verify_pct).fold(0.0, f64::max);
    format!("{asked} % of the blocks, {} in all, byte by byte", found.blocks)
}

/// Percentage with one decimal, rounded down, so that "100 %" means all.
fn pct(part: u64, whole: u64) -> f64 {
    let tenths = u128::from(part) * 1000 / u128::from(whole.max(1));
    tenths as f64 / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::result::Verification;

    #[test]
    fn report_names_verified_shares_of_reads_and_bytes() {
        let mut cell = fixture::cell("row", vec![fixture::closed_run(1000, 10, 75, 1000, 3000)]);
        cell.spec.verify_pct = 1.0;
        assert_eq!(of_reads(&fixture::result(vec![cell.clone()])), "no reads");
        let (reads, checked_reads, bytes, compared_bytes) = (3000, 2999, 1 << 20, 1 << 15);
        cell.runs[0].coverage = Coverage { reads, checked_reads, bytes, compared_bytes };
        cell.verified = Some(Verification { blocks: 20, ..Verification::default() });
        let result = fixture::result(vec![cell]);
        let said = of_reads(&result);
        assert!(
            said.starts_with("99.9 % of the reads") && said.contains("3.1 % of their"),
            "{said}"
        );
        assert_eq!(of_blocks(&result), "1 % of the blocks, 20 in all, byte by byte");
    }
}
