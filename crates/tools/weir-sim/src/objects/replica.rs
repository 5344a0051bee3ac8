//! Replication of a dataset with many objects: selects the snapshots to send to a second dataset.
//!
//! `replication::replica` sends and checks the snapshots; `sent` has the content of the snapshots.
//!
//! Invariants:
//! - operations and syncs continue while a snapshot is sent, but no snapshot is destroyed;
//! - a received snapshot has the sent content, and the digest of the sent snapshot.

use std::rc::Rc;

use weir_dataset::{SendFrom, SendSpec, SnapshotId};

use super::actor::ObjectsActor;
use super::book::{NAMES, SnapshotOfObjects};
use super::sent::{ObjectsContent, REPLICA};
use crate::error::Stop;
use crate::expected::ExpectedState;
use crate::history::Presence;
use crate::replication::replica::Courier;

/// Probability, as one divided by this number, that a step sends a snapshot.
const SENDS_ONE_IN: u64 = 6;
/// Maximum number of snapshots of the replica, so that a small pool has space for changes.
const SNAPSHOTS_MAX: usize = 2;

impl ObjectsActor {
    fn courier(&mut self) -> Courier<'_, ExpectedState, ObjectsContent> {
        Courier {
            rng: &mut self.rng,
            engine: &self.engine,
            expected: &self.expected,
            executor: &self.executor,
            replica: |expected| &mut expected.objects.replica,
        }
    }

    /// Sometimes sends a snapshot to the replica, continues an interrupted stream, or destroys the
    /// replica, concurrently with operations.
    pub(crate) async fn replicate_step(&mut self) -> Result<(), Stop> {
        if self.rng.below(SENDS_ONE_IN) > 0 {
            return Ok(());
        }
        let chains = Rc::clone(&self.chains);
        let _chains = chains.lock().await;
        if let Some(name) = self.courier().interrupted() {
            let source =
                self.source_of(&name).map(|book| SnapshotId::new(NAMES[book.owner], &book.name));
            let token = self.courier().token().await?;
            let is_whole = self.courier().resume(token, source.clone()).await?;
            return self.compare_digests(source.filter(|_| is_whole)).await;
        }
        let arrived: Vec<String> =
            self.book(|book| book.replica.arrived().map(str::to_owned).collect());
        let Some(last) = arrived.last() else {
            if self.some_snapshot().is_none() {
                self.take_next(0).await?;
            }
            let Some(snapshot) = self.some_snapshot() else { return Ok(()) };
            return self.send(snapshot, None).await;
        };
        let source = self.source_of(last).filter(|_| arrived.len() < SNAPSHOTS_MAX);
        let Some(source) = source else { return self.courier().destroy().await };
        if self.newer_than(&source).is_empty() {
            self.take_next(source.owner).await?;
        }
        let newer = self.newer_than(&source).last().and_then(|name| self.source_of(name));
        let Some(newer) = newer else { return Ok(()) };
        self.send(
            newer,
            Some(SendFrom::Snapshot(SnapshotId::new(NAMES[source.owner], &source.name))),
        )
        .await
    }

    /// Takes a snapshot between two operations.
    async fn take_next(&mut self, owner: usize) -> Result<(), Stop> {
        let turn = Rc::clone(&self.turn);
        let _turn = turn.lock().await;
        if self.dataset(owner, |book| book.presence == Presence::There) {
            self.take_snapshot(owner).await?;
        }
        Ok(())
    }

    /// Finds an existing snapshot.
    fn source_of(&self, name: &str) -> Option<SnapshotOfObjects> {
        let book = &self.expected.borrow().objects;
        let is_source =
            |book: &&SnapshotOfObjects| book.name == name && book.presence == Presence::There;
        book.snapshots.iter().find(is_source).cloned()
    }

    async fn send(
        &mut self,
        snapshot: SnapshotOfObjects,
        from: Option<SendFrom>,
    ) -> Result<(), Stop> {
        let source = SnapshotId::new(NAMES[snapshot.owner], &snapshot.name);
        let numbers = self.book(|book| book.numbers.clone());
        let content = ObjectsContent { numbers, state: snapshot.state };
        let spec = SendSpec { snapshot: source.clone(), from, resume: None };
        let is_whole = self.courier().begin(spec, content).await?;
        self.compare_digests(Some(source).filter(|_| is_whole)).await
    }

    /// Compares the digest of a completely received snapshot with the digest of its source.
    async fn compare_digests(&self, source: Option<SnapshotId>) -> Result<(), Stop> {
        let Some(source) = source else { return Ok(()) };
        let received = SnapshotId::new(REPLICA, &source.name);
        let sent = self.engine.digest(&source, 0, u64::MAX).await.map_err(Stop::Failed)?;
        let found = self.engine.digest(&received, 0, u64::MAX).await.map_err(Stop::Failed)?;
        if sent == found {
            return Ok(());
        }
        Err(Stop::Broken(format!("the digest of {received:?} differs from the sent snapshot")))
    }
}
