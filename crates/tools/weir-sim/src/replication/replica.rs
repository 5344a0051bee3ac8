//! Replication of snapshots to another volume or dataset of the pool, as `weir send` and
//! `weir receive` do, while clients write: the state of a replica, and the calls that change it.
//!
//! `volumes` selects the snapshots of volumes, and `objects::replica` selects the snapshots of
//! datasets with many objects. weir-dataset tests damaged streams; tests/all/receive.rs tests two
//! pools.
//!
//! Invariants:
//! - only streams change a replica, so it never shows content other than its snapshots;
//! - an interrupted stream resumes at the replica's resume token or is aborted;
//! - a call is recorded as pending before it starts, and as acknowledged right after it returns.

use std::cell::RefCell;
use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use weir_base::ErrorKind;
use weir_dataset::{DatasetError, Engine, ReceiveSpec, Receiver, SendSpec, SnapshotId};
use weir_format::stream::ResumeToken;

use crate::coverage::{CoveragePoint, note};
use crate::error::Stop;
use crate::executor::Executor;
use crate::rng::Rng;

/// Maximum number of bytes of a stream that one call of the receiver gets.
const PIECE_BYTES_MAX: u64 = 60_000;

/// Coverage points of one kind of replica.
#[derive(Debug)]
pub(crate) struct ReplicaPoints {
    /// An incremental stream was sent.
    pub(crate) difference: CoveragePoint,
    /// A stream was received completely.
    pub(crate) received: CoveragePoint,
    /// An interrupted stream was resumed from its first record.
    pub(crate) cut: CoveragePoint,
    /// An interrupted stream was resumed after its first record.
    pub(crate) resumed: CoveragePoint,
    /// An interrupted receive was aborted.
    pub(crate) given_up: CoveragePoint,
    /// A stream was resumed after a power cut had interrupted it.
    pub(crate) outlived_cut: CoveragePoint,
}

impl ReplicaPoints {
    /// Points of streams of datasets with many objects.
    pub(crate) const OBJECTS: Self = Self {
        difference: CoveragePoint::ObjectsDifferenceSent,
        received: CoveragePoint::ObjectsReceived,
        cut: CoveragePoint::ObjectsStreamCut,
        resumed: CoveragePoint::ObjectsStreamResumed,
        given_up: CoveragePoint::ObjectsStreamGivenUp,
        outlived_cut: CoveragePoint::ObjectsStreamOutlivedCut,
    };
}

/// Expected content of a sent snapshot.
pub(crate) trait SentContent: Clone + Debug + 'static {
    /// Compares a received snapshot with the sent content.
    ///
    /// # Errors
    /// `Ok(Err)`: the first difference.
    async fn compare(
        &self,
        engine: &Arc<Engine>,
        received: &SnapshotId,
    ) -> Result<Result<(), String>, DatasetError>;
}

/// A snapshot that was sent completely or is in transfer.
#[derive(Clone, Debug)]
pub(crate) struct Sent<C> {
    pub(crate) name: String,
    pub(crate) content: C,
}

/// Expected state of a replica.
#[derive(Clone, Debug)]
pub(crate) struct Replica<C> {
    /// Name of the replica.
    name: &'static str,
    points: &'static ReplicaPoints,
    /// Completely received snapshots, in order of receipt.
    arrived: Vec<Sent<C>>,
    /// Snapshot in transfer: a recovery finds the complete snapshot or none.
    arriving: Option<Sent<C>>,
    /// If true, a power cut interrupted the transfer of `arriving`.
    is_cut: bool,
    /// If true, the destruction of the replica is pending.
    leaving: bool,
}

/// Recovered state of a replica.
#[derive(Clone, Debug)]
pub(crate) struct FoundReplica {
    snapshots: Vec<String>,
    receiving: Option<String>,
}

impl<C: SentContent> Replica<C> {
    /// Expected state of a replica that does not exist.
    pub(crate) fn new(name: &'static str, points: &'static ReplicaPoints) -> Self {
        let (arrived, arriving) = (Vec::new(), None);
        Self { name, points, arrived, arriving, is_cut: false, leaving: false }
    }

