//! Content of a sent snapshot of a dataset with many objects.
//!
//! Invariant: the received snapshot has the same slots and records.

use std::sync::Arc;

use weir_dataset::{DatasetError, Engine, SnapshotId};

use super::content::{ObjectsState, read_state};
use crate::replication::replica::{Replica, ReplicaPoints, SentContent};

/// Name of the replica.
pub(super) const REPLICA: &str = "files-replica";

/// Expected state of a replica that does not exist.
pub(super) fn no_replica() -> Replica<ObjectsContent> {
    Replica::new(REPLICA, &ReplicaPoints::OBJECTS)
}

/// Content of a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct ObjectsContent {
    /// Numbers of the objects that operations use.
    pub(super) numbers: Vec<u64>,
    pub(super) state: ObjectsState,
}

impl SentContent for ObjectsContent {
    async fn compare(
        &self,
        engine: &Arc<Engine>,
        received: &SnapshotId,
    ) -> Result<Result<(), String>, DatasetError> {
        let found = read_state(&*engine.open_snapshot(received)?, &self.numbers).await?;
        Ok(found.and_then(|found| {
            if found == self.state {
                return Ok(());
            }
            Err(format!("is {found:?}, not {:?}", self.state))
        }))
    }
}
