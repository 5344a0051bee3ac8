//! The history of every pool: its changing calls, saved in the state directory.
//!
//! `call_record` adds the entries. Each successful call has its own entry. Failed calls are
//! counted: one entry for each caller, pool, call and error, so that a caller adds few entries.
//!
//! Invariants:
//! - an entry is on stable media when `add` returns, or the log has an error. The count of a
//!   repeated failure is written at most once a minute;
//! - at most [`KEPT_MAX`] entries are successful calls, at most [`COUNTED_MAX`] are failed calls.
//!   Above these limits the caller, or caller and pool, with the most entries loses its oldest;
//! - the file has at most twice as many lines as entries;
//! - an unreadable line, for example after a crash, loses only that line.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use weir_api::types::HistoryEntry;

use super::json_lines;

/// Maximum number of listed calls of all pools: enough for years of administration, in a few MiB.
const KEPT_MAX: usize = 20_000;
/// Maximum number of history entries that count failed calls.
const COUNTED_MAX: usize = 1000;
/// Maximum length of the text of a call or an error.
const TEXT_MAX: usize = 1000;
/// Minimum interval between two writes of the same count to the file.
const COUNT_WRITTEN_EVERY_MS: u64 = 60_000;

/// The recorded calls of all pools, with their file.
pub(crate) struct History {
    path: PathBuf,
    kept: Mutex<Kept>,
}

/// Key of an entry that counts failed calls: caller, pool, call and error.
type Key = (String, String, String, String);

#[derive(Default)]
struct Kept {
    listed: VecDeque<HistoryEntry>,
    counted: BTreeMap<Key, Counted>,
    /// Number of lines in the file.
    lines: usize,
}

struct Counted {
    entry: HistoryEntry,
    written_unix_ms: u64,
}

/// Returns the caller without its address, because a caller can change its address at will.
fn caller_of(entry: &HistoryEntry) -> &str {
    entry.who.split(" from ").next().unwrap_or_default()
}

fn key_of(entry: &HistoryEntry) -> Key {
    let verbs: Vec<&str> = entry.call.split(' ').take(2).collect();
    let words = [caller_of(entry), &entry.pool, &verbs.join(" "), &entry.outcome];
    words.map(str::to_owned).into()
}

impl Kept {
    /// Adds an entry from a line of the file.
    fn read(&mut self, entry: HistoryEntry) {
        if entry.error.is_none() {
            self.listed.push_back(entry);
            return;
        }
        let times = match self.counted.get(&key_of(&entry)) {
            // The file can have several lines for one entry. Each line has in `times` the number of
            // all failed calls so far, so the newest line is enough. Older servers wrote a line for
            // each failed call: `times` then does not grow from line to line, so add the numbers.
            Some(before) if entry.times <= before.entry.times => before.entry.times + entry.times,
            _ => entry.times,
        };
        let written_unix_ms = entry.unix_ms;
        let counted = Counted { entry: HistoryEntry { times, ..entry }, written_unix_ms };
        self.counted.insert(key_of(&counted.entry), counted);
    }

    /// Counts a failed call. Returns the entry with the count if it must be written to the file
    /// now.
    fn count(&mut self, entry: HistoryEntry) -> Option<HistoryEntry> {
        let key = key_of(&entry);
        let Some(known) = self.counted.get_mut(&key) else {
            self.make_room_for_count();
            let counted = Counted { written_unix_ms: entry.unix_ms, entry: entry.clone() };
            self.counted.insert(key, counted);
            return Some(entry);
        };
        known.entry = HistoryEntry { times: known.entry.times + 1, ..entry };
        let due = known.written_unix_ms.saturating_add(COUNT_WRITTEN_EVERY_MS);
        // If the clock was set back, the count is also written now.
        let is_due = known.entry.unix_ms >= due || known.entry.unix_ms < known.written_unix_ms;
        is_due.then(|| {
            known.written_unix_ms = known.entry.unix_ms;
            known.entry.clone()
        })
    }

    /// Evicts the oldest failed-call entry of the caller with the most failed-call entries.
    fn make_room_for_count(&mut self) {
        while self.counted.len() >= COUNTED_MAX {
            let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
            for key in self.counted.keys() {
                *sizes.entry(&key.0).or_default() += 1;
            }
            let largest = sizes.iter().max_by_key(|(_, size)| **size).map(|(caller, _)| *caller);
            let of_largest = self.counted.iter().filter(|(key, _)| Some(key.0.as_str()) == largest);
            let oldest = of_largest.min_by_key(|(_, counted)| counted.entry.unix_ms);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { return };
            self.counted.remove(&oldest);
        }
    }