    /// Names of the completely received snapshots, oldest first.
    pub(crate) fn arrived(&self) -> impl DoubleEndedIterator<Item = &str> + ExactSizeIterator {
        self.arrived.iter().map(|sent| sent.name.as_str())
    }

    /// Makes the recovered state the expected state.
    pub(crate) fn rebase(&mut self, found: Option<FoundReplica>) {
        let Some(FoundReplica { snapshots, receiving }) = found else {
            *self = Self::new(self.name, self.points);
            return;
        };
        self.leaving = false;
        let has_arrived = |sent: &mut Sent<C>| snapshots.contains(&sent.name);
        self.arrived.extend(self.arriving.take_if(has_arrived));
        self.arriving.take_if(|_| receiving.is_none());
        self.is_cut = self.arriving.is_some();
    }

    /// Checks the replica against the expected state; returns its actual state.
    pub(crate) async fn judge(&self, engine: &Arc<Engine>) -> Result<Option<FoundReplica>, String> {
        let Ok(volume) = engine.volume(self.name) else {
            let may_be_gone = self.arrived.is_empty() || self.leaving;
            return if may_be_gone { Ok(None) } else { Err("is gone".to_owned()) };
        };
        let listed = engine.snapshots(self.name).await.map_err(|error| error.to_string())?;
        let snapshots: Vec<String> = listed.into_iter().map(|info| info.name).collect();
        let all: Vec<&Sent<C>> = self.arrived.iter().chain(&self.arriving).collect();
        let (there, count) = (all.iter().take(snapshots.len()), snapshots.len());
        let is_prefix = snapshots.iter().eq(there.map(|sent| &sent.name));
        if !is_prefix || count < self.arrived.len() || all.is_empty() {
            return Err(format!("has {snapshots:?} of {all:?}"));
        }
        for sent in &all[..count] {
            let compared = self.compare(engine, sent).await;
            compared.map_err(|error| format!("@{}: {error}", sent.name))??;
        }
        let receiving = volume.receiving();
        match (&receiving, all.get(count), count) {
            (None, _, 1..) => {}
            (Some(found), Some(sent), _) if *found == sent.name => {}
            _ => return Err(format!("receives {receiving:?} after {snapshots:?}")),
        }
        Ok(Some(FoundReplica { snapshots, receiving }))
    }

    async fn compare(
        &self,
        engine: &Arc<Engine>,
        sent: &Sent<C>,
    ) -> Result<Result<(), String>, DatasetError> {
        let compared =
            sent.content.compare(engine, &SnapshotId::new(self.name, &sent.name)).await?;
        Ok(compared.map_err(|what| format!("@{} {what}", sent.name)))
    }
}

/// Sends snapshots to one replica. `E` is the expected state of the scenario.
pub(crate) struct Courier<'a, E, C> {
    pub(crate) rng: &'a mut Rng,
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) expected: &'a Rc<RefCell<E>>,
    pub(crate) executor: &'a Executor,
    /// Finds the replica in the expected state.
    pub(crate) replica: fn(&mut E) -> &mut Replica<C>,
}

