//! Receive: a stream creates a volume, or updates a volume from one snapshot to the next.
//!
//! weir-format defines the stream, the caller supplies its bytes, `state::volume` writes the
//! blocks, `objects` applies the stream of a dataset with many objects.
//!
//! Invariants:
//! - from the first change to the final snapshot no other task changes the volume;
//! - the same txg stores received data and the resume position ([`Receiver`]);
//! - the final snapshot exists if and only if the whole stream was received, and then has the
//!   content of the sender's snapshot;
//! - a refused stream leaves nothing behind; an interrupted stream can resume;
//! - one function decides whether a stream can be received, also for dry runs.

mod objects;
mod start;

use std::net::IpAddr;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::{BLOCK_BYTES, RecordSize};
use weir_block::{Block, Blocks};
use weir_format::stream::{
    ResumeToken, StreamBegin, StreamChanges, StreamCounts, StreamError, StreamFrame, StreamReader,
};
use weir_format::{Codec, DatasetKind, DatasetRecord, FormatError, Properties, Receiving};

use crate::error::DatasetError;
use crate::objects::log_queue::Payload;
use crate::state::engine::Engine;
use crate::state::outcome::Outcome;
use crate::state::snapshot::{Snapshot, descent, descent_mut};
use crate::state::taken_by::TakenBy;
use crate::state::volume::{State, Volume};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Blocks added to the open txg as one change.
const BLOCKS_AT_ONCE: usize = 256;

/// Destination and options of a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveSpec {
    /// Name of the destination volume inside the pool.
    pub volume: String,
    /// If true and the volume was changed since the base snapshot of the stream, the receive first
    /// rolls the volume back to that snapshot and destroys newer snapshots.
    pub roll_back: bool,
    /// If true, the receive only reads and checks the stream; it changes nothing.
    pub dry_run: bool,
    /// Restricts the stream to datasets that its sender created. `None` for streams that users
    /// receive.
    pub mark: Option<Mark>,
}

/// Sender of a stream, recorded in a user property. The volume that the stream creates and its
/// final snapshot get this property with the sender's address, in the txgs that create them. An
/// existing volume accepts the stream only if it has the property with that address. Only a
/// snapshot with the property becomes the origin of a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Name of the user property that records the sender. Its value may contain several addresses,
    /// separated by commas.
    pub property: String,
    /// The sender's address.
    pub address: IpAddr,
}

impl Mark {
    /// Returns the user property to set on the datasets that the stream creates.
    fn as_property(&self) -> (String, String) {
        (self.property.clone(), self.address.to_string())
    }

    /// True if these properties name the sender.
    fn is_on(&self, properties: &Properties) -> bool {
        let value = properties.user.get(&self.property).map_or("", String::as_str);
        value.split(',').any(|address| address.trim().parse() == Ok(self.address))
    }

    fn refusal(&self, name: String) -> DatasetError {
        let Self { property, address } = self.clone();
        DatasetError::NotMarked { name, property, address }
    }
}

/// Result of a receive, or of a dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// True if the stream created the volume.
    pub is_new: bool,
    /// True if the volume was rolled back first. A resumed stream does not report the rollback.
    pub rolled_back: bool,
    /// Guid of the final snapshot.
    pub guid: u64,
    /// Name of the final snapshot.
    pub snapshot: String,
    /// Record size; `counts` is in records of this size.
    pub record_size: RecordSize,
    /// Number of records and bytes in the stream.
    pub counts: StreamCounts,
}

/// Receive in progress. Dropping this value interrupts the stream: received data is kept, and the
/// stream can resume. After a crash the stream resumes at the position of the last committed txg,
/// because the txg with received data also stores the position.
pub struct Receiver {
    engine: Arc<Engine>,
    spec: ReceiveSpec,
    /// True if the received snapshot belongs to a user, so that no schedule destroys it.
    by_user: bool,
    /// True if datasets with many objects may be received.
    takes_objects: bool,
    reader: StreamReader,
    claim: Option<Claim>,
    /// Header and destination of a stream that a dry run checks.
    judged: Option<Judged>,
    rolled_back: bool,
    end: Option<StreamCounts>,
    received_bytes: u64,
    /// Leaves that the open txg removes from objects.
    removed_leaves: u64,
}