    /// If there are more than [`KEPT_MAX`] successful calls, evicts an eighth of them. The caller
    /// and pool with the most entries lose their oldest entries first.
    fn trim(&mut self) {
        if self.listed.len() <= KEPT_MAX {
            return;
        }
        let mut excess = self.listed.len() - (KEPT_MAX - KEPT_MAX / 8);
        let group = |entry: &HistoryEntry| (caller_of(entry).to_owned(), entry.pool.clone());
        let mut sizes: BTreeMap<(String, String), usize> = BTreeMap::new();
        for entry in &self.listed {
            *sizes.entry(group(entry)).or_default() += 1;
        }
        // `keeps` has the number of entries that each group of one caller and pool keeps. Reduce
        // the largest groups to a common size until the excess is gone.
        let mut keeps: Vec<usize> = sizes.values().copied().collect();
        keeps.sort_unstable();
        while excess > 0 {
            let largest = keeps[keeps.len() - 1];
            let same = keeps.iter().rev().take_while(|size| **size == largest).count();
            let next = keeps.len().checked_sub(same + 1).map_or(0, |at| keeps[at]);
            let step = (largest - next).min(excess.div_ceil(same)).max(1);
            let from = keeps.len() - same;
            keeps[from..].iter_mut().for_each(|size| *size -= step);
            excess = excess.saturating_sub(step * same);
        }
        let most = keeps[keeps.len() - 1];
        let mut surplus: BTreeMap<(String, String), usize> =
            sizes.into_iter().map(|(group, size)| (group, size.saturating_sub(most))).collect();
        self.listed.retain(|entry| match surplus.get_mut(&group(entry)) {
            Some(left) if *left > 0 => {
                *left -= 1;
                false
            }
            _ => true,
        });
    }

    fn all(&self) -> impl Iterator<Item = &HistoryEntry> {
        self.listed.iter().chain(self.counted.values().map(|counted| &counted.entry))
    }
}

impl History {
    /// Reads the file; a missing file is an empty history.
    pub(crate) fn load(dir: &Path) -> Self {
        let path = dir.join("history.jsonl");
        let mut kept = Kept::default();
        json_lines::read(&path, "history").into_iter().for_each(|entry| kept.read(entry));
        let history = Self { path, kept: Mutex::new(kept) };
        // The rewrite also removes an incomplete last line, so that the next entry starts a new
        // line.
        let cut = history.rewrite(&mut history.kept.lock());
        if let Err(error) = cut {
            tracing::warn!(%error, path = %history.path.display(), "history not written");
        }
        history
    }

    /// Adds a call to the history. Blocks for a write to the state directory.
    pub(crate) fn add(&self, mut entry: HistoryEntry) {
        entry.call = shortened(entry.call);
        entry.error = entry.error.map(shortened);
        let mut kept = self.kept.lock();
        let line = if entry.error.is_some() {
            let Some(due) = kept.count(entry) else { return };
            due
        } else {
            kept.listed.push_back(entry.clone());
            entry
        };
        let is_full = kept.listed.len() > KEPT_MAX || kept.lines >= 2 * (KEPT_MAX + COUNTED_MAX);
        let written = if is_full { self.rewrite(&mut kept) } else { self.append(&line, &mut kept) };
        if let Err(error) = written {
            tracing::warn!(%error, path = %self.path.display(), "history not written");
        }
    }

    fn append(&self, entry: &HistoryEntry, kept: &mut Kept) -> io::Result<()> {
        kept.lines += 1;
        let line = json_lines::text([entry])?;
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        file.write_all(&line)?;
        file.sync_data()
    }

    fn rewrite(&self, kept: &mut Kept) -> io::Result<()> {
        kept.trim();
        kept.lines = kept.listed.len() + kept.counted.len();
        let text = json_lines::text(kept.all())?;
        let new = self.path.with_extension("jsonl.new");
        let mut file = File::create(&new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }

    /// Returns the entries of one pool, oldest first.
    pub(crate) fn of(&self, pool: &str) -> Vec<HistoryEntry> {
        self.matching(|entry| entry.pool == pool)
    }

    /// Returns the entries of all pools, oldest first.
    pub(crate) fn of_all(&self) -> Vec<HistoryEntry> {
        self.matching(|_| true)
    }

    fn matching(&self, matches: impl Fn(&HistoryEntry) -> bool) -> Vec<HistoryEntry> {
        let kept = self.kept.lock();
        let mut all: Vec<_> = kept.all().filter(|entry| matches(entry)).cloned().collect();
        all.sort_by_key(|entry| entry.unix_ms);
        all
    }
}

fn shortened(text: String) -> String {
    if text.chars().count() <= TEXT_MAX {
        return text;
    }
    text.chars().take(TEXT_MAX - 3).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pool: &str, unix_ms: u64) -> HistoryEntry {
        HistoryEntry {
            unix_ms,
            took_ms: 1,
            who: "uid 0".into(),
            pool: pool.into(),
            call: "volume create".into(),
            outcome: "created".into(),
            error: None,
            times: 1,
        }
    }

