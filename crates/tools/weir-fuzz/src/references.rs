//! Fuzzes the reference table: any bytes, and any entries after a valid header.
//!
//! The fuzz target does not check a table against the contents of its segment.
//!
//! Invariants: no panic; the blocks are sorted and each has references; an accepted table survives
//! encoding and decoding unchanged; each added or removed reference changes its counter by 1.

use weir_base::VsegId;
use weir_format::{REFERENCES_MAX, ReferenceTable};

const VSEG: VsegId = VsegId(7);
/// Length of the header, after which the number of blocks follows.
const HEAD_BYTES: usize = 16;

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    check(data);
    let mut bytes = ReferenceTable::default().encode(VSEG);
    bytes.truncate(HEAD_BYTES);
    bytes.extend(((data.len() / 8) as u32).to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend_from_slice(data);
    check(&bytes);
}

/// Tables with and without entries, and entries without a header.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut table = ReferenceTable::default();
    table.share(&[64, 64, 64, 128, 4096]);
    table.share(&[1]);
    let bytes = table.encode(VSEG);
    vec![bytes[HEAD_BYTES + 8..].to_vec(), bytes, ReferenceTable::unknown().encode(VSEG)]
}

fn check(bytes: &[u8]) {
    let Ok(mut table) = ReferenceTable::decode(bytes, VSEG) else { return };
    let again = ReferenceTable::decode(&table.encode(VSEG), VSEG);
    assert_eq!(again.as_ref().expect("an encoded table is valid"), &table);
    let entries: Vec<(u32, u32)> = table.entries().collect();
    assert!(entries.is_sorted_by(|a, b| a.0 < b.0));
    for (offset, count) in entries {
        assert!((1..=REFERENCES_MAX).contains(&count));
        assert_eq!(table.count(offset), Some(count));
        if count < REFERENCES_MAX {
            table.share(&[offset]);
            assert_eq!(table.give_up(offset), Some(count));
        }
        for left in (0..count.min(64)).rev() {
            let left = left + count.saturating_sub(64);
            assert_eq!(table.give_up(offset), Some(left));
        }
    }
}
