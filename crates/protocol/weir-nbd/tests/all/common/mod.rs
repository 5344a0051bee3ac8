//! Helpers for the tests of this crate.
//!
//! This file contains no tests.
//!
//! Invariant: dropping a [`Scratch`] removes its directory.

#[allow(dead_code, reason = "the unit tests of src use a part of it")]
pub(crate) mod memory;
pub(crate) mod server;

use std::path::PathBuf;

/// Temporary directory of one test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Creates an empty directory.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-nbd-{}-{name}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        std::fs::create_dir_all(&path).expect("a directory for scratch files");
        Self(path)
    }

    /// Returns the path of a file in the temporary directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
