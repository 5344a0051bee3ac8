//! Fuzzes the remap table: any bytes, and any hosts (segments that contain the moved blocks) and
//! runs after a valid header.
//!
//! The fuzz target does not check a table against the segments that the table refers to.
//!
//! Invariants: no panic; the runs are sorted, disjoint and inside a segment; an accepted table
//! translates every address to the same result as a linear search of its runs; the table survives
//! encoding and decoding, or a rebuild from its runs.

use weir_base::VsegId;
use weir_format::layout::{PACK_BYTES, SEGMENT_BYTES_MAX};
use weir_format::{RemapRun, RemapTable};

const VSEG: VsegId = VsegId(7);
/// Length of the magic number and the segment number.
const HEAD_BYTES: usize = 16;
const UNITS_MAX: u64 = SEGMENT_BYTES_MAX / PACK_BYTES as u64;

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    check(data);
    // The first byte is the number of hosts; hosts and runs follow.
    let Some((hosts, rest)) = data.split_first() else { return };
    let Some(runs) = rest.len().checked_sub(usize::from(*hosts) * 8) else { return };
    let mut bytes = RemapTable::default().encode(VSEG);
    bytes.truncate(HEAD_BYTES);
    bytes.extend(u32::from(*hosts).to_le_bytes());
    bytes.extend(((runs / RemapTable::RUN_BYTES as usize) as u32).to_le_bytes());
    bytes.extend_from_slice(rest);
    check(&bytes);
}

/// Tables with and without runs, and hosts and runs without a header.
pub fn seeds() -> Vec<Vec<u8>> {
    let run = |old, units, host, new| RemapRun { old, units, host: VsegId(host), new };
    let runs = vec![run(0, 64, 1, 128), run(64, 10, 1, 192), run(200, 64, 2, 0)];
    let bytes = RemapTable::new(runs).encode(VSEG);
    let hosts = [&[2], &bytes[HEAD_BYTES + 8..]].concat();
    vec![hosts, bytes, RemapTable::unknown().encode(VSEG)]
}

fn check(bytes: &[u8]) {
    let Ok(table) = RemapTable::decode(bytes, VSEG) else { return };
    let runs: Vec<RemapRun> = table.runs().collect();
    let mut end = 0;
    for run in &runs {
        assert!(run.units > 0 && run.old >= end, "{run:?} after {end}");
        end = run.old + run.units;
        assert!(u64::from(end) <= UNITS_MAX, "{run:?}");
        assert!(u64::from(run.new) + u64::from(run.units) <= UNITS_MAX, "{run:?}");
    }
    let merged = RemapTable::new(runs.clone());
    for run in &runs {
        let edges = [run.old.saturating_sub(1), run.old, run.old + run.units - 1];
        for (old, units) in edges.into_iter().flat_map(|old| [(old, 1), (old, run.units)]) {
            assert_eq!(table.translate(old, units), search(&runs, old, units), "{old} {units}");
        }
        // A block can span two runs that moved together. The original table does not translate the
        // address of such a block, but the merged table does.
        assert_eq!(merged.translate(run.old, run.units), Some((run.host, run.new)), "{run:?}");
    }
    let again = RemapTable::decode(&table.encode(VSEG), VSEG);
    assert_eq!(again.expect("an encoded table is valid"), table);
}

fn search(runs: &[RemapRun], old: u32, units: u32) -> Option<(VsegId, u32)> {
    let inside = |run: &&RemapRun| run.old <= old && old + units <= run.old + run.units;
    runs.iter().find(inside).map(|run| (run.host, run.new + (old - run.old)))
}
