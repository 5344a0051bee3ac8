//! The record of one dataset in the dataset directory: a volume, a snapshot or a bookmark.
//!
//! Naming rules and the meaning of properties are in weir-dataset; the record of the pool itself is
//! in `properties`.
//!
//! Invariants:
//! - each record is one block; a hole in the directory is a dataset that was destroyed;
//! - a snapshot's tree never changes: none of its blocks was born after the snapshot's txg;
//! - a bookmark has no tree and references no block;
//! - a volume and its snapshots form a snapshot chain. The summaries name the volume that wrote
//!   each block of the chain: the volume itself or, after a promotion, one of its ancestors.

use weir_base::RecordSize;
use weir_base::limits::NAME_BYTES_MAX;
use weir_base::{BLOCK_BYTES, DatasetId, Txg};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::node::TreeRoot;
use crate::properties::Properties;

const WHAT: &str = "dataset record";

/// Kind of a dataset, with the fields of that kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatasetKind {
    /// A block volume.
    Volume(Descent),
    /// State of a volume at the end of a txg.
    Snapshot(Moment),
    /// A bookmark: a snapshot's point in time without its data. It has a name and the snapshot's
    /// time of creation, and no other field of a dataset.
    Bookmark(Bookmark),
}

/// A point in time that can be the base of an incremental stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bookmark {
    /// Volume to whose namespace the bookmark belongs.
    pub of: DatasetId,
    /// Txg of the snapshot: the last txg whose changes the snapshot has.
    pub txg: Txg,
    /// Guid of the snapshot from which the bookmark was made.
    pub guid: u64,
}

/// Origin and ancestors of a volume, and the stream that it is receiving.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descent {
    /// Snapshot from which the volume was cloned.
    pub origin: Option<Origin>,
    /// Volumes that wrote the older blocks of the snapshot chain, oldest first. The volume wrote
    /// all later blocks itself.
    pub lineage: Vec<Ancestor>,
    /// Size of the blocks and nodes in the volume's tree that were born by the origin's txg, in
    /// units of 64 bytes.
    pub inherited_units: u64,
    /// The stream that is being received into the volume. While it is set, no other change of the
    /// volume is allowed.
    pub receiving: Option<Receiving>,
}

/// State of a stream that is being received into a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiving {
    /// Guid of the snapshot in the stream.
    pub to: u64,
    /// Guid of the base snapshot of the stream; `None` for a full stream into an empty volume.
    pub from: Option<u64>,
    /// True if the receive created the volume; aborting the receive then destroys the volume.
    pub is_new: bool,
    /// Number of the first record that was not received yet.
    pub next_record: u64,
    /// Name of the snapshot in the stream.
    pub snapshot: String,
    /// Time at which the snapshot was taken, by the sender's wall clock.
    pub created_unix_ms: u64,
}

/// The snapshot from which a volume was cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Dataset number of the snapshot.
    pub snapshot: DatasetId,
    /// Txg of the snapshot. Blocks born by this txg belong to the origin's snapshot chain.
    pub txg: Txg,
}

/// A volume that owned a snapshot chain before its present owner and wrote some of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// Newest birth txg of the blocks that this ancestor owns. The oldest is the txg after the
    /// `until` of the previous ancestor.
    pub until: Txg,
    /// Dataset number of the volume, as in the segment summaries.
    pub owner: DatasetId,
}

/// Fields of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Volume of the snapshot.
    pub of: DatasetId,
    /// Last txg whose changes the snapshot has.
    pub txg: Txg,
    /// Globally unique identifier, also across pools.
    pub guid: u64,
    /// Tags of the snapshot's holds. A snapshot with a hold cannot be destroyed.
    pub holds: Vec<String>,
    /// Size of the blocks that no other version of the volume references, in units of 64 bytes;
    /// `None`: currently unknown.
    pub unique_units: Option<u64>,
}

/// Maximum number of ancestors. It limits the promotions in a chain of clones.
pub const ANCESTORS_MAX: usize = 64;
/// Maximum number of hold tags of a snapshot.
pub const HOLDS_MAX: usize = 16;
/// Maximum length of a hold tag.
pub const HOLD_BYTES_MAX: usize = 64;

/// Maximum number of bookmarks of a volume; each bookmark takes memory for its directory entry.
pub const BOOKMARKS_MAX: usize = 1024;

