//! Send: writes a snapshot, or its difference to an older snapshot, as a stream.
//!
//! weir-format defines the stream; the caller transfers it; `receive` applies it. `send_objects`
//! walks the objects of a dataset with many objects.
//!
//! Invariants:
//! - blocks are sent as stored, each after a check of its checksum;
//! - an incremental stream contains every record that differs between the two snapshots: a written
//!   record was born after the base, and a trimmed record is a hole in a node born after the base;
//! - a snapshot cannot be destroyed while it is sent.

use std::pin::Pin;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use weir_base::{BLOCK_BYTES, ObjectId, Txg};
use weir_format::layout::PACK_BYTES;
use weir_format::stream::{ResumeToken, StreamBegin, StreamCounts, StreamObjects, StreamWriter};
use weir_format::{
    BlockPtr, DatasetRecord, NODE_FANOUT, OBJECT_SLOTS_PER_BLOCK, OBJECTS_MAX, ObjectTable,
    TreeRoot,
};
use weir_pool::{DatasetDiff, DiffSpec, Objects, Place, PlantedBug, Stored};

use crate::error::DatasetError;
use crate::snapshots::bookmarks::BookmarkId;
use crate::state::engine::Engine;
use crate::state::mark::Mark;
use crate::state::snapshot::{Snapshot, SnapshotId, descent};
use crate::state::volume::Volume;

/// Blocks read as one group: two device reads if the blocks are adjacent.
pub(super) const BLOCKS_AT_ONCE: usize = 512;

/// Groups read concurrently. With [`BLOCKS_AT_ONCE`] they need at most 8 MiB of memory, plus the
/// gaps that are read between blocks.
pub(super) const GROUPS_IN_FLIGHT: usize = 4;

/// Pointers that the estimate for the rest of a stream reads: 256 nodes, 1 MiB of reads.
const ESTIMATE_POINTERS_MAX: usize = 32_768;

/// Description of a stream to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendSpec {
    /// Snapshot whose content the stream has.
    pub snapshot: SnapshotId,
    /// Base of an incremental stream: an older snapshot that the receiver has, of the same volume
    /// or of an origin.
    pub from: Option<SendFrom>,
    /// Position at which an interrupted stream resumes. The token already identifies the base, so
    /// `from` is not needed.
    pub resume: Option<ResumeToken>,
}

/// Base of an incremental stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendFrom {
    /// An existing snapshot.
    Snapshot(SnapshotId),
    /// A bookmark, also of a destroyed snapshot.
    Bookmark(BookmarkId),
}

/// Prepared stream. The snapshot cannot be destroyed while this value is held.
pub struct Sending {
    view: Arc<Volume>,
    begin: StreamBegin,
    root: TreeRoot,
    /// Blocks born in this txg or earlier are not sent.
    after: Txg,
    estimate_bytes: u64,
}

impl Sending {
    /// Header of the stream.
    pub fn begin(&self) -> &StreamBegin {
        &self.begin
    }

    /// Approximate size of the stream, for users: stored bytes born after the base.
    pub fn estimate_bytes(&self) -> u64 {
        self.estimate_bytes
    }

    pub(super) fn view(&self) -> &Volume {
        &self.view
    }

    pub(super) fn root(&self) -> TreeRoot {
        self.root
    }

    pub(super) fn after(&self) -> Txg {
        self.after
    }

    pub(super) fn is_incremental(&self) -> bool {
        self.begin.from.is_some()
    }

    /// Object at which the stream begins; 0 for a volume.
    pub(super) fn first_object(&self) -> ObjectId {
        self.begin.objects.map_or(ObjectId::VOLUME, |objects| objects.first)
    }

    /// Parameters of the diff of the objects that a resumed stream sends, for an estimate.
    fn objects_left(&self) -> DiffSpec {
        let from = Place { object: self.first_object(), block: self.begin.first_record };
        DiffSpec { from, ..DiffSpec::of_tree(Objects::Many, self.root, None, self.after) }
    }

    /// Parameters of the tree diff. The diff skips nodes born in txg `after` or earlier, with
    /// everything below them. From other nodes it returns every hole, because it does not know the
    /// previous content.
    fn what(&self, bug: PlantedBug) -> DiffSpec {
        let (mut from, mut holes) = (self.begin.first_record, self.begin.from.is_some());
        if bug == PlantedBug::ResumeSkips && from > 0 {
            from = from.next_multiple_of(NODE_FANOUT as u64) + NODE_FANOUT as u64;
        }
        holes &= bug != PlantedBug::TrimsNotSent;
        let from = Place::in_volume(from);
        let what = DiffSpec::of_tree(Objects::One, self.root, None, self.after);
        DiffSpec { from, holes, ..what }
    }
}

