//! The newest txg that this server has seen of each pool, stored in `seen.json`.
//!
//! A disk cannot know that the other disks continued without it: an old leg alone looks like a
//! complete pool. The server records the newest txg of each pool and passes it to every import,
//! which refuses older disks.
//!
//! Not here: the refusal (weir-pool's import).
//!
//! Invariants:
//! - the server records a txg only after it is durable on the pool's disks, so no crash makes the
//!   server expect more than the disks have;
//! - the server records an opening before clients use the pool;
//! - the file has at most [`POOLS_MAX`] pools; a new pool evicts the one with the oldest record.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_api::ApiError;
use weir_base::{ErrorKind, Guid, Txg};
use weir_pool::{Pool, PoolMoment};

use super::state::replace_file;

/// Maximum number of pools in the file.
const POOLS_MAX: usize = 1024;
/// Time between two records of a pool that is not degraded.
const INTERVAL: Duration = Duration::from_secs(10);

/// The stored form of a [`PoolMoment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    opening: u64,
    txg: u64,
    unix_ms: u64,
}

/// The file, and the time of each pool's last record.
#[derive(Debug)]
pub(super) struct SeenFile {
    path: PathBuf,
    /// By guid of the pool.
    pools: BTreeMap<u64, Stored>,
    recorded: BTreeMap<u64, Instant>,
}

impl SeenFile {
    /// Reads the file of a state directory; a missing file counts as empty.
    ///
    /// # Errors
    /// `Data` for a file that cannot be read or understood.
    pub(super) fn load(dir: &Path) -> Result<Self, ApiError> {
        let path = dir.join("seen.json");
        let failed = |why: String| {
            ApiError::new(ErrorKind::Data, format!("{}: {why}", path.display())).with_action(
                "repair or remove the file; without it, disks that are too old are not recognised",
            )
        };
        let pools = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(failed(error.to_string())),
        };
        Ok(Self { path, pools, recorded: BTreeMap::new() })
    }

    /// Returns the newest recorded moment of a pool.
    pub(super) fn of(&self, pool: u64) -> Option<PoolMoment> {
        let Stored { opening, txg, unix_ms } = *self.pools.get(&pool)?;
        Some(PoolMoment { opening: Guid(opening), txg: Txg(txg), unix_ms })
    }

    /// Returns true if a pool's newest txg is due to be recorded: at most every [`INTERVAL`], but
    /// at once while the pool is degraded, as only then can disks fall behind.
    pub(super) fn is_due(&self, pool: &Pool, is_degraded: bool) -> bool {
        let guid = pool.guid().0;
        let is_new = self.pools.get(&guid).is_none_or(|seen| seen.txg != pool.committed_txg().0);
        let rests = |at: &Instant| !is_degraded && at.elapsed() < INTERVAL;
        is_new && !self.recorded.get(&guid).is_some_and(rests)
    }

    /// Records the newest txg of a pool.
    ///
    /// # Durability
    /// The record survives any crash once this returns.
    pub(super) fn record(&mut self, pool: &Pool) -> Result<(), ApiError> {
        let PoolMoment { opening, txg, unix_ms } = pool.moment();
        let guid = pool.guid().0;
        self.pools.insert(guid, Stored { opening: opening.0, txg: txg.0, unix_ms });
        self.recorded.insert(guid, Instant::now());
        while self.pools.len() > POOLS_MAX {
            let others = self.pools.iter().filter(|(other, _)| **other != guid);
            let oldest = others.min_by_key(|(_, seen)| seen.unix_ms).map(|(other, _)| *other);
            let Some(oldest) = oldest else { break };
            self.pools.remove(&oldest);
            self.recorded.remove(&oldest);
        }
        let text = serde_json::to_vec_pretty(&self.pools).map_err(std::io::Error::from);
        text.and_then(|text| replace_file(&self.path, &text)).map_err(|error| {
            let message = format!("cannot save {}: {error}", self.path.display());
            ApiError::new(ErrorKind::Unavailable, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_back_and_a_bad_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = SeenFile::load(dir.path()).unwrap();
        assert_eq!(file.of(7), None);
        file.pools.insert(7, Stored { opening: 1, txg: 2, unix_ms: 3 });
        replace_file(&file.path, &serde_json::to_vec(&file.pools).unwrap()).unwrap();
        let read = SeenFile::load(dir.path()).unwrap();
        let moment = PoolMoment { opening: Guid(1), txg: Txg(2), unix_ms: 3 };
        assert_eq!(read.of(7), Some(moment));
        fs::write(dir.path().join("seen.json"), "{").unwrap();
        let error = SeenFile::load(dir.path()).unwrap_err();
        assert!(error.message.contains("seen.json"), "{error}");
    }
}