/// Maximum count of blocks or units: above that of the largest volume. The decoder lowers a larger
/// count to this value, so that sums of counts do not overflow. A wrong count affects only the
/// displayed number.
const COUNT_MAX: u64 = 1 << 40;

/// Life-cycle state of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetState {
    /// In use.
    Active,
    /// The dataset is being freed over several txgs, and users do not see it.
    Destroying,
}

/// A decoded directory entry of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetRecord {
    /// Dataset number, never reused.
    pub id: DatasetId,
    /// Kind, and the fields of that kind.
    pub kind: DatasetKind,
    /// Life-cycle state.
    pub state: DatasetState,
    /// Name inside the pool, without the pool's name.
    pub name: String,
    /// Size of the dataset in bytes; a multiple of the record size.
    pub size_bytes: u64,
    /// Record size: each data pointer of the tree refers to one record.
    pub record_size: RecordSize,
    /// Properties set on this dataset.
    pub properties: Properties,
    /// Txg that created the dataset.
    pub created_txg: Txg,
    /// Time of the dataset's creation, by the wall clock.
    pub created_unix_ms: u64,
    /// Root of the dataset's block tree.
    pub root: TreeRoot,
    /// Number of blocks that are not holes.
    pub used_blocks: u64,
    /// Stored size of the blocks that are not holes, in units of 64 bytes.
    pub stored_units: u64,
    /// Part of [`Self::stored_units`] whose pointers were made by sharing an existing block.
    pub shared_units: u64,
    /// Like [`Self::stored_units`], including the nodes of the tree.
    pub tree_units: u64,
    /// Stored size of the blocks and nodes born in this dataset that are still on disk, in units of
    /// 64 bytes. Of a volume: born since its newest snapshot. Of a snapshot: born since the
    /// previous snapshot.
    pub born_units: u64,
    /// While the dataset is being destroyed: number of the first record that is not freed yet.
    pub freed_to: u64,
}