/// A stream that is only checked.
struct Judged {
    begin: StreamBegin,
    is_new: bool,
}

/// Exclusive right to change the destination volume of a stream.
struct Claim {
    volume: Arc<Volume>,
    begin: StreamBegin,
}

impl Claim {
    fn new(volume: &Arc<Volume>, state: &mut State, begin: StreamBegin) -> Self {
        assert!(!state.claimed, "the caller checked the claim");
        state.claimed = true;
        Self { volume: Arc::clone(volume), begin }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.volume.state.lock().claimed = false;
    }
}

/// Resume token of the unfinished stream into this volume.
fn token(record: &DatasetRecord) -> Option<ResumeToken> {
    let receiving = descent(record).receiving.as_ref()?;
    let Receiving { to, from, next_object, next_record, .. } = *receiving;
    Some(ResumeToken { to, from, next_object, next_record })
}

impl Receiver {
    /// Creates a receiver. Nothing changes before the first frame has arrived.
    pub fn new(engine: Arc<Engine>, spec: ReceiveSpec) -> Self {
        let reader = StreamReader::default();
        let (claim, judged, end) = (None, None, None);
        Self {
            engine,
            spec,
            by_user: false,
            takes_objects: false,
            reader,
            claim,
            judged,
            rolled_back: false,
            end,
            received_bytes: 0,
            removed_leaves: 0,
        }
    }

    /// As [`Self::new`], but the received snapshot belongs to a user, so that no schedule destroys
    /// or counts it.
    pub fn for_user(engine: Arc<Engine>, spec: ReceiveSpec) -> Self {
        Self { by_user: true, ..Self::new(engine, spec) }
    }

    /// Also receives datasets with many objects. Callers use it only for a pool whose label has the
    /// incompatible feature flag of such datasets, because an older weir must not import this pool.
    #[must_use]
    pub fn with_objects(self) -> Self {
        Self { takes_objects: true, ..self }
    }

    /// Bytes of the stream received so far.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Header of the stream, once it has arrived.
    pub fn begin(&self) -> Option<&StreamBegin> {
        let claimed = self.claim.as_ref().map(|claim| &claim.begin);
        claimed.or(self.judged.as_ref().map(|judged| &judged.begin))
    }

    /// Takes the next bytes of the stream, up to about 1 MiB. Waits for space.
    ///
    /// # Durability
    /// None. The token after a sync shows how much of the stream is on disk.
    ///
    /// # Errors
    /// `Stream` if the bytes are malformed, which leaves nothing behind; `Full` keeps the received
    /// data, as an interruption does. After an error the receiver cannot be used any more.
    #[boxed(?Send)]
    pub async fn push(&mut self, bytes: &[u8]) -> Result<(), DatasetError> {
        self.received_bytes += bytes.len() as u64;
        self.reader.push(bytes);
        loop {
            let frame = match self.reader.next_frame() {
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => frame,
                Err(error) => return Err(self.refuse(error).await),
            };
            match frame {
                StreamFrame::Begin(begin) => self.begin_stream(begin).await?,
                StreamFrame::Changes(changes) if self.spec.dry_run => self.look(&changes).await?,
                StreamFrame::Changes(changes) => self.apply(&changes).await?,
                StreamFrame::Objects(entries) if self.spec.dry_run => {
                    self.look_at_objects(&entries).await?;
                }
                StreamFrame::Objects(entries) => self.apply_objects(&entries).await?,
                StreamFrame::End(counts) => self.end = Some(counts),
            }
        }
    }

    async fn begin_stream(&mut self, begin: StreamBegin) -> Result<(), DatasetError> {
        if begin.objects.is_some() && !self.takes_objects {
            let name = self.engine.full_name(&self.spec.volume);
            let why = "cannot receive a filesystem: this weir receives volumes only".to_owned();
            return Err(DatasetError::Unfit { name, why });
        }
        if self.spec.dry_run {
            let plan = self.engine.plan_receive(&self.spec, &begin).await?;
            self.rolled_back = plan.rolls_back();
            self.judged = Some(Judged { begin, is_new: plan.is_of_new_volume() });
            return Ok(());
        }
        let (claim, rolled_back) = self.engine.begin_receive(&self.spec, begin).await?;
        (self.claim, self.rolled_back) = (Some(claim), rolled_back);
        Ok(())
    }

