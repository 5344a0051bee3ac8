//! The history of every pool: administrative calls, kept in the state directory.
//!
//! Not here: who records (recorder).
//!
//! Invariants:
//! - an entry is on stable media when `add` returns, or the log says why not: a call is not undone
//!   because its history cannot be written;
//! - at most [`KEPT_MAX`] entries: the file is cut to the newest half of them when it is full, by
//!   replacing it whole;
//! - a line that cannot be read (a crash cut it off) costs that line alone.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use weir_api::types::HistoryEntry;

/// Entries kept of all pools together: years of administration, a few MiB.
const KEPT_MAX: usize = 20_000;
/// Longest text of a call or an error that is kept.
const TEXT_MAX: usize = 1000;

/// The history file.
pub(super) struct History {
    path: PathBuf,
    kept: Mutex<VecDeque<HistoryEntry>>,
}

impl History {
    /// Reads the file; none yet is an empty history.
    pub(super) fn load(dir: &Path) -> Self {
        let path = dir.join("history.jsonl");
        let mut kept = VecDeque::new();
        match std::fs::read(&path) {
            Ok(bytes) => {
                let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                for line in lines {
                    match serde_json::from_slice(line) {
                        Ok(entry) => kept.push_back(entry),
                        Err(error) => tracing::warn!(%error, "a line of the history is unreadable"),
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, path = %path.display(), "history not read"),
        }
        let history = Self { path, kept: Mutex::new(kept) };
        // Also ends a line that a crash cut off, so that the next entry has its own.
        let cut = history.rewrite(&mut history.kept.lock());
        if let Err(error) = cut {
            tracing::warn!(%error, path = %history.path.display(), "history not written");
        }
        history
    }

    /// Adds an entry. Blocks for a write to the state directory.
    pub(super) fn add(&self, mut entry: HistoryEntry) {
        entry.call = shortened(entry.call);
        entry.error = entry.error.map(shortened);
        let mut kept = self.kept.lock();
        kept.push_back(entry);
        let written = if kept.len() > KEPT_MAX {
            kept.drain(..KEPT_MAX / 2);
            self.rewrite(&mut kept)
        } else {
            self.append(&kept[kept.len() - 1])
        };
        if let Err(error) = written {
            tracing::warn!(%error, path = %self.path.display(), "history not written");
        }
    }

    fn append(&self, entry: &HistoryEntry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        file.write_all(&line)?;
        file.sync_data()
    }

    fn rewrite(&self, kept: &mut VecDeque<HistoryEntry>) -> io::Result<()> {
        while kept.len() > KEPT_MAX {
            kept.pop_front();
        }
        let mut text = Vec::new();
        for entry in &*kept {
            serde_json::to_writer(&mut text, entry)?;
            text.push(b'\n');
        }
        let new = self.path.with_extension("jsonl.new");
        let mut file = File::create(&new)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }

    /// The entries of one pool, oldest first.
    pub(super) fn of(&self, pool: &str) -> Vec<HistoryEntry> {
        self.kept.lock().iter().filter(|entry| entry.pool == pool).cloned().collect()
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
        }
    }

    #[test]
    fn survives_a_restart_and_a_torn_line() {
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
    fn is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let history = History::load(dir.path());
        history.kept.lock().extend((0..KEPT_MAX as u64).map(|at| entry("tank", at)));
        let mut last = entry("tank", u64::MAX);
        last.call = "x".repeat(5000);
        history.add(last);
        let kept = History::load(dir.path()).of("tank");
        assert_eq!(kept.len(), KEPT_MAX / 2 + 1);
        assert_eq!(kept[kept.len() - 1].unix_ms, u64::MAX);
        assert_eq!(kept[kept.len() - 1].call.len(), TEXT_MAX);
    }
}
