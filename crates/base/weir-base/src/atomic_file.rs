//! Atomic replacement of a file: a crash leaves either the old content or the new.
//!
//! The callers define content and permissions.
//!
//! Invariant: no name of the file ever refers to a part of the new content.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces a file atomically. Writes the new content to a file in the same directory with the
/// extension `json.new`, and renames it.
///
/// # Durability
/// The new content survives any crash after this returns.
///
/// # Errors
/// The file cannot be written, synced or renamed.
pub fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("json.new");
    let mut file = fs::File::create(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    fs::File::open(dir)?.sync_all()
}
