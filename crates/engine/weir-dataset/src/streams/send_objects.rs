//! Sends a dataset with many objects: for each changed block of the object table, the slots of its
//! objects and the changed records of these objects.
//!
//! `send` sends volumes, and prepares streams of volumes and of objects. weir-format has the
//! frames.
//!
//! Invariants:
//! - a block of the object table that is older than the base has no changed object, because a
//!   change of an object rewrites the block with its slot;
//! - an incremental stream contains every unused slot of a changed block, so that a receiver
//!   removes the objects that the base has and the sent snapshot does not have.

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use weir_base::{ObjectId, RecordSize};
use weir_block::Block;
use weir_format::stream::StreamWriter;
use weir_format::{BlockPtr, OBJECT_SLOTS_PER_BLOCK, OBJECTS_MAX, ObjectSlot, TreeRoot};
use weir_pool::{DatasetDiff, DiffSpec, Found, Objects, Place, PlantedBug, Stored};

use super::send::{BLOCKS_AT_ONCE, GROUPS_IN_FLIGHT, Sending};
use crate::error::DatasetError;
use crate::state::engine::Engine;

/// Maximum number of parts (see [`Part`]) in a group. The records of a group are read together.
const PARTS_AT_ONCE: usize = 512;

const SLOTS: u64 = OBJECT_SLOTS_PER_BLOCK as u64;

/// Object whose changed records the walk collects now.
struct Open<'p> {
    object: ObjectId,
    size: RecordSize,
    /// Number of records of the tree.
    records: u64,
    /// First record to send; above 0 if an interrupted stream resumes inside the object.
    first: u64,
    diff: DatasetDiff<'p>,
    /// Changed records that were found and are not in a group yet.
    found: VecDeque<(Range<u64>, BlockPtr)>,
}

/// Part of a stream: an object, a range of unused objects, or changed records.
enum Part {
    Object(ObjectId, Box<ObjectSlot>),
    Unused(Range<u64>),
    /// Changed records of an object: one record with data, or a range of holes.
    Change {
        object: ObjectId,
        size: RecordSize,
        records: Range<u64>,
        ptr: BlockPtr,
    },
}

/// Parts of a group, each with its verified stored bytes if it is a record with data.
type Read = Result<Vec<(Part, Option<Stored>)>, DatasetError>;

/// Walk over the changed objects of a snapshot.
struct ObjectWalk<'p> {
    engine: &'p Engine,
    sending: &'p Sending,
    /// Diff of the object table.
    table: DatasetDiff<'p>,
    /// Changed blocks of the table that the walk has not visited yet, with their content. `None`: a
    /// range of holes.
    blocks: VecDeque<(Range<u64>, Option<Block>)>,
    /// Objects of the current block of the table that the walk has not visited yet.
    slots: VecDeque<(ObjectId, ObjectSlot)>,
    open: Option<Open<'p>>,
    ended: bool,
}

/// Number of records in the tree of an object.
pub(super) fn records_of(root: &TreeRoot) -> u64 {
    if root.ptr.is_hole() { 0 } else { root.blocks() }
}

impl Engine {
    /// Sends the object frames of a stream: all frames between the begin frame and the end frame.
    pub(super) async fn send_objects(
        &self,
        sending: &Sending,
        writer: &mut StreamWriter,
        put: &mut impl AsyncFnMut(Vec<u8>) -> Result<(), DatasetError>,
    ) -> Result<(), DatasetError> {
        let mut walk = ObjectWalk::new(self, sending);
        let mut reads: FuturesOrdered<Pin<Box<dyn Future<Output = Read> + '_>>> =
            FuturesOrdered::new();
        let mut ended = false;
        loop {
            while !ended && reads.len() < GROUPS_IN_FLIGHT {
                let parts = walk.next_parts().await?;
                ended = parts.is_empty();
                if !ended {
                    reads.push_back(Box::pin(self.read_parts(sending, parts)));
                }
            }
            let Some(read) = reads.next().await else { return Ok(()) };
            for (part, stored) in read? {
                match (part, stored) {
                    (Part::Object(object, slot), _) => {
                        let records = records_of(&slot.root);
                        writer.object(object, slot.record_size, records, &slot.body);
                    }
                    (Part::Unused(objects), _) => writer.unused(objects),
                    (Part::Change { records, ptr, .. }, Some(stored)) => {
                        writer.record(records.start, ptr.codec, &stored, ptr.checksum);
                    }
                    (Part::Change { records, .. }, None) => {
                        writer.hole(records.start, records.end - records.start);
                    }
                }
                if let Some(frame) = writer.full_frame() {
                    put(frame).await?;
                }
            }
        }
    }

