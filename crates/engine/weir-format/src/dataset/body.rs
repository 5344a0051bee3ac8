//! Parts of a dataset record: the fields of its tree, and the fields of each kind (volume,
//! snapshot, bookmark).
//!
//! Invariant: the fields of a kind have the same layout in format 8 and in format 9.

use weir_base::limits::NAME_BYTES_MAX;
use weir_base::{DatasetId, ObjectId, RecordSize, Txg};

use super::record::{
    ANCESTORS_MAX, Ancestor, Bookmark, DatasetKind, DatasetRecord, DatasetState, Descent,
    HOLD_BYTES_MAX, HOLDS_MAX, ObjectTable, Origin, Receiving, SnapshotFields,
};
use crate::bytes::{Reader, Writer};
use crate::error::FormatError;
use crate::node::TreeRoot;
use crate::object_slot::OBJECTS_MAX;
use crate::properties::Properties;

/// Maximum count of blocks or units; no volume reaches it. The decoder lowers a larger count to
/// this value, so that sums of counts do not overflow. A wrong count affects only the displayed
/// number.
const COUNT_MAX: u64 = 1 << 40;

impl DatasetState {
    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        match r.u8()? {
            0 => Ok(Self::Active),
            1 => Ok(Self::Destroying),
            other => Err(r.bad("state", other)),
        }
    }
}

/// The fields of a tree, in the order of the record's body.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Tree {
    pub(super) size_bytes: u64,
    pub(super) record_size: RecordSize,
    pub(super) root: TreeRoot,
    /// Number of used blocks; then the stored, shared, tree and born sizes in units of 64 bytes.
    pub(super) counts: [u64; 5],
    pub(super) freed_to: u64,
}

impl Tree {
    /// Tree fields of a bookmark's record: a bookmark has no tree, so all are empty or zero.
    pub(super) const NONE: Self = Self {
        size_bytes: 0,
        record_size: RecordSize::BLOCK,
        root: TreeRoot::EMPTY,
        counts: [0; 5],
        freed_to: 0,
    };

    pub(super) fn of(record: &DatasetRecord) -> Self {
        Self {
            size_bytes: record.size_bytes,
            record_size: record.record_size,
            root: record.root,
            counts: [
                record.used_blocks,
                record.stored_units,
                record.shared_units,
                record.tree_units,
                record.born_units,
            ],
            freed_to: record.freed_to,
        }
    }

    pub(super) fn into_record(
        self,
        (id, kind, state): (DatasetId, DatasetKind, DatasetState),
        name: String,
        (created_txg, created_unix_ms): (Txg, u64),
        properties: Properties,
    ) -> DatasetRecord {
        let Self { size_bytes, record_size, root, counts, freed_to } = self;
        let [used_blocks, stored_units, shared_units, tree_units, born_units] = counts;
        DatasetRecord {
            id,
            kind,
            state,
            name,
            size_bytes,
            record_size,
            properties,
            created_txg,
            created_unix_ms,
            root,
            used_blocks,
            stored_units,
            shared_units,
            tree_units,
            born_units,
            freed_to,
            objects: None,
        }
    }

    pub(super) fn write(self, w: &mut Writer) {
        let Self { size_bytes, record_size, root, counts, freed_to } = self;
        w.u64(size_bytes);
        w.u8(record_size.shift());
        root.write(w);
        counts.into_iter().for_each(|count| w.u64(count));
        w.u64(freed_to);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (size_bytes, record_size) = (r.u64()?, read_record_size(r)?);
        let (root, counts) = (TreeRoot::read(r)?, read_counts(r)?);
        Ok(Self { size_bytes, record_size, root, counts, freed_to: r.u64()? })
    }
}

pub(super) fn read_record_size(r: &mut Reader<'_>) -> Result<RecordSize, FormatError> {
    let shift = r.u8()?;
    RecordSize::from_shift(shift).ok_or_else(|| r.bad("record_size", shift))
}

pub(super) fn read_counts(r: &mut Reader<'_>) -> Result<[u64; 5], FormatError> {
    let mut counts = [0; 5];
    for count in &mut counts {
        *count = r.u64()?.min(COUNT_MAX);
    }
    Ok(counts)
}

impl ObjectTable {
    pub(super) const BYTES: usize = 8 + Self::LAYER_BYTES;

    pub(super) fn write(&self, w: &mut Writer) {
        w.u64(self.freed_object);
        w.bytes(&self.layer);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let freed_object = r.u64()?;
        let layer = r.take(Self::LAYER_BYTES)?.first_chunk().expect("took exactly these bytes");
        Ok(Self { freed_object, layer: *layer })
    }
}

