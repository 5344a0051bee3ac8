//! The newest txg of each pool that this server knows, stored in `seen.json`.
//!
//! A disk does not know whether the other disks were written without it: an old leg alone looks
//! like a complete pool. So the server stores the newest txg of each pool and passes it to every
//! import, and weir-pool refuses disks with an older txg.
//!
//! Invariants:
//! - the server stores a txg only after it is durable on the pool's disks, so that after a crash
//!   the server never expects a newer txg than the disks have;
//! - the server stores the import epoch of a pool before clients use the pool.

use std::path::Path;

use serde::{Deserialize, Serialize};
use weir_api::ApiError;
use weir_base::{ErrorKind, Guid, Txg};
use weir_pool::{HistoryPoint, Pool};

use crate::state::pool_file::{Entry, PoolFile};

/// The stored form of a [`HistoryPoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    opening: u64,
    txg: u64,
    unix_ms: u64,
}

impl Entry for Stored {
    fn unix_ms(&self) -> u64 {
        self.unix_ms
    }
}

/// The file with the newest import epoch and txg that the server has stored for each pool.
#[derive(Debug)]
pub(crate) struct SeenFile(PoolFile<Stored>);

impl SeenFile {
    /// Reads the file of a state directory; a missing file counts as empty.
    ///
    /// # Errors
    /// `Data` for a file that cannot be read or understood.
    pub(crate) fn load(dir: &Path) -> Result<Self, ApiError> {
        let path = dir.join("seen.json");
        PoolFile::load(path.clone()).map(Self).map_err(|why| {
            ApiError::new(ErrorKind::Data, format!("{}: {why}", path.display())).with_action(
                "repair or remove the file; without it, disks with an old state of the pool are \
                 not recognised",
            )
        })
    }

    /// Returns the newest import epoch and txg that are stored for a pool.
    pub(crate) fn of(&self, pool: u64) -> Option<HistoryPoint> {
        let Stored { opening, txg, unix_ms } = *self.0.pools.get(&pool)?;
        Some(HistoryPoint { import_epoch: Guid(opening), txg: Txg(txg), unix_ms })
    }

    /// True if the newest txg of a pool must be stored now. The interval is ten seconds. While the
    /// pool is degraded, every txg is stored, because a disk can then miss writes.
    pub(crate) fn is_due(&self, pool: &Pool, is_degraded: bool) -> bool {
        let guid = pool.guid().0;
        let is_new = self.0.pools.get(&guid).is_none_or(|seen| seen.txg != pool.committed_txg().0);
        is_new && (is_degraded || !self.0.rests(guid))
    }

    /// Stores the newest import epoch and txg of a pool.
    ///
    /// # Durability
    /// The entry survives any crash once this function returns.
    pub(crate) fn record(&mut self, pool: &Pool) -> Result<(), ApiError> {
        let HistoryPoint { import_epoch: opening, txg, unix_ms } = pool.moment();
        let seen = Stored { opening: opening.0, txg: txg.0, unix_ms };
        self.0.record(pool.guid().0, seen).map_err(|error| {
            let message = format!("cannot save {}: {error}", self.0.path.display());
            ApiError::new(ErrorKind::Unavailable, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use weir_base::replace_file;

    #[test]
    fn records_are_read_back_and_an_invalid_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = SeenFile::load(dir.path()).unwrap();
        assert_eq!(file.of(7), None);
        file.0.pools.insert(7, Stored { opening: 1, txg: 2, unix_ms: 3 });
        replace_file(&file.0.path, &serde_json::to_vec(&file.0.pools).unwrap()).unwrap();
        let read = SeenFile::load(dir.path()).unwrap();
        let moment = HistoryPoint { import_epoch: Guid(1), txg: Txg(2), unix_ms: 3 };
        assert_eq!(read.of(7), Some(moment));
        fs::write(dir.path().join("seen.json"), "{").unwrap();
        let error = SeenFile::load(dir.path()).unwrap_err();
        assert!(error.message.contains("seen.json"), "{error}");
    }
}
