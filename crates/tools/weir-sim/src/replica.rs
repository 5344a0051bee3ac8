//! Replication by the administrator of a scenario: sends snapshots to another volume of the pool,
//! as `weir send` and `weir receive` do, while clients write.
//!
//! weir-dataset tests damaged streams; tests/all/receive.rs tests two pools.
//!
//! Invariants:
//! - only streams change the replica, so it never shows content other than its snapshots;
//! - an interrupted stream resumes at the volume's resume token or is aborted;
//! - a call is recorded as pending before it starts, and as acknowledged right after it returns.

use std::sync::Arc;

use weir_base::{BLOCK_BYTES, ErrorKind};
use weir_dataset::{DatasetError, Engine, ReceiveSpec, Receiver, SendFrom, SendSpec, SnapshotId};
use weir_format::stream::ResumeToken;

use crate::admin::Admin;
use crate::check::read_snapshot;
use crate::coverage::{CoveragePoint, note};
use crate::error::Stop;
use crate::expected::Content;
use crate::history::Tag;

/// Name of the replica.
const REPLICA: &str = "replica";
/// Maximum number of bytes of a stream that one call of the receiver gets.
const PIECE_BYTES_MAX: u64 = 60_000;

/// True for the replica's name.
pub(crate) fn is_replica(volume: &str) -> bool {
    volume == REPLICA
}

/// A snapshot that was sent completely or is in transfer.
#[derive(Clone, Debug)]
struct Sent {
    name: String,
    /// Size of the snapshot's volume, in blocks.
    size: usize,
    content: Vec<Tag>,
}

/// Expected state of the replica.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replica {
    /// Completely received snapshots, in order of receipt.
    arrived: Vec<Sent>,
    /// Snapshot in transfer: a recovery finds the complete snapshot or none.
    arriving: Option<Sent>,
    /// If true, the destruction of the replica is pending.
    leaving: bool,
}

/// Recovered state of the replica.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    snapshots: Vec<String>,
    receiving: Option<String>,
}

fn id(volume: &str, name: &str) -> SnapshotId {
    SnapshotId { volume: volume.to_owned(), name: name.to_owned() }
}

impl Replica {
    /// Makes the recovered state the expected state.
    pub(crate) fn rebase(&mut self, found: Option<Found>) {
        let Some(Found { snapshots, receiving }) = found else {
            *self = Self::default();
            return;
        };
        self.leaving = false;
        let has_arrived = |sent: &mut Sent| snapshots.contains(&sent.name);
        self.arrived.extend(self.arriving.take_if(has_arrived));
        self.arriving.take_if(|_| receiving.is_none());
    }

    /// Checks the replica against the expected state; returns its actual state.
    pub(crate) async fn judge(
        &self,
        engine: &Engine,
        sectors: usize,
    ) -> Result<Option<Found>, String> {
        let Ok(volume) = engine.volume(REPLICA) else {
            let may_be_gone = self.arrived.is_empty() || self.leaving;
            return if may_be_gone { Ok(None) } else { Err("is gone".to_owned()) };
        };
        let listed = engine.snapshots(REPLICA).await.map_err(|error| error.to_string())?;
        let snapshots: Vec<String> = listed.into_iter().map(|info| info.name).collect();
        let all: Vec<&Sent> = self.arrived.iter().chain(&self.arriving).collect();
        let (there, count) = (all.iter().take(snapshots.len()), snapshots.len());
        let is_prefix = snapshots.iter().eq(there.map(|sent| &sent.name));
        if !is_prefix || count < self.arrived.len() || all.is_empty() {
            return Err(format!("has {snapshots:?} of {all:?}"));
        }
        for sent in &all[..count] {
            let found = sent.read(engine, sectors).await;
            sent.judge(&found.map_err(|error| format!("@{}: {error}", sent.name))?)?;
        }
        let receiving = volume.receiving();
        match (&receiving, all.get(count), count) {
            (None, _, 1..) => {}
            (Some(found), Some(sent), _) if *found == sent.name => {}
            _ => return Err(format!("receives {receiving:?} after {snapshots:?}")),
        }
        Ok(Some(Found { snapshots, receiving }))
    }
}

impl Sent {
    /// Reads the snapshot of this name from the replica; returns its size in blocks and its
    /// content.
    async fn read(
        &self,
        engine: &Engine,
        sectors: usize,
    ) -> Result<(usize, Vec<Tag>), DatasetError> {
        let view = engine.open_snapshot(&id(REPLICA, &self.name))?;
        let size = view.size_bytes() as usize / BLOCK_BYTES;
        Ok((size, read_snapshot(engine, REPLICA, &self.name, sectors).await?))
    }

    /// Checks that the content equals the sent content.
    fn judge(&self, (size, found): &(usize, Vec<Tag>)) -> Result<(), String> {
        let name = &self.name;
        if *size != self.size {
            return Err(format!("@{name} has {size} blocks of {}", self.size));
        }
        let differ = found.iter().zip(&self.content).filter(|(a, b)| a != b).count();
        if differ > 0 {
            return Err(format!("@{name} differs in {differ} sectors from the sent snapshot"));
        }
        Ok(())
    }
}

