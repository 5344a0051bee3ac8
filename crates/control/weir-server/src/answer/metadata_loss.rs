//! Describes unreadable metadata of a pool in sentences, for `weir pool status` and `weir check`.
//!
//! Metadata is the pool's own data: dataset directory and tables. Unreadable data of volumes is not
//! described here; `pool_status` lists such data as permanent errors.
//!
//! Invariant: each sentence names the unreadable metadata and the consequence for users.

use std::ops::Range;

use weir_base::size::Human;
use weir_dataset::{Engine, LostDatasets};
use weir_pool::LostTables;

/// Returns one sentence for each kind of unreadable metadata; empty if all metadata is readable.
pub fn words(engine: &Engine) -> Vec<String> {
    let mut words = of_datasets(&engine.lost_datasets());
    words.extend(of_tables(&engine.pool().lost_tables()));
    words
}

fn of_datasets(lost: &LostDatasets) -> Vec<String> {
    let LostDatasets { numbers, orphans, properties } = lost;
    let mut words = Vec::new();
    if !numbers.is_empty() {
        let numbers = numbers.iter().map(one_range).collect::<Vec<_>>().join(", ");
        words.push(format!(
            "the records of the datasets with the numbers {numbers} cannot be read from any disk: \
             those volumes, snapshots and bookmarks cannot be opened, and their space stays in use"
        ));
    }
    if !orphans.is_empty() {
        let names = orphans.join(", ");
        words.push(format!("the volume of these snapshots or bookmarks cannot be read: {names}"));
    }
    if *properties {
        words.push("the properties that were set on the pool itself cannot be read".to_owned());
    }
    words
}

fn of_tables(lost: &LostTables) -> Vec<String> {
    let LostTables { segment_parts, withheld_bytes, remap_tables, reference_tables } = *lost;
    let mut words = Vec::new();
    if segment_parts > 0 {
        words.push(format!(
            "{segment_parts} parts of the segment table cannot be read from any disk: blocks in \
             the segments they describe cannot be found, and {} that may hold them are not written",
            Human(withheld_bytes)
        ));
    }
    if remap_tables > 0 {
        words.push(format!(
            "the remap tables of {remap_tables} cleaned segments cannot be read from any disk: \
             blocks that were moved from these cannot be found"
        ));
    }
    if reference_tables > 0 {
        words.push(format!(
            "the reference tables of {reference_tables} segments cannot be read from any disk: \
             space freed in these segments is not reclaimed"
        ));
    }
    words
}

fn one_range(range: &Range<u64>) -> String {
    match range.end - range.start {
        1 => range.start.to_string(),
        _ => format!("{} to {}", range.start, range.end - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_name_the_loss_and_its_consequence() {
        let numbers = vec![3..4, 128..256];
        let datasets = LostDatasets { numbers, orphans: vec!["s".to_owned()], properties: true };
        let words = of_datasets(&datasets);
        assert_eq!(words.len(), 3);
        assert!(words[0].contains("3, 128 to 255"), "{words:?}");
        let tables = LostTables {
            segment_parts: 1,
            withheld_bytes: 1 << 20,
            remap_tables: 2,
            reference_tables: 3,
        };
        assert_eq!(of_tables(&tables).len(), 3);
        assert!(of_tables(&LostTables::default()).is_empty());
    }
}
