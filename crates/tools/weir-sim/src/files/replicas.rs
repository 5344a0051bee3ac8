//! Replication by the operator: selects the snapshots to send to a replica in the same pool.
//!
//! `replication::replica` sends and checks them; `sent` has their content.
//!
//! Invariant: a stream that was interrupted, also by a power cut, resumes or is aborted.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use weir_dataset::{Engine, SendFrom, SendSpec, SnapshotId};

use super::expected::{Expected, NAMES, Snapshot};
use super::operator::Operator;
use super::sent::{FilesContent, REPLICA};
use crate::error::Stop;
use crate::executor::Executor;
use crate::replication::replica::{Courier, Replica};
use crate::rng::Rng;

/// Maximum number of snapshots of the replica.
const SNAPSHOTS_MAX: usize = 3;

fn stopped(stop: Stop) -> String {
    match stop {
        Stop::Failed(error) => format!("the replication received an error: {error}"),
        Stop::Broken(what) => format!("replica: {what}"),
    }
}

impl Operator {
    fn courier(&mut self) -> Courier<'_, Expected, FilesContent> {
        Courier {
            rng: &mut self.rng,
            engine: &self.engine,
            expected: &self.expected,
            executor: &self.executor,
            replica: |expected| &mut expected.replica,
        }
    }

    /// Sends a snapshot to the replica, continues an interrupted stream, or destroys the replica.
    pub(super) async fn replicate(&mut self) -> Result<(), String> {
        if let Some(name) = self.courier().interrupted() {
            let source = self.expected(|expected| expected.snapshot(&name).map(id_of));
            let token = self.courier().token().await.map_err(stopped)?;
            return self.courier().resume(token, source).await.map(drop).map_err(stopped);
        }
        let arrived: Vec<String> =
            self.expected(|expected| expected.replica.arrived().map(str::to_owned).collect());
        let Some(last) = arrived.last() else {
            if self.some_snapshot().is_none() {
                self.take(0).await?;
            }
            let Some(snapshot) = self.some_snapshot() else { return Ok(()) };
            return self.send(&snapshot, None).await;
        };
        let base = self.expected(|expected| expected.snapshot(last).cloned());
        let Some(base) = base.filter(|_| arrived.len() < SNAPSHOTS_MAX) else {
            return self.courier().destroy().await.map_err(stopped);
        };
        if self.expected(|expected| expected.newer_than(&base).is_empty()) {
            self.take(base.owner).await?;
        }
        let newer = self.expected(|expected| {
            let newer = expected.newer_than(&base);
            newer.last().and_then(|name| expected.snapshot(name).cloned())
        });
        let Some(newer) = newer else { return Ok(()) };
        self.send(&newer, Some(SendFrom::Snapshot(id_of(&base)))).await
    }

    async fn send(&mut self, snapshot: &Snapshot, from: Option<SendFrom>) -> Result<(), String> {
        let Some(state) = snapshot.state() else { return Ok(()) };
        let spec = SendSpec { snapshot: id_of(snapshot), from, resume: None };
        self.courier().begin(spec, FilesContent(state)).await.map(drop).map_err(stopped)
    }
}

fn id_of(snapshot: &Snapshot) -> SnapshotId {
    SnapshotId::new(NAMES[snapshot.owner], &snapshot.name)
}

fn itself(replica: &mut Replica<FilesContent>) -> &mut Replica<FilesContent> {
    replica
}

/// Resumes the stream that a power cut interrupted, until the replica has the whole snapshot or is
/// gone. `source`: the sent snapshot, if it exists.
///
/// # Errors
/// An error of the engine, or a difference of the received snapshot.
pub(super) async fn resume(
    engine: &Arc<Engine>,
    executor: &Executor,
    rng: &mut Rng,
    (replica, source): (Replica<FilesContent>, Option<SnapshotId>),
) -> Result<(), String> {
    let expected = Rc::new(RefCell::new(replica));
    while engine.volume(REPLICA).is_ok_and(|replica| replica.receiving().is_some()) {
        let mut courier = Courier { rng, engine, expected: &expected, executor, replica: itself };
        let token = courier.token().await.map_err(stopped)?;
        courier.resume(token, source.clone()).await.map_err(stopped)?;
    }
    Ok(())
}