impl Admin {
    /// Sends a snapshot to the replica, continues an interrupted stream, or destroys the replica.
    pub(crate) async fn replicate(&mut self) -> Result<(), Stop> {
        let volume = self.engine.volume(REPLICA).ok();
        if let Some(snapshot) = volume.and_then(|volume| volume.receiving()) {
            return self.go_on(&snapshot).await;
        }
        let last = self.expected.borrow().replica.arrived.last().map(|sent| sent.name.clone());
        let Some(last) = last else {
            let Some((_, of)) = self.some_snapshot().await? else { return Ok(()) };
            return self.begin(SendSpec { snapshot: of, from: None, resume: None }).await;
        };
        let Some(of) = self.source_of(&last).await? else { return self.destroy_replica().await };
        let mut newer = self.newer_than(&of).await?;
        if newer.is_empty() {
            self.take_of(&of.volume).await?;
            newer = self.newer_than(&of).await?;
        }
        if newer.is_empty() {
            return Ok(());
        }
        let snapshot = id(&of.volume, &newer[self.rng.index(newer.len())]);
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
            if !is_replica(&volume) && self.snapshots_of(&volume).await?.iter().any(|n| n == name) {
                return Ok(Some(id(&volume, name)));
            }
        }
        Ok(None)
    }

    async fn begin(&mut self, spec: SendSpec) -> Result<(), Stop> {
        {
            let mut expected = self.expected.borrow_mut();
            let snapshot = expected.snapshots.iter().find(|book| book.name == spec.snapshot.name);
            let snapshot = snapshot.expect("all that are taken are noted").clone();
            let Content::Known(content) = snapshot.content else { return Ok(()) };
            let sent = Sent { name: snapshot.name, size: snapshot.size, content };
            expected.replica.arriving = Some(sent);
        }
        if spec.from.is_some() {
            note(CoveragePoint::DifferenceSent);
        }
        self.send(spec).await
    }

    async fn destroy_replica(&mut self) -> Result<(), Stop> {
        self.expected.borrow_mut().replica.leaving = true;
        self.engine.destroy_volume(REPLICA, true).await.map_err(Stop::Told)?;
        self.expected.borrow_mut().replica = Replica::default();
        Ok(())
    }

    /// Resumes an interrupted stream if its snapshot still exists; otherwise aborts it.
    async fn go_on(&mut self, snapshot: &str) -> Result<(), Stop> {
        let token = self.engine.receive_token(REPLICA).await.map_err(Stop::Told)?;
        if let Some(source) = self.source_of(snapshot).await? {
            note(if token.next_record > 0 {
                CoveragePoint::StreamResumed
            } else {
                CoveragePoint::StreamCut
            });
            return self.resume(source, token).await;
        }
        self.give_up().await
    }

    async fn resume(&mut self, snapshot: SnapshotId, token: ResumeToken) -> Result<(), Stop> {
        let spec = SendSpec { snapshot, from: None, resume: Some(token) };
        match self.engine.prepare_send(&spec) {
            // The stream cannot resume, because its base snapshot was destroyed.
            Err(DatasetError::Unfit { .. }) => self.give_up().await,
            Err(error) => Err(Stop::Told(error)),
            Ok(_) => self.send(spec).await,
        }
    }

    async fn give_up(&mut self) -> Result<(), Stop> {
        self.engine.abort_receive(REPLICA).await.map_err(Stop::Told)?;
        self.expected.borrow_mut().replica.arriving = None;
        note(CoveragePoint::StreamGivenUp);
        Ok(())
    }

    /// Sends a stream and receives all of it or a prefix.
    async fn send(&mut self, spec: SendSpec) -> Result<(), Stop> {
        let sending = self.engine.prepare_send(&spec).map_err(Stop::Told)?;
        let mut stream = Vec::new();
        let put = async |part: Vec<u8>| {
            stream.extend(part);
            Ok(())
        };
        self.engine.send(&sending, put).await.map_err(Stop::Told)?;
        if self.rng.coin() {
            stream.truncate(self.rng.index(stream.len()));
        }
        let is_whole = match self.receive(&stream).await {
            Ok(is_whole) => is_whole,
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                note(CoveragePoint::NoSpace);
                let volume = self.engine.volume(REPLICA).ok();
                if volume.is_some_and(|volume| volume.receiving().is_some()) {
                    return self.give_up().await;
                }
                self.expected.borrow_mut().replica.arriving = None;
                return Ok(());
            }
            Err(error) => return Err(Stop::Told(error)),
        };
        if !is_whole {
            // If the stream was cut in its first frame, the receive created no volume.
            let volume = self.engine.volume(REPLICA).ok();
            if volume.is_none_or(|volume| volume.receiving().is_none()) {
                self.expected.borrow_mut().replica.arriving = None;
            }
            return Ok(());
        }
        let (replica, sectors) = {
            let mut expected = self.expected.borrow_mut();
            let sent = expected.replica.arriving.take();
            expected.replica.arrived.extend(sent);
            (expected.replica.clone(), expected.sectors_max())
        };
        note(CoveragePoint::StreamReceived);
        let sent = replica.arrived.last().expect("it has arrived");
        let found = sent.read(&self.engine, sectors).await.map_err(Stop::Told)?;
        sent.judge(&found).map_err(Stop::Broken)
    }

    /// Receives a stream; returns true if it is complete.
    async fn receive(&mut self, stream: &[u8]) -> Result<bool, DatasetError> {
        let spec = ReceiveSpec {
            volume: REPLICA.to_owned(),
            roll_back: false,
            dry_run: false,
            mark: None,
        };
        let mut receiver = Receiver::new(Arc::clone(&self.engine), spec);
        let piece = 1 + self.rng.below(PIECE_BYTES_MAX) as usize;
        for part in stream.chunks(piece) {
            receiver.push(part).await?;
            self.executor.yield_now().await;
        }
        match receiver.finish().await {
            Ok(_) => Ok(true),
            Err(DatasetError::CutOff { .. }) => Ok(false),
            Err(DatasetError::Stream { error, .. }) if error.is_cut() => Ok(false),
            Err(error) => Err(error),
        }
    }
}
