//! Pagination of lists.
//!
//! The handler of a call returns its complete list, and this file reduces the list to one page;
//! `answers` limits the memory of responses.
//!
//! A page ends after [`PAGE_ENTRIES_MAX`] entries or [`PAGE_BYTES`] of JSON. The field `next` of a
//! page has the key of its last entry. A call with this key in `after` returns the entries behind
//! that entry. The server keeps no state between the calls for two pages.
//!
//! Invariant: each page except the last has at least one entry, so that a client reaches the end.

use std::io::{self, Write};

use serde::Serialize;
use weir_base::ErrorKind;

use super::request::Page;
use crate::limits::{PAGE_BYTES, PAGE_ENTRIES_MAX};
use crate::wire::ApiError;

/// A list that the server returns in pages.
pub(crate) trait Paged {
    /// Type of the entries.
    type Entry: Serialize;

    /// Returns the list's entries and its field `next`.
    fn parts(&mut self) -> (&mut Vec<Self::Entry>, &mut Option<String>);

    /// Returns the key of an entry; it is unique within the list.
    fn key(entry: &Self::Entry) -> String;

    /// True if `key` is the key of this entry.
    fn is(entry: &Self::Entry, key: &str) -> bool {
        Self::key(entry) == key
    }

    /// True if the list grows only at its end and loses entries only at its beginning. If the entry
    /// with the key in `after` is gone, all remaining entries are newer and belong to the next
    /// page.
    const GROWS: bool = false;
}

/// Implements [`Paged`] for a list whose entries have names.
macro_rules! paged {
    ($list:ident, $entries:ident: $entry:ident, $key:expr) => {
        impl crate::types::page::Paged for $list {
            type Entry = $entry;

            fn parts(&mut self) -> (&mut Vec<$entry>, &mut Option<String>) {
                (&mut self.$entries, &mut self.next)
            }

            fn key(entry: &$entry) -> String {
                let key: fn(&$entry) -> &str = $key;
                key(entry).to_owned()
            }
        }
    };
}

pub(super) use paged;

/// Counts the bytes of JSON text without storing them.
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

/// Reduces a list to the requested page.
///
/// # Errors
/// `NotFound` if no entry of the list has the key in `after`.
pub(crate) fn cut<L: Paged>(mut list: L, page: &Page) -> Result<L, ApiError> {
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

/// Returns the error for a page whose preceding entry was removed from the list.
pub fn gone(after: &str) -> ApiError {
    let message = format!("{after} is no longer in the list");
    ApiError::new(ErrorKind::NotFound, message).with_action("begin the list again, without `after`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{ExportList, HistoryEntry, HistoryList};

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
        let mut page = Page::default();
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
    fn page_of_long_entries_ends_early_with_at_least_one_entry() {
        let mut list = history(0..3);
        list.entries[0].call = "y".repeat(2 * PAGE_BYTES);
        let first = cut(list, &Page::default()).unwrap();
        assert_eq!(numbers(&first), [0]);
        let one = Page { after: None, limit: Some(0) };
        assert_eq!(numbers(&cut(history(0..3), &one).unwrap()), [0]);
    }

    #[test]
    fn missing_entry_restarts_a_history_and_refuses_other_lists() {
        let after = Some(HistoryList::key(&entry(3)));
        let page = Page { after, limit: None };
        assert_eq!(numbers(&cut(history(0..6), &page).unwrap()), [4, 5]);
        assert_eq!(numbers(&cut(history(5..7), &page).unwrap()), [5, 6]);
        let exports = ExportList { exports: Vec::new(), next: None };
        let refusal = cut(exports, &page).unwrap_err();
        assert_eq!(refusal.kind, ErrorKind::NotFound);
    }
}