/// Part of a stream's header for a dataset with many objects.
fn stream_objects(record: &DatasetRecord, resume: Option<&ResumeToken>) -> Option<StreamObjects> {
    let ObjectTable { layer, .. } = record.objects?;
    let first = resume.map_or(ObjectId::VOLUME, |token| token.next_object);
    Some(StreamObjects { first, layer })
}

/// Refuses a position beyond the end of the dataset, and a position in another kind of dataset.
fn check_position(record: &DatasetRecord, token: &ResumeToken) -> Result<(), String> {
    let (object, first) = (token.next_object.0, token.next_record);
    if record.objects.is_none() && object > 0 {
        return Err("is a volume, and this token resumes at an object".to_owned());
    }
    let records = match object {
        0 => record.record_size.records_in(record.size_bytes),
        _ => TreeRoot::BLOCKS_MAX,
    };
    if first > records || object > OBJECTS_MAX {
        return Err("ends before the record at which this token resumes".to_owned());
    }
    Ok(())
}

/// Base of a stream: an older snapshot, or a bookmark of such a snapshot.
struct Older {
    guid: u64,
    txg: Txg,
    is_clone: bool,
}

/// Changes that are sent together. For each: the first record, the number of records, and the
/// pointer or a hole.
type Changes = Vec<(u64, u64, BlockPtr)>;

/// As [`Changes`], with verified stored bytes; `None` for a hole.
type Read = Result<Vec<(u64, u64, BlockPtr, Option<Stored>)>, DatasetError>;

impl Engine {
    /// Resolves the names and opens the snapshot, which then cannot be destroyed.
    ///
    /// # Errors
    /// `NoSnapshot`, `NoBookmark`; `Unfit` if the snapshot does not descend from the base, or for a
    /// token of another stream.
    pub fn prepare_send(&self, spec: &SendSpec) -> Result<Sending, DatasetError> {
        self.core.pool.check_alive()?;
        let SnapshotId { volume, name } = &spec.snapshot;
        let full = || format!("{}@{name}", self.full_name(volume));
        let view = self.open_snapshot(&spec.snapshot)?;
        let of = self.volume(volume)?;
        let (record, guid, born) = {
            let state = of.state.lock();
            let at = state.snapshots.iter().position(|s| s.is_active() && s.record.name == *name);
            let at = at.ok_or_else(|| DatasetError::NoSnapshot { name: full() })?;
            let born: Vec<(Txg, u64)> = state.snapshots[..=at]
                .iter()
                .map(|s| (s.moment().txg, s.record.born_units))
                .collect();
            (state.snapshots[at].record.clone(), state.snapshots[at].moment().guid, born)
        };
        let unfit = |why: String| DatasetError::Unfit { name: full(), why };
        let older = match (&spec.from, &spec.resume) {
            (_, Some(token)) if token.to != guid => {
                return Err(unfit("is not the snapshot of this token".to_owned()));
            }
            (_, Some(ResumeToken { from: Some(guid), .. })) => {
                let is = |_: &DatasetRecord, s: &Snapshot| s.moment().guid == *guid;
                let marked = |_: &str, mark: &Mark| mark.bookmark().guid == *guid;
                let older = self.older(&of, &record, is);
                let older = older.or_else(|| self.older_mark(&of, &record, marked));
                Some(older.ok_or_else(|| {
                    unfit(
                        "was sent as an increment from a snapshot that no longer exists".to_owned(),
                    )
                })?)
            }
            (_, Some(_)) | (None, None) => None,
            (Some(from), None) => {
                let older = self.named_older(&of, &record, from)?;
                Some(older.ok_or_else(|| {
                    let from = match from {
                        SendFrom::Snapshot(id) => self.snapshot_name(&id.volume, &id.name),
                        SendFrom::Bookmark(id) => self.bookmark_name(id),
                    };
                    unfit(format!(
                        "is not based on {from}; name an older snapshot of the volume, or the one \
                         it was cloned from"
                    ))
                })?)
            }
        };
        let after = older.as_ref().map_or(Txg(0), |older| older.txg);
        let estimate = match &older {
            None => record.stored_units,
            Some(_) => born.iter().filter(|(txg, _)| *txg > after).map(|(_, units)| units).sum(),
        };
        let begin = StreamBegin {
            to: guid,
            from: older.as_ref().map(|older| older.guid),
            is_clone: older.is_some_and(|older| older.is_clone),
            compression: self.core.compression_of(&record.properties),
            first_record: spec.resume.map_or(0, |token| token.next_record),
            size_bytes: record.size_bytes,
            record_size: record.record_size,
            created_unix_ms: record.created_unix_ms,
            volume: volume.clone(),
            snapshot: name.clone(),
            objects: stream_objects(&record, spec.resume.as_ref()),
        };
        let position = spec.resume.as_ref().map_or(Ok(()), |token| check_position(&record, token));
        position.map_err(unfit)?;
        let estimate_bytes = estimate * PACK_BYTES as u64;
        Ok(Sending { view, begin, root: record.root, after, estimate_bytes })
    }

