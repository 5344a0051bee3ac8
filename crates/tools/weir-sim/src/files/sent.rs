//! Content of a sent snapshot of a filesystem.
//!
//! Invariant: the received snapshot has the same names and contents, and its check finds nothing.

use std::rc::Rc;
use std::sync::Arc;

use weir_dataset::{DatasetError, Engine, SnapshotId};

use super::content::State;
use super::pool::read_snapshot;
use crate::replication::replica::{Replica, ReplicaPoints, SentContent};

/// Name of the replica.
pub(super) const REPLICA: &str = "replica";

/// Expected state of a replica that does not exist.
pub(super) fn no_replica() -> Replica<FilesContent> {
    Replica::new(REPLICA, &ReplicaPoints::OBJECTS)
}

/// Content of a snapshot.
#[derive(Clone, Debug)]
pub(super) struct FilesContent(pub(super) Rc<State>);

impl SentContent for FilesContent {
    async fn compare(
        &self,
        engine: &Arc<Engine>,
        received: &SnapshotId,
    ) -> Result<Result<(), String>, DatasetError> {
        let read = read_snapshot(engine, received, true).await;
        Ok(read.and_then(|found| found.compare(&self.0)))
    }
}