    fn by(who: &str, unix_ms: u64) -> HistoryEntry {
        HistoryEntry { who: who.into(), ..entry("tank", unix_ms) }
    }

    fn refused(who: &str, unix_ms: u64) -> HistoryEntry {
        let error = Some("there is a volume tank/k8s-a already".to_owned());
        let call = format!("volume create tank/k8s-{unix_ms}");
        HistoryEntry { error, call, outcome: "exists".into(), ..by(who, unix_ms) }
    }

    #[test]
    fn history_survives_a_restart_and_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::load(dir.path());
        history.add(entry("tank", 1));
        history.add(entry("other", 2));
        let path = dir.path().join("history.jsonl");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"unix_ms\":3,\"took").unwrap();

        let history = History::load(dir.path());
        history.add(entry("tank", 4));
        let again = History::load(dir.path());
        let times: Vec<u64> = again.of("tank").iter().map(|entry| entry.unix_ms).collect();
        assert_eq!(times, [1, 4]);
        assert_eq!(again.of("other").len(), 1);
        assert!(again.of("none").is_empty());
    }

    #[test]
    fn list_is_bounded_and_its_flood_evicts_its_own_entries() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::load(dir.path());
        {
            let listed = &mut history.kept.lock().listed;
            listed.push_back(entry("other", 0));
            listed.push_back(by("uid 0", 1));
            let flood = |at| by(&format!("token ci from 10.0.0.{}", at % 200), at);
            listed.extend((2..KEPT_MAX as u64).map(flood));
        }
        let mut last = by("token ci from ::1", u64::MAX);
        last.call = "x".repeat(5000);
        history.add(last);
        let again = History::load(dir.path());
        let kept = again.of("tank");
        assert_eq!(kept.len() + 1, KEPT_MAX - KEPT_MAX / 8);
        assert_eq!((kept[0].unix_ms, kept[kept.len() - 1].unix_ms), (1, u64::MAX));
        assert_eq!(kept[kept.len() - 1].call.len(), TEXT_MAX);
        assert_eq!(again.of("other").len(), 1);
    }

    // Regression: 20,200 refused calls of one token, whose scope was one volume prefix, evicted the
    // histories of all pools.
    #[test]
    fn failed_calls_are_counted_and_evict_no_entries() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::load(dir.path());
        history.add(by("uid 0", 0));
        history.add(refused("token other from ::1", 1));
        for at in 0..20_200 {
            history.add(refused(&format!("token ci from 10.0.0.{}", at % 200), 100 + at));
        }
        let check = |history: &History| {
            let kept = history.of("tank");
            let shown: Vec<_> = kept.iter().map(|e| (e.unix_ms, e.times)).collect();
            assert_eq!((shown.len(), shown[0], shown[1]), (3, (0, 1), (1, 1)), "{shown:?}");
            kept[2].times
        };
        assert_eq!(check(&history), 20_200);
        assert!(check(&History::load(dir.path())) >= 1, "the count of the last write");
        let lines = std::fs::read_to_string(dir.path().join("history.jsonl")).unwrap();
        assert!(lines.lines().count() <= 4, "{lines}");
        // A minute after the last write, the next failed call writes the new count.
        history.add(refused("token ci from ::1", 100 + COUNT_WRITTEN_EVERY_MS + 20_200));
        let again = History::load(dir.path());
        assert!(again.of("tank")[2].times >= 1);
    }

    #[test]
    fn counts_are_bounded_and_a_flood_evicts_its_own() {
        let mut kept = Kept::default();
        kept.count(refused("uid 0", 0));
        for at in 0..3 * COUNTED_MAX as u64 {
            let one = HistoryEntry { call: format!("verb {at}"), ..refused("token ci", at) };
            kept.count(one);
        }
        assert_eq!(kept.counted.len(), COUNTED_MAX);
        assert!(kept.counted.values().any(|one| one.entry.who == "uid 0"));
    }

    #[test]
    fn lines_of_older_servers_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let line = |at: u64| {
            format!(r#"{{"unix_ms":{at},"took_ms":1,"who":"uid 0","pool":"tank","call":"a b","#)
                + r#""outcome":"exists","error":"there is one"}"#
        };
        let text = [line(1), line(2), line(3)].join("\n");
        std::fs::write(dir.path().join("history.jsonl"), text).unwrap();
        let kept = History::load(dir.path()).of("tank");
        assert_eq!((kept.len(), kept[0].times, kept[0].unix_ms), (1, 3, 3));
        assert_eq!(History::load(dir.path()).of("tank"), kept);
    }
}
