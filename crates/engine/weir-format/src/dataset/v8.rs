//! The dataset record of format 8, which this Weir decodes and never writes.
//!
//! The fields are in another order: the tree precedes the name, and a bookmark has a tree of zeros.
//! The descent of a volume and the fields of a snapshot and a bookmark have one layout in both
//! formats.
//!
//! Invariant: a record of this layout stays valid until a change of the dataset replaces it.

use std::ops::RangeInclusive;

use weir_base::{BLOCK_BYTES, DatasetId, Txg};

use super::body::{Tree, read_counts, read_record_size};
use super::record::{Bookmark, DatasetKind, DatasetRecord, DatasetState, Descent, SnapshotFields};
use crate::bytes::Reader;
use crate::error::FormatError;
use crate::node::TreeRoot;
use crate::properties::Properties;

/// Kinds of records in this layout: volume, snapshot, bookmark.
pub(super) const KINDS: RangeInclusive<u8> = 1..=3;

/// Decodes a record whose kind is one of [`KINDS`]. The caller checks the fields that both layouts
/// have.
pub(super) fn decode(
    what: &'static str,
    block: &[u8; BLOCK_BYTES],
) -> Result<DatasetRecord, FormatError> {
    let mut r = Reader::new(what, block);
    let (id, kind) = (DatasetId(r.u64()?), r.u8()?);
    let state = DatasetState::read(&mut r)?;
    let (size_bytes, record_size) = (r.u64()?, read_record_size(&mut r)?);
    let made = (Txg(r.u64()?), r.u64()?);
    let root = TreeRoot::read(&mut r)?;
    let counts = read_counts(&mut r)?;
    let tree = Tree { size_bytes, record_size, root, counts, freed_to: r.u64()? };
    let name = r.str("name")?;
    let kind = match kind {
        1 => DatasetKind::Volume(Descent::read(&mut r)?),
        2 => DatasetKind::Snapshot(SnapshotFields::read(&mut r)?),
        3 => DatasetKind::Bookmark(Bookmark::read(&mut r)?),
        other => return Err(r.bad("kind", other)),
    };
    let properties = Properties::read_v8(&mut r)?;
    Ok(tree.into_record((id, kind, state), name, made, properties))
}