    /// Ends the stream and takes the snapshot, unless this is a dry run.
    ///
    /// # Durability
    /// The snapshot exists after any crash once this returns.
    ///
    /// # Errors
    /// `CutOff` if the end of the stream is missing; the stream can resume.
    #[boxed(?Send)]
    pub async fn finish(mut self) -> Result<Received, DatasetError> {
        let whole = self.reader.finish();
        let rolled_back = self.rolled_back;
        if let (Some(Judged { begin, is_new }), Some(counts), Ok(())) =
            (&self.judged, self.end, &whole)
        {
            let (is_new, guid, snapshot) = (*is_new, begin.to, begin.snapshot.clone());
            let record_size = begin.record_size;
            return Ok(Received { is_new, rolled_back, guid, snapshot, record_size, counts });
        }
        let (Some(claim), Some(counts)) = (&self.claim, self.end) else {
            let error = whole.expect_err("a stream without an end is incomplete");
            return Err(self.cut_off(error).await);
        };
        if let Err(error) = whole {
            return Err(self.refuse(error).await);
        }
        let engine = &self.engine;
        let _admin = engine.admin.lock().await;
        let begin = &claim.begin;
        let is_new = {
            let mut state = claim.volume.state.lock();
            claim.volume.check(&state, 0, 0)?;
            if state.snapshot(&begin.snapshot).is_some() {
                let name = engine.full_name(&state.record.name);
                let name = format!("{name}@{}", begin.snapshot);
                return Err(DatasetError::SnapshotClash { name });
            }
            let mut record = engine.wanted_snapshot(&state.record, &begin.snapshot);
            record.created_unix_ms = begin.created_unix_ms;
            if let DatasetKind::Snapshot(moment) = &mut record.kind {
                moment.guid = begin.to;
            }
            record.properties.user.extend(self.spec.mark.as_ref().map(Mark::as_property));
            let into = TakenBy::Received(state.record.id);
            let by = if self.by_user { TakenBy::User } else { into };
            record.properties.user.extend([by.as_property()]);
            let receiving = descent_mut(&mut state.record).receiving.take();
            state.record_dirty = true;
            state.taking = Some(record);
            receiving.is_some_and(|receiving| receiving.is_new)
        };
        engine.commit_change().await?;
        let (guid, snapshot, record_size) = (begin.to, begin.snapshot.clone(), begin.record_size);
        Ok(Received { is_new, rolled_back, guid, snapshot, record_size, counts })
    }

    /// Commits the received data and returns the error for a stream that ended early.
    async fn cut_off(&self, error: StreamError) -> DatasetError {
        let name = self.engine.full_name(&self.spec.volume);
        let Some(claim) = &self.claim else { return DatasetError::Stream { name, error } };
        if let Err(error) = self.engine.sync().await {
            return error;
        }
        match token(&claim.volume.state.lock().record) {
            Some(token) => DatasetError::CutOff { name, token },
            None => DatasetError::Stream { name, error },
        }
    }

    /// Aborts the receive and undoes its changes.
    async fn refuse(&mut self, error: StreamError) -> DatasetError {
        if let Some(claim) = self.claim.take() {
            let volume = claim.volume.state.lock().record.name.clone();
            drop(claim);
            if let Err(error) = self.engine.abort_receive(&volume).await {
                tracing::error!(volume, %error, "a rejected stream could not be undone");
            }
        }
        DatasetError::Stream { name: self.engine.full_name(&self.spec.volume), error }
    }

