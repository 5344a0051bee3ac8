//! A file of the state directory with one entry for each pool.
//!
//! The entries are in `seen` and `scan_file`.
//!
//! Invariants:
//! - the file has at most [`POOLS_MAX`] pools; a new pool evicts the one with the oldest entry;
//! - after a crash the file is as before or after a record, never in between.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_base::replace_file;

/// Maximum number of pools in a file.
pub(crate) const POOLS_MAX: usize = 1024;
/// Minimum time between two records of the same pool, except urgent ones.
const INTERVAL: Duration = Duration::from_secs(10);

/// An entry of a [`PoolFile`].
pub(crate) trait Entry: Serialize + DeserializeOwned {
    /// Returns the wall-clock time of the entry. The oldest entry is evicted first.
    fn unix_ms(&self) -> u64;
}

/// A file with one entry for each pool, and the time of each pool's last record.
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

    /// Whether the last record of this pool is less than [`INTERVAL`] old.
    pub(crate) fn rests(&self, pool: u64) -> bool {
        self.recorded.get(&pool).is_some_and(|at| at.elapsed() < INTERVAL)
    }

    /// Makes the next record of this pool due at once.
    pub(crate) fn hurry(&mut self, pool: u64) {
        self.recorded.remove(&pool);
    }

    /// Records the entry of a pool.
    ///
    /// # Durability
    /// The record survives any crash once this returns.
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
