//! Atomic replacement of a file: a crash leaves either the old content or the new.
//!
//! The callers choose the content and the permissions of the file.
//!
//! Invariant: the name of the file never refers to an incomplete version of the new content.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces a file atomically: writes the new content to a file in the same directory with the
/// extension `json.new`, and renames the new file to `path`.
///
/// # Durability
/// After this function returns, the new content survives any crash.
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