    async fn read_parts(&self, sending: &Sending, parts: Vec<Part>) -> Read {
        let pool = &self.core.pool;
        let ptrs = parts.iter().filter_map(|part| match part {
            Part::Change { ptr, .. } if !ptr.is_hole() => Some(*ptr),
            _ => None,
        });
        let ptrs: Vec<BlockPtr> = ptrs.collect();
        let mut stored = pool.read_stored_blocks(&ptrs).await.into_iter();
        let mut read = Vec::with_capacity(parts.len());
        for part in parts {
            let bytes = match &part {
                Part::Change { object, size, records, ptr } if !ptr.is_hole() => {
                    let bytes = stored.next().expect("one result for each record");
                    let bytes = bytes.and_then(|bytes| {
                        pool.check_record(ptr, *size)?;
                        Ok(bytes)
                    });
                    let bytes = bytes.map_err(DatasetError::from);
                    Some(sending.view().noted_object(*object, records.clone(), bytes).await?)
                }
                _ => None,
            };
            read.push((part, bytes));
        }
        Ok(read)
    }
}

impl<'p> ObjectWalk<'p> {
    fn new(engine: &'p Engine, sending: &'p Sending) -> Self {
        let mut first = ObjectSlot::block_of(sending.first_object());
        if engine.core.pool.bug() == PlantedBug::ResumeSkips && first > 0 {
            first += 1;
        }
        let what = DiffSpec {
            from: Place::in_volume(first),
            holes: sending.is_incremental(),
            ..DiffSpec::of_tree(Objects::One, sending.root(), None, sending.after())
        };
        Self {
            engine,
            sending,
            table: engine.core.pool.unshared(what),
            blocks: VecDeque::new(),
            slots: VecDeque::new(),
            open: None,
            ended: false,
        }
    }

    /// Returns the next parts of the stream; an empty list at the end.
    async fn next_parts(&mut self) -> Result<Vec<Part>, DatasetError> {
        let (mut parts, mut blocks) = (Vec::new(), 0);
        while parts.len() < PARTS_AT_ONCE && blocks < BLOCKS_AT_ONCE {
            if let Some(open) = &mut self.open {
                if let Some((records, ptr)) = open.found.pop_front() {
                    blocks += if ptr.is_hole() { 0 } else { open.size.blocks() as usize };
                    let (object, size) = (open.object, open.size);
                    parts.push(Part::Change { object, size, records, ptr });
                } else if !self.find_records().await? {
                    self.open = None;
                }
            } else if let Some((object, slot)) = self.slots.pop_front() {
                parts.extend(self.begin_object(object, slot));
            } else if let Some((indexes, block)) = self.blocks.pop_front() {
                match block {
                    Some(block) => self.begin_block(indexes.start, &block),
                    None => parts.extend(self.unused(indexes)),
                }
            } else if self.ended {
                break;
            } else if !self.find_blocks().await? {
                self.ended = true;
                if self.sending.is_incremental() {
                    let end = self.sending.root().blocks();
                    parts.extend(self.unused(end..OBJECTS_MAX / SLOTS));
                }
            }
        }
        Ok(parts)
    }

    /// Reads the next changed blocks of the object table. Returns false at the end.
    async fn find_blocks(&mut self) -> Result<bool, DatasetError> {
        let from = self.table.position().block;
        let found = self.table.next().await?;
        if self.table.damaged() > 0 {
            let (object, end) = (ObjectId::TABLE, self.table.position().block);
            self.sending.view().note_unreadable_in(object, from..end, true).await;
            return Err(self.is_broken("the object table"));
        }
        let pool = &self.engine.core.pool;
        let changes: Vec<(Range<u64>, BlockPtr)> = found.iter().filter_map(changed).collect();
        let stored = changes.iter().map(|(_, ptr)| *ptr).filter(|ptr| !ptr.is_hole());
        let stored: Vec<BlockPtr> = stored.collect();
        let mut read = pool.read_blocks(&stored).await.into_iter();
        for (indexes, ptr) in changes {
            if ptr.is_hole() {
                self.blocks.push_back((indexes, None));
                continue;
            }
            let block = read.next().expect("one result for each block");
            let block = block.and_then(|block| {
                pool.check_slots(&ptr, indexes.start, &block)?;
                Ok(block)
            });
            match block {
                Ok(block) => self.blocks.push_back((indexes, Some(block))),
                Err(error) => {
                    let failed = Err(DatasetError::from(error));
                    let view = self.sending.view();
                    return view.noted_object(ObjectId::TABLE, indexes, failed).await;
                }
            }
        }
        Ok(!found.is_empty())
    }