    async fn apply(&mut self, changes: &StreamChanges) -> Result<(), DatasetError> {
        let claim = self.claim.as_ref().expect("the reader returns the begin before changes");
        let (volume, size) = (Arc::clone(&claim.volume), claim.begin.record_size);
        // Consecutive blocks, and the number of the first one.
        let mut run: Vec<Block> = Vec::new();
        let mut first = 0;
        for (change, stored) in changes.iter() {
            let (next, start) = (first + run.len() as u64, size.first_block(change.start));
            let goes_on = stored.is_some() && start == next && run.len() < BLOCKS_AT_ONCE;
            if !run.is_empty() && !goes_on {
                volume.receive(first, Payload::Many(std::mem::take(&mut run))).await?;
            }
            match stored {
                Some((codec, stored)) => {
                    if run.is_empty() {
                        first = start;
                    }
                    let Some(blocks) = self.unpack(size, codec, stored) else {
                        return Err(self.refuse_record(change.start).await);
                    };
                    run.extend_from_slice(&blocks);
                }
                None => {
                    let bytes = change.count * size.bytes() as u64;
                    volume.receive(start, Payload::Zero { bytes }).await?;
                }
            }
        }
        if !run.is_empty() {
            volume.receive(first, Payload::Many(run)).await?;
        }
        Ok(())
    }

    /// As [`Self::apply`], for a dry run: changes nothing.
    async fn look(&mut self, changes: &StreamChanges) -> Result<(), DatasetError> {
        let size = self.begin().expect("the reader returns the begin first").record_size;
        for (change, stored) in changes.iter() {
            if stored.is_some_and(|(codec, stored)| self.unpack(size, codec, stored).is_none()) {
                return Err(self.refuse_record(change.start).await);
            }
        }
        Ok(())
    }

    /// Refuses a stream with a malformed record.
    async fn refuse_record(&mut self, value: u64) -> DatasetError {
        let (what, field) = ("stream frame", "malformed record");
        let error = self.reader.refuse_last(FormatError::Field { what, field, value });
        self.refuse(error).await
    }

    fn unpack(&self, size: RecordSize, codec: Codec, stored: &[u8]) -> Option<Blocks> {
        self.engine.core.pool.unpack_stored(size, codec, stored)
    }
}

impl Volume {
    /// Name of the final snapshot of an unfinished stream into the volume. The stream is being
    /// received or was interrupted.
    pub fn receiving(&self) -> Option<String> {
        let state = self.state.lock();
        if state.is_view {
            return None;
        }
        descent(&state.record).receiving.as_ref().map(|receiving| receiving.snapshot.clone())
    }

    /// True if the volume has the content of its newest snapshot.
    pub fn is_at_newest_snapshot(&self) -> bool {
        let state = self.state.lock();
        let newest = state.snapshots.iter().rfind(|snapshot| snapshot.is_active());
        newest.is_some_and(|newest| stands_at(&state, &newest.record))
    }

    /// True if this user property is set on the volume itself, with a non-empty value.
    pub fn has_user_property(&self, name: &str) -> bool {
        let state = self.state.lock();
        state.record.properties.user.get(name).is_some_and(|value| !value.is_empty())
    }

    /// Adds received data and the new resume position to the open txg as one change.
    async fn receive(&self, first: u64, payload: Payload) -> Result<(), DatasetError> {
        let blocks = match &payload {
            Payload::One(_) => 1,
            Payload::Many(blocks) => blocks.len() as u64,
            Payload::Zero { bytes } => bytes / BLOCK,
        };
        let mut waited_in_vain = false;
        loop {
            self.core.pool.check_alive()?;
            let coming = self.core.space_is_coming();
            {
                let mut state = self.state.lock();
                self.check(&state, first * BLOCK, blocks * BLOCK)?;
                let is_admitted = match &payload {
                    Payload::Zero { .. } if !self.admit_trim(&state, 0)? => false,
                    Payload::Zero { .. } if self.core.admit_trim(0) => true,
                    Payload::Zero { .. } if waited_in_vain && !coming => {
                        return Err(self.core.full());
                    }
                    Payload::Zero { .. } => false,
                    _ => self.admit(&state, blocks, false)?,
                };
                if is_admitted {
                    let size = state.record.record_size;
                    self.put_received(&mut state, first, payload);
                    let receiving = &mut descent_mut(&mut state.record).receiving;
                    let receiving = receiving.as_mut().expect("only the claim holder ends it");
                    let next_record = size.record_of(first + blocks);
                    receiving.next_record = receiving.next_record.max(next_record);
                    return Ok(());
                }
                waited_in_vain = true;
            }
            self.wait_for_room().await?;
        }
    }

