//! Object frames: the changes in a stream of a dataset with many objects.
//!
//! Frames of volumes are in `read` and `write`. `object_slot` has the slots on disk.
//!
//! Invariants:
//! - objects come in ascending order, each once in a stream; the changed records of an object
//!   follow its entry;
//! - an object entry has everything that the slot has except the tree root: a receiver builds its
//!   own tree.

use std::ops::Range;

use weir_base::{ObjectId, RecordSize};

use super::change::{WHAT, read_change};
use super::{StreamChange, StreamCounts, StreamFault};
use crate::bytes::{Field, Reader, Writer, field};
use crate::compression::Codec;
use crate::error::FormatError;
use crate::node::TreeRoot;
use crate::object_slot::{OBJECTS_MAX, ObjectSlot};

/// Codes of entries that begin with an object number. Lower codes are changes of the object whose
/// entry came last.
const CODE_OBJECT: u8 = 16;
const CODE_UNUSED: u8 = 17;

/// Fields of an entry of an object frame, for the format documentation.
pub const ENTRY_FIELDS: &[Field] = &[
    field(1, "code", "0 to 3: change of the last object, as above; 16 object, 17 unused objects"),
    field(8, "object", "object number; of the first unused object"),
    field(0, "unused", "u64 number of objects that have no slot any more"),
    field(0, "object", "u8 record size, u64 records (later ones are holes), then:"),
    field(0, "", "the 990 bytes of the layer above in the slot"),
];

/// Fields of the begin frame that only a stream of a dataset with many objects has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamObjects {
    /// First object of the stream: 0, or the object at which an interrupted stream resumes.
    /// [`StreamBegin::first_record`](super::StreamBegin::first_record) is a record of this object.
    pub first: ObjectId,
    /// Bytes of the layer above the engine in the dataset's directory entry.
    pub layer: [u8; crate::ObjectTable::LAYER_BYTES],
}

/// An entry of an object frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEntry<'a> {
    /// An object in use. Its changed records follow.
    Object {
        /// Number of the object.
        object: ObjectId,
        /// Record size of the object.
        size: RecordSize,
        /// Number of records in the sender's tree. The received object has no records from this
        /// number on.
        records: u64,
        /// Bytes of the layer above in the slot.
        body: &'a [u8; ObjectSlot::BODY_BYTES],
    },
    /// Objects whose slots are unused.
    Unused {
        /// Numbers of the objects.
        objects: Range<u64>,
    },
    /// Changed records of the object whose entry came last.
    Change {
        /// Number of the object.
        object: ObjectId,
        /// Record size of the object.
        size: RecordSize,
        /// The records.
        change: &'a StreamChange,
        /// Codec and verified stored bytes of a record; `None` for a hole.
        stored: Option<(Codec, &'a [u8])>,
    },
}

/// A decoded entry. Its byte ranges refer to the payload of the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Object { object: ObjectId, size: RecordSize, records: u64, body: Range<usize> },
    Unused { objects: Range<u64> },
    Change { object: ObjectId, size: RecordSize, change: StreamChange },
}

/// The entries of one object frame, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEntries {
    payload: Vec<u8>,
    entries: Vec<Entry>,
}

impl StreamEntries {
    /// Returns each entry.
    pub fn iter(&self) -> impl Iterator<Item = StreamEntry<'_>> {
        self.entries.iter().map(|entry| match entry {
            Entry::Object { object, size, records, body } => {
                let body = self.payload.get(body.clone()).and_then(<[u8]>::first_chunk);
                let body = body.expect("the reader took exactly these bytes");
                StreamEntry::Object { object: *object, size: *size, records: *records, body }
            }
            Entry::Unused { objects } => StreamEntry::Unused { objects: objects.clone() },
            Entry::Change { object, size, change } => {
                let stored = change.stored_in(&self.payload);
                StreamEntry::Change { object: *object, size: *size, change, stored }
            }
        })
    }
}

/// Object to which the next records of a stream belong.
#[derive(Clone, Copy)]
pub(super) struct Current {
    pub(super) object: ObjectId,
    pub(super) size: RecordSize,
    pub(super) records: u64,
    /// Lowest record that may come next.
    pub(super) next: u64,
}

