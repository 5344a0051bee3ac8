//! Files with a line of JSON for each entry.
//!
//! `history` and `event_file` decide which entries are in a file and when it is written.
//!
//! Invariant: an unreadable line, for example after a crash, loses only that line.

use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads the entries of a file; a missing file has no entries. `what` names the entries in log
/// messages.
pub(super) fn read<T: DeserializeOwned>(path: &Path, what: &str) -> Vec<T> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%error, path = %path.display(), "{what} not read");
            }
            return Vec::new();
        }
    };
    let mut entries = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match serde_json::from_slice(line) {
            Ok(entry) => entries.push(entry),
            Err(error) => tracing::warn!(%error, "a line of the {what} is unreadable"),
        }
    }
    entries
}

/// Returns the entries as text, one line of JSON for each entry.
pub(super) fn text<'a, T: Serialize + 'a>(
    entries: impl IntoIterator<Item = &'a T>,
) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for entry in entries {
        serde_json::to_writer(&mut text, entry)?;
        text.push(b'\n');
    }
    Ok(text)
}
