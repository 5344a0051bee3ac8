//! Replication of volumes by the administrator of a scenario: selects the snapshots to send.
//!
//! `replica` sends and checks the snapshots.
//!
//! Invariant: a snapshot is sent only if its expected content is known.

use std::sync::Arc;

use weir_base::BLOCK_BYTES;
use weir_dataset::{DatasetError, Engine, SendFrom, SendSpec, SnapshotId};

use crate::admin::Admin;
use crate::check::read_snapshot;
use crate::coverage::CoveragePoint;
use crate::error::Stop;
use crate::expected::{Content, ExpectedState};
use crate::history::Tag;
use crate::objects::book::is_of_objects;
use crate::replication::replica::{Courier, Replica, ReplicaPoints, SentContent};

/// Name of the replica.
const REPLICA: &str = "replica";
const POINTS: ReplicaPoints = ReplicaPoints {
    difference: CoveragePoint::DifferenceSent,
    received: CoveragePoint::StreamReceived,
    cut: CoveragePoint::StreamCut,
    resumed: CoveragePoint::StreamResumed,
    given_up: CoveragePoint::StreamGivenUp,
    outlived_cut: CoveragePoint::StreamOutlivedCut,
};

/// True for the replica's name.
pub(crate) fn is_replica(volume: &str) -> bool {
    volume == REPLICA
}

/// Expected state of a replica that does not exist.
pub(crate) fn no_replica() -> Replica<VolumeContent> {
    Replica::new(REPLICA, &POINTS)
}

/// Content of a snapshot of a volume.
#[derive(Clone, Debug)]
pub(crate) struct VolumeContent {
    /// Size of the snapshot's volume, in blocks.
    size: usize,
    /// Tag of each sector, padded with zeros to the length of the longest volume.
    sectors: Vec<Tag>,
}

impl SentContent for VolumeContent {
    async fn compare(
        &self,
        engine: &Arc<Engine>,
        received: &SnapshotId,
    ) -> Result<Result<(), String>, DatasetError> {
        let size = engine.open_snapshot(received)?.size_bytes() as usize / BLOCK_BYTES;
        if size != self.size {
            return Ok(Err(format!("has {size} blocks of {}", self.size)));
        }
        let (volume, name, sectors) = (&received.volume, &received.name, self.sectors.len());
        let found = read_snapshot(engine, volume, name, sectors).await?;
        let differ = found.iter().zip(&self.sectors).filter(|(a, b)| a != b).count();
        let what = || format!("differs in {differ} sectors from the sent snapshot");
        Ok(if differ > 0 { Err(what()) } else { Ok(()) })
    }
}

impl Admin {
    fn courier(&mut self) -> Courier<'_, ExpectedState, VolumeContent> {
        Courier {
            rng: &mut self.rng,
            engine: &self.engine,
            expected: &self.expected,
            executor: &self.executor,
            replica: |expected| &mut expected.replica,
        }
    }

    /// Sends a snapshot to the replica, continues an interrupted stream, or destroys the replica.
    pub(crate) async fn replicate(&mut self) -> Result<(), Stop> {
        if let Some(snapshot) = self.courier().interrupted() {
            let token = self.courier().token().await?;
            let source = self.source_of(&snapshot).await?;
            return self.courier().resume(token, source).await.map(drop);
        }
        let last = self.expected.borrow().replica.arrived().last().map(str::to_owned);
        let Some(last) = last else {
            let Some((_, of)) = self.some_snapshot().await? else { return Ok(()) };
            return self.begin(SendSpec { snapshot: of, from: None, resume: None }).await;
        };
        let Some(of) = self.source_of(&last).await? else { return self.courier().destroy().await };
        let mut newer = self.newer_than(&of).await?;
        if newer.is_empty() {
            self.take_of(&of.volume).await?;
            newer = self.newer_than(&of).await?;
        }
        if newer.is_empty() {
            return Ok(());
        }
        let snapshot = SnapshotId::new(&of.volume, &newer[self.rng.index(newer.len())]);
        let from = Some(SendFrom::Snapshot(of));
        self.begin(SendSpec { snapshot, from, resume: None }).await
    }

    async fn newer_than(&self, snapshot: &SnapshotId) -> Result<Vec<String>, Stop> {
        let listed = self.snapshots_of(&snapshot.volume).await?.into_iter();
        Ok(listed.skip_while(|name| *name != snapshot.name).skip(1).collect())
    }

    /// Returns a snapshot of this name in a volume other than the replica.
    async fn source_of(&self, name: &str) -> Result<Option<SnapshotId>, Stop> {
        for volume in self.engine.volumes() {
            let volume = volume.info().name;
            if is_replica(&volume) || is_of_objects(&volume) {
                continue;
            }
            if self.snapshots_of(&volume).await?.iter().any(|n| n == name) {
                return Ok(Some(SnapshotId::new(&volume, name)));
            }
        }
        Ok(None)
    }

    async fn begin(&mut self, spec: SendSpec) -> Result<(), Stop> {
        let content = {
            let expected = self.expected.borrow();
            let snapshot = expected.snapshots.iter().find(|book| book.name == spec.snapshot.name);
            let snapshot = snapshot.expect("all that are taken are noted").clone();
            let Content::Known(sectors) = snapshot.content else { return Ok(()) };
            VolumeContent { size: snapshot.size, sectors }
        };
        self.courier().begin(spec, content).await.map(drop)
    }
}