/// Position of the reader or writer in a stream of objects. The reader uses the position to check
/// the order of the entries.
#[derive(Clone, Copy)]
pub(super) struct Cursor {
    /// Object and record at which the stream begins.
    first: (u64, u64),
    /// Lowest object number that may come next.
    pub(super) next_object: u64,
    pub(super) current: Option<Current>,
}

impl Cursor {
    pub(super) fn new(first_object: ObjectId, first_record: u64) -> Self {
        Self { first: (first_object.0, first_record), next_object: first_object.0, current: None }
    }

    /// Makes an object the current one. The caller has checked its number.
    pub(super) fn begin(&mut self, object: ObjectId, size: RecordSize, records: u64) {
        let next = if object.0 == self.first.0 { self.first.1 } else { 0 };
        self.next_object = object.0 + 1;
        self.current = Some(Current { object, size, records, next });
    }

    /// Decodes the payload of an object frame.
    ///
    /// # Errors
    /// A field is invalid, or an entry is out of order.
    pub(super) fn read(
        &mut self,
        payload: Vec<u8>,
        counts: &mut StreamCounts,
    ) -> Result<StreamEntries, StreamFault> {
        let mut entries = Vec::new();
        let mut r = Reader::new(WHAT, &payload);
        while r.left() > 0 {
            let code = r.u8()?;
            entries.push(match code {
                CODE_OBJECT => {
                    counts.objects += 1;
                    self.read_object(&mut r, payload.len())?
                }
                CODE_UNUSED => self.read_unused(&mut r)?,
                _ => self.read_record((&mut r, &payload), code, counts)?,
            });
        }
        Ok(StreamEntries { payload, entries })
    }

    fn read_object(&mut self, r: &mut Reader<'_>, len: usize) -> Result<Entry, FormatError> {
        let (object, shift, records) = (r.u64()?, r.u8()?, r.u64()?);
        if object < self.next_object.max(1) || object >= OBJECTS_MAX {
            return Err(r.bad("object", object));
        }
        let size = RecordSize::from_shift(shift).ok_or_else(|| r.bad("record_size", shift))?;
        if records > TreeRoot::BLOCKS_MAX {
            return Err(r.bad("records", records));
        }
        let at = len - r.left();
        r.take(ObjectSlot::BODY_BYTES)?;
        let (object, body) = (ObjectId(object), at..at + ObjectSlot::BODY_BYTES);
        self.begin(object, size, records);
        Ok(Entry::Object { object, size, records, body })
    }

    fn read_unused(&mut self, r: &mut Reader<'_>) -> Result<Entry, FormatError> {
        let (first, count) = (r.u64()?, r.u64()?);
        let end = first.checked_add(count).filter(|end| *end <= OBJECTS_MAX);
        let (true, true, Some(end)) = (first >= self.next_object.max(1), count > 0, end) else {
            return Err(r.bad("unused", first));
        };
        (self.next_object, self.current) = (end, None);
        Ok(Entry::Unused { objects: first..end })
    }

    fn read_record(
        &mut self,
        (r, payload): (&mut Reader<'_>, &[u8]),
        code: u8,
        counts: &mut StreamCounts,
    ) -> Result<Entry, StreamFault> {
        let Some(current) = &mut self.current else { return Err(r.bad("code", code).into()) };
        let (object, size) = (current.object, current.size);
        let limits = (current.next, current.records);
        let change = read_change((r, payload), code, size, limits, counts)?;
        current.next = change.start + change.count;
        Ok(Entry::Change { object, size, change })
    }
}

/// Encodes the entry of an object.
pub(super) fn write_object(
    w: &mut Writer,
    (object, size, records): (ObjectId, RecordSize, u64),
    body: &[u8; ObjectSlot::BODY_BYTES],
) {
    w.u8(CODE_OBJECT);
    w.u64(object.0);
    w.u8(size.shift());
    w.u64(records);
    w.bytes(body);
}

/// Encodes an entry of unused objects.
pub(super) fn write_unused(w: &mut Writer, objects: &Range<u64>) {
    w.u8(CODE_UNUSED);
    w.u64(objects.start);
    w.u64(objects.end - objects.start);
}
