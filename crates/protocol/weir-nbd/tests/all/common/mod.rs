//! What the tests of this crate share.
//!
//! Not here: tests.
//!
//! Invariant: a scratch directory is gone when its owner is.

#[allow(dead_code, reason = "the unit tests of src use a part of it")]
pub(crate) mod memory;
pub(crate) mod server;

use std::path::PathBuf;

/// A directory of one test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// An empty directory.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-nbd-{}-{name}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).expect("a directory for scratch files");
        Self(path)
    }

    /// A path inside it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