impl<E, C: SentContent> Courier<'_, E, C> {
    fn of<T>(&self, of: impl FnOnce(&mut Replica<C>) -> T) -> T {
        of((self.replica)(&mut self.expected.borrow_mut()))
    }

    fn name(&self) -> &'static str {
        self.of(|replica| replica.name)
    }

    fn note(&self, point: impl FnOnce(&ReplicaPoints) -> CoveragePoint) {
        note(self.of(|replica| point(replica.points)));
    }

    /// Name of the snapshot whose stream was interrupted.
    pub(crate) fn interrupted(&self) -> Option<String> {
        self.engine.volume(self.name()).ok().and_then(|volume| volume.receiving())
    }

    /// Resume token of the interrupted stream.
    pub(crate) async fn token(&self) -> Result<ResumeToken, Stop> {
        self.engine.receive_token(self.name()).await.map_err(Stop::Failed)
    }

    /// Sends a snapshot with this content; returns true if the replica received the complete
    /// snapshot.
    pub(crate) async fn begin(&mut self, spec: SendSpec, content: C) -> Result<bool, Stop> {
        let name = spec.snapshot.name.clone();
        self.of(|replica| replica.arriving = Some(Sent { name, content }));
        if spec.from.is_some() {
            self.note(|points| points.difference);
        }
        self.send(spec).await
    }

    /// Resumes an interrupted stream. If the stream's snapshot (`None`) or its base snapshot no
    /// longer exists, aborts the receive instead. Returns true if the replica received the complete
    /// snapshot.
    pub(crate) async fn resume(
        &mut self,
        token: ResumeToken,
        snapshot: Option<SnapshotId>,
    ) -> Result<bool, Stop> {
        let Some(snapshot) = snapshot else { return self.give_up().await };
        let has_begun = token.next_record > 0 || token.next_object.0 > 0;
        self.note(|points| if has_begun { points.resumed } else { points.cut });
        let spec = SendSpec { snapshot, from: None, resume: Some(token) };
        match self.engine.prepare_send(&spec) {
            // The stream cannot resume, because its base snapshot was destroyed.
            Err(DatasetError::Unfit { .. }) => self.give_up().await,
            Err(error) => Err(Stop::Failed(error)),
            Ok(_) => {
                if self.of(|replica| std::mem::take(&mut replica.is_cut)) {
                    self.note(|points| points.outlived_cut);
                }
                self.send(spec).await
            }
        }
    }

    async fn give_up(&mut self) -> Result<bool, Stop> {
        self.engine.abort_receive(self.name()).await.map_err(Stop::Failed)?;
        self.of(|replica| replica.arriving = None);
        self.note(|points| points.given_up);
        Ok(false)
    }

    /// Destroys the replica.
    pub(crate) async fn destroy(&mut self) -> Result<(), Stop> {
        self.of(|replica| replica.leaving = true);
        self.engine.destroy_volume(self.name(), true).await.map_err(Stop::Failed)?;
        self.of(|replica| *replica = Replica::new(replica.name, replica.points));
        Ok(())
    }

    /// Sends a stream, and receives either the complete stream or only a prefix; returns true if
    /// the replica received the complete stream.
    async fn send(&mut self, spec: SendSpec) -> Result<bool, Stop> {
        let sending = self.engine.prepare_send(&spec).map_err(Stop::Failed)?;
        let mut stream = Vec::new();
        let put = async |part: Vec<u8>| {
            stream.extend(part);
            Ok(())
        };
        self.engine.send(&sending, put).await.map_err(Stop::Failed)?;
        if self.rng.coin() {
            stream.truncate(self.rng.index(stream.len()));
        }
        let is_whole = match self.receive(&stream).await {
            Ok(is_whole) => is_whole,
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                note(CoveragePoint::NoSpace);
                if self.interrupted().is_some() {
                    return self.give_up().await;
                }
                self.of(|replica| replica.arriving = None);
                return Ok(false);
            }
            Err(error) => return Err(Stop::Failed(error)),
        };
        if !is_whole {
            // If the stream was cut in its first frame, the receive created no volume.
            if self.interrupted().is_none() {
                self.of(|replica| replica.arriving = None);
            }
            return Ok(false);
        }
        let replica = self.of(|replica| {
            let sent = replica.arriving.take();
            replica.arrived.extend(sent);
            replica.clone()
        });
        note(replica.points.received);
        let sent = replica.arrived.last().expect("it has arrived");
        let compared = replica.compare(self.engine, sent).await.map_err(Stop::Failed)?;
        compared.map(|()| true).map_err(Stop::Broken)
    }

    /// Receives a stream; returns true if it is complete.
    async fn receive(&mut self, stream: &[u8]) -> Result<bool, DatasetError> {
        let spec = ReceiveSpec {
            volume: self.name().to_owned(),
            roll_back: false,
            dry_run: false,
            mark: None,
        };
        let mut receiver = Receiver::new(Arc::clone(self.engine), spec).with_objects();
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