    fn begin_block(&mut self, index: u64, block: &Block) {
        let first = self.sending.first_object();
        for object in ObjectSlot::objects_in(index).filter(|object| *object >= first) {
            let slot = ObjectSlot::read(block, object);
            self.slots.push_back((object, slot.expect("the pool checked the slots of the block")));
        }
    }

    /// Returns the part for holes of the object table: the objects whose slots would be in these
    /// blocks are unused.
    fn unused(&self, blocks: Range<u64>) -> Option<Part> {
        let start = (blocks.start * SLOTS).max(self.sending.first_object().0).max(1);
        let end = (blocks.end * SLOTS).min(OBJECTS_MAX);
        (start < end).then_some(Part::Unused(start..end))
    }

    fn begin_object(&mut self, object: ObjectId, slot: ObjectSlot) -> Option<Part> {
        if !slot.is_used() {
            let bug = self.engine.core.pool.bug();
            let is_sent = self.sending.is_incremental() && bug != PlantedBug::UnusedNotSent;
            return is_sent.then_some(Part::Unused(object.0..object.0 + 1));
        }
        let records = records_of(&slot.root);
        if records > 0 {
            let (begin, bug) = (self.sending.begin(), self.engine.core.pool.bug());
            let first = if object == self.sending.first_object() { begin.first_record } else { 0 };
            let what = DiffSpec {
                from: Place::in_volume(first),
                holes: self.sending.is_incremental() && bug != PlantedBug::TrimsNotSent,
                ..DiffSpec::of_tree(Objects::One, slot.root, None, self.sending.after())
            };
            let diff = self.engine.core.pool.unshared(what);
            let (size, found) = (slot.record_size, VecDeque::new());
            self.open = Some(Open { object, size, records, first, diff, found });
        }
        Some(Part::Object(object, Box::new(slot)))
    }

    /// Finds the next changed records of the open object. Returns false at the end.
    async fn find_records(&mut self) -> Result<bool, DatasetError> {
        let Some(open) = &mut self.open else { return Ok(false) };
        let from = open.diff.position().block;
        let found = open.diff.next().await?;
        if open.diff.damaged() > 0 {
            let (object, end) = (open.object, open.diff.position().block.min(open.records));
            self.sending.view().note_unreadable_in(object, from..end, true).await;
            return Err(self.is_broken(&format!("object {}", object.0)));
        }
        let (first, end) = (open.first, open.records);
        let found_records = found.iter().filter_map(changed);
        open.found.extend(found_records.filter_map(|(records, ptr)| {
            let records = records.start.max(first)..records.end.min(end);
            (!records.is_empty()).then_some((records, ptr))
        }));
        Ok(!found.is_empty())
    }

    /// Returns the error for an unreadable node. Objects or records below the node may have
    /// changed, and a stream without these changes would silently corrupt the received copy.
    fn is_broken(&self, tree: &str) -> DatasetError {
        let name = self.sending.view().state.lock().record.name.clone();
        let why = format!(
            "has a damaged tree node in {tree}. Connect the disk that has it, or send a snapshot \
             taken after the part below it was overwritten"
        );
        DatasetError::Broken { name, why }
    }
}

/// Returns the changed range of blocks or records of a diff result, with its pointer. `None` for a
/// node: the receiver builds its own nodes.
fn changed(found: &Found) -> Option<(Range<u64>, BlockPtr)> {
    let span = TreeRoot::capacity(found.level);
    let is_sent = found.level == 0 || found.ptr.is_hole();
    let (start, end) = (found.index.saturating_mul(span), found.index.saturating_add(1));
    is_sent.then(|| (start..end.saturating_mul(span), found.ptr))
}
