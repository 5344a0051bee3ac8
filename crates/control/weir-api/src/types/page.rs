//! Lists that are answered a page at a time.
//!
//! Not here: which entries a list has (the calls), memory of answers (`answers`).
//!
//! A page ends after [`PAGE_ENTRIES_MAX`] entries or [`PAGE_BYTES`] of JSON. Its `next` names the
//! last entry, and the call with `after` of that value begins behind it. No state is kept between
//! two pages.
//!
//! Invariant: each page but the last has an entry at least, so that a client comes to the end.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use weir_base::ErrorKind;

use super::{
    Bookmark, BookmarkList, Export, ExportList, HistoryEntry, HistoryList, Replication,
    ReplicationList, Schedule, ScheduleList, Snapshot, SnapshotList, Target, TargetList, Volume,
    VolumeList,
};
use crate::limits::{PAGE_BYTES, PAGE_ENTRIES_MAX};
use crate::wire::ApiError;

/// Which part of a list to answer.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct PageQuery {
    /// `next` of the page before.
    pub(crate) after: Option<String>,
    /// At most this many entries.
    pub(crate) limit: Option<usize>,
}

/// A list that is answered a page at a time.
pub(crate) trait Paged {
    /// Type of the entries.
    type Entry: Serialize;

    /// Its entries, and where it continues.
    fn parts(&mut self) -> (&mut Vec<Self::Entry>, &mut Option<String>);

    /// Text that tells an entry from the others.
    fn key(entry: &Self::Entry) -> String;

    /// Whether an entry has this key.
    fn is(entry: &Self::Entry, key: &str) -> bool {
        Self::key(entry) == key
    }

    /// True if the list grows at its end and loses entries at its beginning only: where the entry
    /// of `after` is gone, all others are newer.
    const GROWS: bool = false;
}

macro_rules! paged {
    ($($list:ident, $entries:ident: $entry:ident, $key:expr;)*) => {$(
        impl Paged for $list {
            type Entry = $entry;

            fn parts(&mut self) -> (&mut Vec<$entry>, &mut Option<String>) {
                (&mut self.$entries, &mut self.next)
            }

            fn key(entry: &$entry) -> String {
                let key: fn(&$entry) -> &str = $key;
                key(entry).to_owned()
            }
        }
    )*};
}

paged! {
    VolumeList, volumes: Volume, |entry| &entry.name;
    SnapshotList, snapshots: Snapshot, |entry| &entry.name;
    BookmarkList, bookmarks: Bookmark, |entry| &entry.name;
    ExportList, exports: Export, |entry| &entry.name;
    TargetList, targets: Target, |entry| &entry.name;
    ScheduleList, schedules: Schedule, |entry| &entry.name;
    ReplicationList, replications: Replication, |entry| &entry.volume;
}

impl Paged for HistoryList {
    type Entry = HistoryEntry;

    fn parts(&mut self) -> (&mut Vec<HistoryEntry>, &mut Option<String>) {
        (&mut self.entries, &mut self.next)
    }

    /// Entries have no names, so the key is a checksum of all fields.
    fn key(entry: &HistoryEntry) -> String {
        let mut sum = Sum(0xcbf2_9ce4_8422_2325);
        // A sum takes every byte.
        drop(serde_json::to_writer(&mut sum, entry));
        format!("{}-{:016x}", entry.unix_ms, sum.0)
    }

    fn is(entry: &HistoryEntry, key: &str) -> bool {
        let time = key.split('-').next().and_then(|time| time.parse().ok());
        time == Some(entry.unix_ms) && Self::key(entry) == key
    }

    const GROWS: bool = true;
}

/// FNV-1a, which is enough to tell entries of one millisecond apart.
struct Sum(u64);

impl Write for Sum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, add);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Counts bytes of JSON without keeping them.
struct Length(usize);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The page of a list that was asked for.
///
/// # Errors
/// `NotFound` if the entry of `after` is no longer in the list.
pub(crate) fn cut<L: Paged>(mut list: L, page: &PageQuery) -> Result<L, ApiError> {
    let (entries, next) = list.parts();
    if let Some(after) = &page.after {
        match entries.iter().rposition(|entry| L::is(entry, after)) {
            Some(at) => drop(entries.drain(..=at)),
            None if L::GROWS => {}
            None => return Err(gone(after)),
        }
    }
    let most = page.limit.unwrap_or(PAGE_ENTRIES_MAX).clamp(1, PAGE_ENTRIES_MAX);
    let (mut count, mut length) = (0, Length(0));
    for entry in entries.iter().take(most) {
        drop(serde_json::to_writer(&mut length, entry));
        count += 1;
        if length.0 >= PAGE_BYTES {
            break;
        }
    }
    if count < entries.len() {
        entries.truncate(count);
        entries.shrink_to_fit();
        *next = entries.last().map(L::key);
    }
    Ok(list)
}

/// The error of a page behind an entry that was removed.
pub fn gone(after: &str) -> ApiError {
    let message = format!("{after} is no longer in the list");
    ApiError::new(ErrorKind::NotFound, message).with_action("begin the list again, without `after`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64) -> HistoryEntry {
        HistoryEntry {
            times: 1,
            unix_ms: 7,
            took_ms: number,
            who: "uid 0".into(),
            pool: "tank".into(),
            call: "x".repeat(50),
            outcome: "created".into(),
            error: None,
        }
    }

    fn history(numbers: std::ops::Range<u64>) -> HistoryList {
        HistoryList { pool: "tank".into(), entries: numbers.map(entry).collect(), next: None }
    }

    fn numbers(list: &HistoryList) -> Vec<u64> {
        list.entries.iter().map(|entry| entry.took_ms).collect()
    }

    #[test]
    fn pages_have_every_entry_once_and_end() {
        let mut all = Vec::new();
        let mut page = PageQuery::default();
        loop {
            let list = cut(history(0..2500), &page).unwrap();
            assert!(list.entries.len() <= PAGE_ENTRIES_MAX);
            all.extend(numbers(&list));
            page.after = list.next;
            if page.after.is_none() {
                break;
            }
        }
        assert_eq!(all, (0..2500).collect::<Vec<_>>());
    }

    #[test]
    fn page_of_long_entries_ends_early_and_has_one_at_least() {
        let mut list = history(0..3);
        list.entries[0].call = "y".repeat(2 * PAGE_BYTES);
        let first = cut(list, &PageQuery::default()).unwrap();
        assert_eq!(numbers(&first), [0]);
        let one = PageQuery { after: None, limit: Some(0) };
        assert_eq!(numbers(&cut(history(0..3), &one).unwrap()), [0]);
    }

    #[test]
    fn missing_entry_restarts_a_history_and_refuses_other_lists() {
        let after = Some(HistoryList::key(&entry(3)));
        let page = PageQuery { after, limit: None };
        assert_eq!(numbers(&cut(history(0..6), &page).unwrap()), [4, 5]);
        assert_eq!(numbers(&cut(history(5..7), &page).unwrap()), [5, 6]);
        let exports = ExportList { exports: Vec::new(), next: None };
        let refusal = cut(exports, &page).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::NotFound);
    }
}