    /// Resolves the named base. `None`: the snapshot does not descend from it.
    ///
    /// # Errors
    /// `NoSnapshot` or `NoBookmark` if the named base does not exist.
    fn named_older(
        &self,
        of: &Arc<Volume>,
        record: &DatasetRecord,
        from: &SendFrom,
    ) -> Result<Option<Older>, DatasetError> {
        match from {
            SendFrom::Snapshot(from) => {
                self.open_snapshot(from)?;
                let is = |of: &DatasetRecord, s: &Snapshot| {
                    of.name == from.volume && s.record.name == from.name
                };
                Ok(self.older(of, record, is))
            }
            SendFrom::Bookmark(from) => {
                if !self.bookmarks(&from.volume)?.iter().any(|mark| mark.name == from.name) {
                    return Err(self.no_bookmark(from));
                }
                let is = |of: &str, mark: &Mark| of == from.volume && mark.record.name == from.name;
                Ok(self.older_mark(of, record, is))
            }
        }
    }

    fn older_mark(
        &self,
        of: &Arc<Volume>,
        record: &DatasetRecord,
        is: impl Fn(&str, &Mark) -> bool,
    ) -> Option<Older> {
        let (mark, is_clone) = self.older_bookmark(of, record, is)?;
        Some(Older { guid: mark.guid, txg: mark.txg, is_clone })
    }

    /// Finds the snapshot for which `is` returns true among the ancestors of a snapshot: older
    /// snapshots of its volume, and of the volumes of its origins.
    fn older(
        &self,
        of: &Arc<Volume>,
        record: &DatasetRecord,
        is: impl Fn(&DatasetRecord, &Snapshot) -> bool,
    ) -> Option<Older> {
        let (mut volume, mut newest, mut is_clone) = (Arc::clone(of), record.id, false);
        loop {
            let origin = {
                let state = volume.state.lock();
                let at = state.snapshots.iter().position(|s| s.record.id == newest)?;
                // A snapshot cannot be the base of its own stream, but an origin can be the base of
                // the stream of its clone.
                let older = &state.snapshots[..at + usize::from(is_clone)];
                let fits = |s: &&Snapshot| s.is_active() && is(&state.record, s);
                if let Some(found) = older.iter().find(fits) {
                    let moment = found.moment();
                    return Some(Older { guid: moment.guid, txg: moment.txg, is_clone });
                }
                descent(&state.record).origin?
            };
            volume = self.owner_of_snapshot(origin.snapshot)?;
            (newest, is_clone) = (origin.snapshot, true);
        }
    }

    /// Estimates the bytes of a stream. For a resumed stream, reads up to [`ESTIMATE_POINTERS_MAX`]
    /// pointers of the rest and extrapolates.
    ///
    /// # Errors
    /// The pool is suspended, or a node is unreadable.
    #[boxed(?Send)]
    pub async fn estimate_send(&self, sending: &Sending) -> Result<u64, DatasetError> {
        let (first, object) = (sending.begin.first_record, sending.first_object());
        if object > ObjectId::VOLUME {
            let objects = sending.root.blocks().saturating_mul(OBJECT_SLOTS_PER_BLOCK as u64);
            let rest = objects.saturating_sub(object.0).max(1);
            let done = |place: Place| place.object.0.saturating_sub(object.0);
            return self.extrapolate(sending, sending.objects_left(), (0, rest), done).await;
        }
        if first == 0 {
            return Ok(sending.estimate_bytes);
        }
        let records = sending.begin.record_size.records_in(sending.begin.size_bytes);
        let what = DiffSpec { holes: false, ..sending.what(PlantedBug::None) };
        let done = |place: Place| place.block.saturating_sub(first);
        self.extrapolate(sending, what, (first, records.saturating_sub(first)), done).await
    }

    /// Estimates the bytes of the rest of a stream: reads the first pointers of `what`, and
    /// extrapolates. `rest` is the number of records or objects that are left, and `done` returns
    /// how many of them are before a place. Ignores records before `first`.
    async fn extrapolate(
        &self,
        sending: &Sending,
        what: DiffSpec,
        (first, rest): (u64, u64),
        done: impl Fn(Place) -> u64,
    ) -> Result<u64, DatasetError> {
        let mut walk = self.core.pool.unshared(what);
        let (mut bytes, mut pointers) = (0, 0);
        while pointers < ESTIMATE_POINTERS_MAX {
            let found = walk.next().await?;
            if found.is_empty() {
                return Ok(bytes);
            }
            pointers += found.len();
            let records = found.iter().filter(|found| found.level == 0 && found.index >= first);
            let stored = records.filter(|found| found.ptr.is_stored());
            bytes += stored.map(|found| found.ptr.stored_bytes() as u64).sum::<u64>();
        }
        let counted = done(walk.position()).clamp(1, rest.max(1));
        let all = u128::from(bytes) * u128::from(rest) / u128::from(counted);
        Ok(u64::try_from(all).unwrap_or(u64::MAX).min(sending.estimate_bytes))
    }

