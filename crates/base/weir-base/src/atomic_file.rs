//! Replaces a file whole, so that a crash leaves the old content or the new.
//!
//! Not here: content and permissions of files.
//!
//! Invariant: no name of the file ever shows a part of the new content.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces a file whole. The new content goes to a file in the same directory with the extension
/// `json.new`.
///
/// # Durability
/// The new content is found after any crash once this returns.
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