impl DatasetRecord {
    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "id", "dataset number"),
        field(1, "kind", "1 volume, 2 snapshot, 3 bookmark"),
        field(1, "state", "0 active, 1 being destroyed"),
        field(8, "size_bytes", "volume size"),
        field(1, "record_size", "log2 of a record's blocks, 0 to 8"),
        field(8, "created_txg", "txg of creation"),
        field(8, "created_unix_ms", "wall clock of creation"),
        field(33, "root", "tree root of its blocks"),
        field(8, "used_blocks", "blocks that are not holes"),
        field(8, "stored_units", "space of these blocks, in 64 B"),
        field(8, "shared_units", "of that, blocks that an earlier pointer references as well"),
        field(8, "tree_units", "space of the blocks and the tree nodes, in 64 B"),
        field(8, "born_units", "space of blocks born here and still stored, in 64 B"),
        field(8, "freed_to", "while it is being destroyed: the first record that is not freed"),
        field(0, "name", "u16 length, UTF-8"),
        field(0, "volume", "u64 origin's snapshot (0 none), u64 its txg, u64 inherited units,"),
        field(
            0,
            "",
            "u8 count, count x {u64 until txg, u64 owner}, u8 receiving: 0 nothing, 1 into",
        ),
        field(0, "", "an existing volume, 2 into a new volume, then: u64 guid of the snapshot,"),
        field(
            0,
            "",
            "u64 guid of the preceding snapshot (0 none), u64 next record, u64 created ms, string",
        ),
        field(0, "snapshot", "u64 volume, u64 txg, u64 guid, u64 unique units (all ones: not"),
        field(0, "", "known), u8 count, count x {u16 length, tag}"),
        field(0, "bookmark", "u64 volume, u64 txg, u64 guid; no blocks, all counts zero"),
        field(0, "properties", "as below"),
    ];

    /// Encodes the entry as one block of the directory.
    pub fn encode(&self) -> [u8; BLOCK_BYTES] {
        let mut w = Writer::default();
        w.u64(self.id.0);
        w.u8(match self.kind {
            DatasetKind::Volume(_) => 1,
            DatasetKind::Snapshot(_) => 2,
            DatasetKind::Bookmark(_) => 3,
        });
        w.u8(match self.state {
            DatasetState::Active => 0,
            DatasetState::Destroying => 1,
        });
        w.u64(self.size_bytes);
        w.u8(self.record_size.shift());
        w.u64(self.created_txg.0);
        w.u64(self.created_unix_ms);
        self.root.write(&mut w);
        w.u64(self.used_blocks);
        w.u64(self.stored_units);
        w.u64(self.shared_units);
        w.u64(self.tree_units);
        w.u64(self.born_units);
        w.u64(self.freed_to);
        w.str(&self.name);
        match &self.kind {
            DatasetKind::Volume(descent) => descent.write(&mut w),
            DatasetKind::Snapshot(moment) => moment.write(&mut w),
            DatasetKind::Bookmark(bookmark) => bookmark.write(&mut w),
        }
        self.properties.write(&mut w);
        w.pad_to(BLOCK_BYTES);
        w.0.try_into().expect("padded to one block")
    }

    /// Decodes one block of the directory.
    ///
    /// # Errors
    /// A field has an invalid value.
    pub fn decode(block: &[u8; BLOCK_BYTES]) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, block);
        let id = DatasetId(r.u64()?);
        let kind = r.u8()?;
        let state = match r.u8()? {
            0 => DatasetState::Active,
            1 => DatasetState::Destroying,
            other => return Err(r.bad("state", other)),
        };
        let size_bytes = r.u64()?;
        let shift = r.u8()?;
        let record_size =
            RecordSize::from_shift(shift).ok_or_else(|| r.bad("record_size", shift))?;
        let (created_txg, created_unix_ms) = (Txg(r.u64()?), r.u64()?);
        let root = TreeRoot::read(&mut r)?;
        let mut count = || r.u64().map(|count| count.min(COUNT_MAX));
        let (used_blocks, stored_units, shared_units) = (count()?, count()?, count()?);
        let (tree_units, born_units) = (count()?, count()?);
        let freed_to = r.u64()?;
        let name = r.str("name")?;
        let kind = match kind {
            1 => DatasetKind::Volume(Descent::read(&mut r)?),
            2 => DatasetKind::Snapshot(Moment::read(&mut r)?),
            3 => DatasetKind::Bookmark(Bookmark::read(&mut r)?),
            other => return Err(r.bad("kind", other)),
        };
        let properties = Properties::read(&mut r)?;
        if !size_bytes.is_multiple_of(record_size.bytes() as u64)
            || record_size.records_in(size_bytes) > TreeRoot::capacity(root.height)
        {
            return Err(r.bad("size_bytes", size_bytes));
        }
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(r.bad("name", name.len() as u64));
        }
        let counts = [size_bytes, used_blocks, stored_units, shared_units, tree_units, born_units];
        let is_empty = root == TreeRoot::default()
            && counts == [0; 6]
            && freed_to == 0
            && record_size.is_block();
        if matches!(kind, DatasetKind::Bookmark(_)) && (!is_empty || state != DatasetState::Active)
        {
            return Err(r.bad("bookmark", id.0));
        }
        Ok(Self {
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
        })
    }
}

impl Descent {
    fn write(&self, w: &mut Writer) {
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
        w.u8(if receiving.is_new { 2 } else { 1 });
        w.u64(receiving.to);
        w.u64(receiving.from.unwrap_or(0));
        w.u64(receiving.next_record);
        w.u64(receiving.created_unix_ms);
        w.str(&receiving.snapshot);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (snapshot, txg) = (DatasetId(r.u64()?), Txg(r.u64()?));
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
        let is_new = match r.u8()? {
            0 => return Ok(Self { origin, lineage, inherited_units, receiving: None }),
            1 => false,
            2 => true,
            other => return Err(r.bad("receiving", other)),
        };
        let (to, from, next_record) = (r.u64()?, r.u64()?, r.u64()?);
        let (created_unix_ms, snapshot) = (r.u64()?, r.str("snapshot")?);
        if snapshot.is_empty() || snapshot.len() > NAME_BYTES_MAX {
            return Err(r.bad("snapshot", snapshot.len() as u64));
        }
        let from = (from != 0).then_some(from);
        let receiving =
            Some(Receiving { to, from, is_new, next_record, snapshot, created_unix_ms });
        Ok(Self { origin, lineage, inherited_units, receiving })
    }
}

impl Bookmark {
    fn write(self, w: &mut Writer) {
        w.u64(self.of.0);
        w.u64(self.txg.0);
        w.u64(self.guid);
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        Ok(Self { of: DatasetId(r.u64()?), txg: Txg(r.u64()?), guid: r.u64()? })
    }
}

/// Encoding of an unknown [`Moment::unique_units`].
const UNKNOWN: u64 = u64::MAX;

impl Moment {
    fn write(&self, w: &mut Writer) {
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

    fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
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