impl Descent {
    pub(super) fn write(&self, w: &mut Writer) {
        let origin = self.origin.unwrap_or(Origin { snapshot: DatasetId(0), txg: Txg(0) });
        w.u64(origin.snapshot.0);
        w.u64(origin.txg.0);
        w.u64(self.inherited_units);
        assert!(self.lineage.len() <= ANCESTORS_MAX, "the caller checks the count");
        w.u8(self.lineage.len() as u8);
        for Ancestor { until, owner } in &self.lineage {
            w.u64(until.0);
            w.u64(owner.0);
        }
        let Some(receiving) = &self.receiving else { return w.u8(0) };
        let has_object = receiving.next_object.0 != 0;
        w.u8(if receiving.is_new { 2 } else { 1 } + if has_object { 2 } else { 0 });
        w.u64(receiving.to);
        w.u64(receiving.from.unwrap_or(0));
        w.u64(receiving.next_record);
        w.u64(receiving.created_unix_ms);
        w.str(&receiving.snapshot);
        if has_object {
            w.u64(receiving.next_object.0);
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (snapshot, txg) = (DatasetId(r.u64()?), Txg(r.u64()?));
        if snapshot.0 == 0 && txg.0 != 0 {
            return Err(r.bad("origin_txg", txg.0));
        }
        let inherited_units = r.u64()?.min(COUNT_MAX);
        let count = r.u8()?;
        if usize::from(count) > ANCESTORS_MAX {
            return Err(r.bad("lineage", count));
        }
        let mut lineage: Vec<Ancestor> = Vec::new();
        for _ in 0..count {
            let next = Ancestor { until: Txg(r.u64()?), owner: DatasetId(r.u64()?) };
            if lineage.last().is_some_and(|last| last.until >= next.until) {
                return Err(r.bad("until", next.until.0));
            }
            lineage.push(next);
        }
        let origin = (snapshot.0 != 0).then_some(Origin { snapshot, txg });
        let (is_new, has_object) = match r.u8()? {
            0 => return Ok(Self { origin, lineage, inherited_units, receiving: None }),
            code @ 1..=4 => (code.is_multiple_of(2), code > 2),
            other => return Err(r.bad("receiving", other)),
        };
        let (to, from, next_record) = (r.u64()?, r.u64()?, r.u64()?);
        let (created_unix_ms, snapshot) = (r.u64()?, r.str("snapshot")?);
        if snapshot.is_empty() || snapshot.len() > NAME_BYTES_MAX {
            return Err(r.bad("snapshot", snapshot.len() as u64));
        }
        let from = (from != 0).then_some(from);
        let next_object = ObjectId(if has_object { r.u64()? } else { 0 });
        if has_object && !(1..=OBJECTS_MAX).contains(&next_object.0) {
            return Err(r.bad("next_object", next_object.0));
        }
        let receiving =
            Receiving { to, from, is_new, next_object, next_record, snapshot, created_unix_ms };
        Ok(Self { origin, lineage, inherited_units, receiving: Some(receiving) })
    }
}

impl Bookmark {
    pub(super) fn write(self, w: &mut Writer) {
        w.u64(self.of.0);
        w.u64(self.txg.0);
        w.u64(self.guid);
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        Ok(Self { of: DatasetId(r.u64()?), txg: Txg(r.u64()?), guid: r.u64()? })
    }
}

/// Encoding of an unknown [`SnapshotFields::unique_units`].
const UNKNOWN: u64 = u64::MAX;

impl SnapshotFields {
    pub(super) fn write(&self, w: &mut Writer) {
        w.u64(self.of.0);
        w.u64(self.txg.0);
        w.u64(self.guid);
        w.u64(self.unique_units.unwrap_or(UNKNOWN));
        assert!(self.holds.len() <= HOLDS_MAX, "the caller checks the count");
        w.u8(self.holds.len() as u8);
        for tag in &self.holds {
            w.str(tag);
        }
    }

    pub(super) fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (of, txg, guid) = (DatasetId(r.u64()?), Txg(r.u64()?), r.u64()?);
        let unique = r.u64()?;
        let count = r.u8()?;
        if usize::from(count) > HOLDS_MAX {
            return Err(r.bad("holds", count));
        }
        let mut holds = Vec::new();
        for _ in 0..count {
            let tag = r.str("hold")?;
            if tag.is_empty() || tag.len() > HOLD_BYTES_MAX {
                return Err(r.bad("hold", tag.len() as u64));
            }
            holds.push(tag);
        }
        let unique_units = (unique != UNKNOWN).then_some(unique.min(COUNT_MAX));
        Ok(Self { of, txg, guid, holds, unique_units })
    }
}