    /// Changes the open txg without the intent log, which does not contain the resume position.
    fn put_received(&self, state: &mut State, first: u64, payload: Payload) {
        state.object.log.skip_until(self.core.open_txg());
        self.insert(state, first * BLOCK, payload);
    }
}

impl Engine {
    /// Refuses an operation on a volume with an unfinished stream.
    pub(crate) fn refuse_receiving(&self, state: &State) -> Result<(), DatasetError> {
        let Some(receiving) = &descent(&state.record).receiving else { return Ok(()) };
        let why = format!(
            "is receiving a stream, up to snapshot {}; wait for its end, or abort it with 'weir \
             receive --abort'",
            receiving.snapshot
        );
        let name = self.full_name(&state.record.name);
        let next = Some(format!("weir receive --abort {name}"));
        Err(DatasetError::InUse { name, why, next })
    }

    /// Commits the received data and returns the resume token of a volume's stream.
    ///
    /// # Errors
    /// `Unfit` if the volume has no unfinished stream.
    #[boxed(?Send)]
    pub async fn receive_token(&self, volume: &str) -> Result<ResumeToken, DatasetError> {
        let found = self.volume(volume)?;
        self.sync().await?;
        let state = found.state.lock();
        token(&state.record).ok_or_else(|| self.not_receiving(volume))
    }

    fn not_receiving(&self, volume: &str) -> DatasetError {
        let why = "is not receiving a stream: there is nothing to resume".to_owned();
        DatasetError::Unfit { name: self.full_name(volume), why }
    }

    /// Abandons an interrupted stream. A volume created for it is destroyed; an older volume
    /// returns to its previous content.
    ///
    /// # Durability
    /// A crash leaves the stream either interrupted, as before, or abandoned.
    ///
    /// # Errors
    /// `InUse` while the stream is being received.
    #[boxed(?Send)]
    pub async fn abort_receive(&self, volume: &str) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let found = self.volume(volume)?;
        let receiving = {
            let state = found.state.lock();
            let receiving = descent(&state.record).receiving.clone();
            let receiving = receiving.ok_or_else(|| self.not_receiving(volume))?;
            if state.claimed {
                let why = "is receiving a stream now; stop that first".to_owned();
                let next = Some("weir stream list".to_owned());
                return Err(DatasetError::InUse { name: self.full_name(volume), why, next });
            }
            receiving
        };
        if receiving.is_new {
            return self.destroy_found(&found, true).await;
        }
        let target = receiving.from.and_then(|guid| self.standing_at(&found, guid));
        let target = target.ok_or_else(|| DatasetError::Broken {
            name: self.full_name(volume),
            why: "has lost the base snapshot of its stream; destroy the volume".to_owned(),
        })?;
        self.put_back(&found, &target, &[], |state| {
            descent_mut(&mut state.record).receiving = None;
        })
        .await
    }

    /// Directory entry of the snapshot with this guid, which is a snapshot of the volume or its
    /// origin.
    pub(super) fn standing_at(&self, volume: &Volume, guid: u64) -> Option<DatasetRecord> {
        let origin = {
            let state = volume.state.lock();
            let is = |s: &&Snapshot| s.is_active() && s.moment().guid == guid;
            if let Some(own) = state.snapshots.iter().rev().find(is) {
                return Some(own.record.clone());
            }
            descent(&state.record).origin?
        };
        self.find_snapshot(|s| s.record.id == origin.snapshot && s.moment().guid == guid)
    }

    /// Finds the first active snapshot for which `is` returns true.
    pub(super) fn find_snapshot(&self, is: impl Fn(&Snapshot) -> bool) -> Option<DatasetRecord> {
        self.volumes().into_iter().find_map(|volume| {
            let state = volume.state.lock();
            state.snapshots.iter().find(|s| s.is_active() && is(s)).map(|s| s.record.clone())
        })
    }
}

/// True if a volume has the content of a snapshot.
pub(crate) fn stands_at(state: &State, snapshot: &DatasetRecord) -> bool {
    !state.object.has_unwritten()
        && !state.objects.as_ref().is_some_and(|objects| objects.has_unwritten())
        && state.record.root == snapshot.root
        && state.record.size_bytes == snapshot.size_bytes
}
