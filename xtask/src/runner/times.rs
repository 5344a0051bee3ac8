//! Duration of each test in its last run; the runner starts the longest tests first.
//!
//! Not here: the time limits of tests (lists.rs).
//!
//! Invariant: if the file is missing or unreadable, only the order of the tests changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::report::{Ran, Verdict};

/// Seconds that each test took in its last run, by test name.
pub(super) struct Times(BTreeMap<String, f64>);

impl Times {
    pub(super) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        Self(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Returns the seconds that a test took in its last run. If this test has no record, returns
    /// infinity, so that new tests start first. If no test has a record, as in a clean clone,
    /// returns `usual`.
    pub(super) fn of(&self, id: &str, usual: f64) -> f64 {
        let unknown = if self.0.is_empty() { usual } else { f64::INFINITY };
        self.0.get(id).copied().unwrap_or(unknown)
    }

    pub(super) fn note(&mut self, ran: &Ran) {
        if ran.verdict != Verdict::Ignored {
            // Round to milliseconds.
            let seconds = (ran.time.as_secs_f64() * 1000.0).round() / 1000.0;
            self.0.insert(ran.id.clone(), seconds);
        }
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let folder = path.parent().expect("the file lies in a folder");
        fs::create_dir_all(folder)?;
        let text = serde_json::to_string_pretty(&self.0)?;
        fs::write(path, text).with_context(|| path.display().to_string())
    }
}
