//! Points in a pool's history, and the check that refuses disks whose history ends earlier.
//!
//! The server records these points; `import::confirm` detects stale legs.
//!
//! Invariant: an import that knows such a point opens no older state without `force`
//! (docs/decisions/0020).

use std::time::Duration;

use weir_base::{Guid, Txg};
use weir_format::{LINEAGE_MAX, Uberblock};

use crate::disks::lineage::shared_with;
use crate::error::PoolError;

/// A point in a pool's history: a txg and the import epoch that committed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryPoint {
    /// Import epoch that committed the txg.
    pub import_epoch: Guid,
    /// The committed txg.
    pub txg: Txg,
    /// Wall clock when a server recorded the point; for messages only, never compared.
    pub unix_ms: u64,
}

impl HistoryPoint {
    /// Returns true if the history of an uberblock ends before this point or does not contain it. A
    /// history names at most [`LINEAGE_MAX`] import epochs. If the history names that many epochs
    /// and all of them began after this txg, the history counts as containing this point.
    pub(crate) fn is_missing_from(&self, uberblock: &Uberblock) -> bool {
        let lineage = &uberblock.lineage;
        match shared_with(self.import_epoch, lineage, uberblock.txg) {
            Some(shared) => shared < self.txg,
            None => {
                let is_cut = lineage.len() == LINEAGE_MAX;
                !lineage.last().is_some_and(|oldest| is_cut && oldest.first > self.txg)
            }
        }
    }

    /// Checks that a history that ends with `newest` contains this point. `by`: subject and verb of
    /// the clause that names the source of the point.
    ///
    /// # Errors
    /// `OlderThanSeen` if the history lacks this point.
    pub(crate) fn check(&self, newest: &Uberblock, pool: &str, by: &str) -> Result<(), PoolError> {
        if !self.is_missing_from(newest) {
            return Ok(());
        }
        Err(PoolError::OlderThanSeen {
            pool: pool.to_owned(),
            found: newest.txg,
            seen: self.txg,
            age: words_of(Duration::from_millis(self.unix_ms.saturating_sub(newest.unix_ms))),
            by: by.into(),
        })
    }
}

/// Formats a duration in its largest unit.
fn words_of(time: Duration) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400, "days"), (3_600, "hours"), (60, "minutes")];
    let seconds = time.as_secs();
    let unit = UNITS.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    let (unit, name) = unit.unwrap_or((1, "seconds"));
    format!("{} {name}", seconds / unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::open_pool::tests::uberblock;

    fn is_missing(import_epoch: u64, txg: u64, uberblock: &Uberblock) -> bool {
        let moment = HistoryPoint { import_epoch: Guid(import_epoch), txg: Txg(txg), unix_ms: 0 };
        moment.is_missing_from(uberblock)
    }

    #[test]
    fn history_contains_an_import_epoch_up_to_its_last_txg() {
        // Import epoch 7 committed txgs 5 to 9; epoch 8 commits from txg 10.
        let now = uberblock(12, &[(8, 10), (7, 5)]);
        assert!(!is_missing(8, 12, &now) && is_missing(8, 13, &now));
        assert!(!is_missing(7, 9, &now) && is_missing(7, 10, &now), "7 went on elsewhere");
        assert!(is_missing(9, 1, &now), "an opening that these disks never heard of");
    }

    #[test]
    fn truncated_history_contains_older_txgs() {
        let lineage: Vec<_> = (0..LINEAGE_MAX as u64).rev().map(|n| (100 + n, 50 + n)).collect();
        let now = uberblock(90, &lineage);
        assert!(!is_missing(1, 49, &now), "before the oldest opening that is named");
        assert!(is_missing(1, 50, &now));
    }

    #[test]
    fn durations_are_formatted_in_their_largest_unit() {
        let told = |seconds| words_of(Duration::from_secs(seconds));
        assert_eq!((told(59), told(7_200)), ("59 seconds".to_owned(), "2 hours".to_owned()));
        assert_eq!((told(119), told(90_000)), ("119 seconds".to_owned(), "25 hours".to_owned()));
    }
}
