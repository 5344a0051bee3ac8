//! Encodes and decodes a dataset record in the layout of format 9.
//!
//! Invariant: the longest record fits into its block, whatever its history.

use weir_base::limits::NAME_BYTES_MAX;
use weir_base::{BLOCK_BYTES, DatasetId, Txg};

use super::body::Tree;
use super::record::{
    ANCESTORS_MAX, Bookmark, DatasetKind, DatasetRecord, DatasetState, Descent, HOLD_BYTES_MAX,
    HOLDS_MAX, ObjectTable, SnapshotFields,
};
use super::v8;
use crate::bytes::{Reader, Writer};
use crate::error::FormatError;
use crate::node::TreeRoot;
use crate::properties::Properties;

const WHAT: &str = "dataset record";

/// Kinds of records in this format. Format 8 has the kinds 1 to 3 and another layout; format 9
/// never writes these kinds.
const VOLUME: u8 = 17;
const SNAPSHOT: u8 = 18;
const BOOKMARK: u8 = 19;
/// A dataset with many objects, and its snapshots.
const OBJECTS: u8 = 20;
const OBJECTS_SNAPSHOT: u8 = 21;

/// Maximum lengths of the parts of a dataset record, in bytes: the fixed fields, a name or other
/// text with its length, the tree, the ancestors of a volume (without names), and the fields of a
/// snapshot.
const FIXED_BYTES: usize = 8 + 1 + 1 + 8 + 8 + 2 + 2;
const TEXT_BYTES: usize = 2 + NAME_BYTES_MAX;
const TREE_BYTES: usize = 8 + 1 + TreeRoot::BYTES + 6 * 8;
const DESCENT_BYTES: usize = 3 * 8 + 1 + ANCESTORS_MAX * 16 + 1 + 5 * 8;
const SNAPSHOT_FIELDS_BYTES: usize = 4 * 8 + 1 + HOLDS_MAX * (2 + HOLD_BYTES_MAX);
// The longest record fits into its block, whatever its history.
const _: () = assert!(
    FIXED_BYTES
        + TEXT_BYTES
        + TREE_BYTES
        + ObjectTable::BYTES
        + DESCENT_BYTES
        + TEXT_BYTES
        + Properties::BYTES_MAX
        <= BLOCK_BYTES
        && SNAPSHOT_FIELDS_BYTES < DESCENT_BYTES + TEXT_BYTES
);

impl DatasetRecord {
    /// Encodes the entry as one block of the directory.
    ///
    /// # Panics
    /// If a name, list or property exceeds its limit.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut w = Writer::default();
        w.u64(self.id.0);
        w.u8(match (&self.kind, &self.objects) {
            (DatasetKind::Volume(_), None) => VOLUME,
            (DatasetKind::Volume(_), Some(_)) => OBJECTS,
            (DatasetKind::Snapshot(_), None) => SNAPSHOT,
            (DatasetKind::Snapshot(_), Some(_)) => OBJECTS_SNAPSHOT,
            (DatasetKind::Bookmark(_), _) => BOOKMARK,
        });
        w.u8(match self.state {
            DatasetState::Active => 0,
            DatasetState::Destroying => 1,
        });
        w.u64(self.created_txg.0);
        w.u64(self.created_unix_ms);
        assert!(self.name.len() <= NAME_BYTES_MAX, "the caller checks the name");
        w.str(&self.name);
        w.sized(|w| {
            if !matches!(self.kind, DatasetKind::Bookmark(_)) {
                Tree::of(self).write(w);
                self.objects.iter().for_each(|objects| objects.write(w));
            }
            match &self.kind {
                DatasetKind::Volume(descent) => descent.write(w),
                DatasetKind::Snapshot(moment) => moment.write(w),
                DatasetKind::Bookmark(bookmark) => bookmark.write(w),
            }
        });
        w.sized(|w| self.properties.write(w));
        w.pad_to(BLOCK_BYTES);
        w.0.try_into().expect("padded to one block")
    }

    /// Decodes one block of the directory, in the layout of this format or of format 8.
    ///
    /// # Errors
    /// A field has an invalid value.
    pub fn decode(block: &[u8; BLOCK_BYTES]) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, block);
        let id = DatasetId(r.u64()?);
        let kind = r.u8()?;
        if v8::KINDS.contains(&kind) {
            return v8::decode(WHAT, block)?.checked(&r);
        }
        if !(VOLUME..=OBJECTS_SNAPSHOT).contains(&kind) {
            return Err(r.bad("kind", kind));
        }
        let state = DatasetState::read(&mut r)?;
        let (created_txg, created_unix_ms) = (Txg(r.u64()?), r.u64()?);
        let name = r.str("name")?;
        let mut body = r.sized()?;
        let tree = if kind == BOOKMARK { Tree::NONE } else { Tree::read(&mut body)? };
        let has_objects = matches!(kind, OBJECTS | OBJECTS_SNAPSHOT);
        let objects = has_objects.then(|| ObjectTable::read(&mut body)).transpose()?;
        let kind = match kind {
            VOLUME | OBJECTS => DatasetKind::Volume(Descent::read(&mut body)?),
            SNAPSHOT | OBJECTS_SNAPSHOT => DatasetKind::Snapshot(SnapshotFields::read(&mut body)?),
            _ => DatasetKind::Bookmark(Bookmark::read(&mut body)?),
        };
        body.end("body_bytes")?;
        let mut sized = r.sized()?;
        let properties = Properties::read(&mut sized, &name)?;
        sized.end("properties_bytes")?;
        r.zeros()?;
        let made = (created_txg, created_unix_ms);
        let record = tree.into_record((id, kind, state), name, made, properties);
        Self { objects, ..record }.checked(&r)
    }

    /// Refuses fields that contradict each other.
    fn checked(self, r: &Reader<'_>) -> Result<Self, FormatError> {
        if !self.size_bytes.is_multiple_of(self.record_size.bytes() as u64)
            || self.record_size.records_in(self.size_bytes) > TreeRoot::capacity(self.root.height)
        {
            return Err(r.bad("size_bytes", self.size_bytes));
        }
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return Err(r.bad("name", self.name.len() as u64));
        }
        if let DatasetKind::Volume(descent) = &self.kind
            && let Some(receiving) = &descent.receiving
            && receiving.next_object.0 != 0
            && self.objects.is_none()
        {
            return Err(r.bad("next_object", receiving.next_object.0));
        }
        let is_bookmark = matches!(self.kind, DatasetKind::Bookmark(_));
        let is_plain = Tree::of(&self) == Tree::NONE && self.state == DatasetState::Active;
        if is_bookmark && (!is_plain || self.objects.is_some()) {
            return Err(r.bad("bookmark", self.id.0));
        }
        Ok(self)
    }
}