    /// Sends a stream in parts; `put` takes each part and may wait.
    ///
    /// # Errors
    /// The error of `put`; `Damaged` if the snapshot is unreadable. Everything sent before the
    /// error is part of the snapshot.
    pub async fn send(
        &self,
        sending: &Sending,
        mut put: impl AsyncFnMut(Vec<u8>) -> Result<(), DatasetError>,
    ) -> Result<StreamCounts, DatasetError> {
        let pool = &self.core.pool;
        let (mut writer, first) = StreamWriter::new(&sending.begin);
        put(first).await?;
        if sending.begin.objects.is_some() {
            self.send_objects(sending, &mut writer, &mut put).await?;
            let (rest, counts) = writer.finish();
            put(rest).await?;
            return Ok(counts);
        }
        let mut walk = pool.unshared(sending.what(pool.bug()));
        let mut reads: FuturesOrdered<Pin<Box<dyn Future<Output = Read> + '_>>> =
            FuturesOrdered::new();
        let mut ended = false;
        loop {
            while !ended && reads.len() < GROUPS_IN_FLIGHT {
                // Save the position before the call, because the diff moves past an unreadable
                // node.
                let from = walk.position().block;
                let next = next_changes(&mut walk, sending).await;
                let size = sending.begin.record_size;
                let from = from.min(size.records_in(sending.begin.size_bytes));
                let rest = size.first_block(from)..sending.begin.size_bytes / BLOCK_BYTES as u64;
                let changes = sending.view.noted_node(rest, next).await?;
                ended = changes.is_empty();
                if !ended {
                    reads.push_back(self.read_changes(&sending.view, changes));
                }
            }
            let Some(read) = reads.next().await else { break };
            for (start, count, ptr, stored) in read? {
                match stored {
                    None => writer.hole(start, count),
                    Some(stored) => writer.record(start, ptr.codec, &stored, ptr.checksum),
                }
                if let Some(frame) = writer.full_frame() {
                    put(frame).await?;
                }
            }
        }
        let (rest, counts) = writer.finish();
        put(rest).await?;
        Ok(counts)
    }

    #[boxed(?Send)]
    async fn read_changes(&self, view: &Volume, changes: Changes) -> Read {
        let blocks: Vec<BlockPtr> =
            changes.iter().map(|(_, _, ptr)| *ptr).filter(|ptr| !ptr.is_hole()).collect();
        let mut stored = self.core.pool.read_stored_blocks(&blocks).await.into_iter();
        let mut read = Vec::with_capacity(changes.len());
        for (start, count, ptr) in changes {
            let bytes = || stored.next().expect("one result for each block");
            let blocks = view.record_size().blocks_of(&(start..start + 1));
            let bytes = (!ptr.is_hole()).then(bytes).transpose().map_err(DatasetError::from);
            let bytes = view.noted(blocks, bytes).await?;
            read.push((start, count, ptr, bytes));
        }
        Ok(read)
    }
}

/// Returns the next changes in ascending order; an empty list at the end.
#[boxed(?Send)]
async fn next_changes(
    walk: &mut DatasetDiff<'_>,
    sending: &Sending,
) -> Result<Changes, DatasetError> {
    let records = sending.begin.record_size.records_in(sending.begin.size_bytes);
    let most = (BLOCKS_AT_ONCE / sending.begin.record_size.blocks() as usize).max(1);
    let mut changes = Changes::new();
    while changes.len() < most {
        let found = walk.next().await?;
        if walk.damaged() > 0 {
            // Return an error: records below the node may have changed, and a stream without these
            // records would silently corrupt the copy.
            let name = sending.view.state.lock().record.name.clone();
            let end = walk.position().block.min(records) * sending.begin.record_size.bytes() as u64;
            let why = format!(
                "has a damaged tree node: the range that ends at byte {end} cannot be read. \
                 Connect the disk that has it, or send a snapshot taken after the range was \
                 overwritten"
            );
            return Err(DatasetError::Broken { name, why });
        }
        if found.is_empty() {
            break;
        }
        for found in found {
            let span = TreeRoot::capacity(found.level);
            let start = (found.index * span).max(sending.begin.first_record);
            let end = (found.index.saturating_add(1)).saturating_mul(span).min(records);
            // Send records and holes, but no nodes: the receiver builds its own nodes.
            let told = found.level == 0 || found.ptr.is_hole();
            if told && start < end {
                changes.push((start, end - start, found.ptr));
            }
        }
    }
    Ok(changes)
}
