//! The file of events in the state directory: a line of JSON for each event.
//!
//! `events` decides which events are kept in memory, and saves the events in this file.
//!
//! Invariants:
//! - after a crash, the file may lack the events of the last second: an event only reports a change
//!   or a fault, and the change itself is durable elsewhere;
//! - the file has at most 2,000 lines, or twice as many lines as there are events in memory. The
//!   server shortens the file by replacing the whole file.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use weir_api::types::Event;
use weir_base::replace_file;

use super::json_lines;

/// The file, and the number of its lines.
#[derive(Debug)]
pub(super) struct EventFile {
    path: PathBuf,
    lines: usize,
}

impl EventFile {
    /// Reads the events of earlier runs of the server, oldest first; a missing file has no events.
    pub(super) fn load(dir: &Path) -> (Self, Vec<Event>) {
        let path = dir.join("events.jsonl");
        let events = json_lines::read(&path, "events");
        let mut file = Self { path, lines: 0 };
        // The file may end with an incomplete line, so replace it before appending to it.
        file.must_be_replaced();
        (file, events)
    }

    /// Makes [`Self::is_long`] return true until [`Self::replace`] has replaced the file.
    pub(super) fn must_be_replaced(&mut self) {
        self.lines = usize::MAX;
    }

    /// True if the file has so many lines for `events` events in memory that it must be replaced.
    pub(super) fn is_long(&self, events: usize) -> bool {
        self.lines / 2 > events.max(1000)
    }

    /// Appends events to the file.
    pub(super) fn append(&mut self, events: &[Event]) -> io::Result<()> {
        let text = json_lines::text(events)?;
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        self.lines = self.lines.saturating_add(events.len());
        file.write_all(&text)
    }

    /// Replaces the content of the file.
    pub(super) fn replace(&mut self, events: &[Event]) -> io::Result<()> {
        replace_file(&self.path, &json_lines::text(events)?)?;
        self.lines = events.len();
        Ok(())
    }
}
