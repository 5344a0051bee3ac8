//! A file of the state directory with one entry for each pool.
//!
//! `seen` and `scan_file` define the entries.
//!
//! Invariants:
//! - the file has at most [`POOLS_MAX`] pools; a further pool evicts the pool with the oldest
//!   entry;
//! - after a crash the file has either the contents before a change or those after it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_base::replace_file;

/// Maximum number of pools in a file.
pub(crate) const POOLS_MAX: usize = 1024;
/// Minimum time between two writes of the entry of one pool, except urgent ones.
const INTERVAL: Duration = Duration::from_secs(10);

/// An entry of a [`PoolFile`].
pub(crate) trait Entry: Serialize + DeserializeOwned {
    /// Returns the wall-clock time of the entry. The oldest entry is evicted first.
    fn unix_ms(&self) -> u64;
}

/// A file with one entry for each pool, and the time at which each entry was last written.
#[derive(Debug)]
pub(crate) struct PoolFile<T> {
    pub(crate) path: PathBuf,
    /// Entries by guid of the pool.
    pub(crate) pools: BTreeMap<u64, T>,
    recorded: BTreeMap<u64, Instant>,
}

impl<T: Entry> PoolFile<T> {
    /// Creates a file with these entries.
    pub(crate) fn new(path: PathBuf, pools: BTreeMap<u64, T>) -> Self {
        Self { path, pools, recorded: BTreeMap::new() }
    }

    /// Reads a file; a missing file counts as empty.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub(crate) fn load(path: PathBuf) -> io::Result<Self> {
        let pools = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        Ok(Self::new(path, pools))
    }

    /// True if the entry of this pool was written less than [`INTERVAL`] ago.
    pub(crate) fn rests(&self, pool: u64) -> bool {
        self.recorded.get(&pool).is_some_and(|at| at.elapsed() < INTERVAL)
    }

    /// Makes the next write of this pool's entry due at once.
    pub(crate) fn hurry(&mut self, pool: u64) {
        self.recorded.remove(&pool);
    }

    /// Writes the entry of a pool to the file.
    ///
    /// # Durability
    /// The entry survives any crash once this function returns.
    pub(crate) fn record(&mut self, pool: u64, entry: T) -> io::Result<()> {
        self.pools.insert(pool, entry);
        self.recorded.insert(pool, Instant::now());
        while self.pools.len() > POOLS_MAX {
            let others = self.pools.iter().filter(|(other, _)| **other != pool);
            let oldest = others.min_by_key(|(_, entry)| entry.unix_ms()).map(|(other, _)| *other);
            let Some(oldest) = oldest else { break };
            self.pools.remove(&oldest);
            self.recorded.remove(&oldest);
        }
        replace_file(&self.path, &serde_json::to_vec_pretty(&self.pools)?)
    }
}
