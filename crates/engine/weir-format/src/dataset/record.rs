//! The record of one dataset in the dataset directory: a volume or a dataset with many objects, a
//! snapshot or a bookmark.
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

use weir_base::{DatasetId, ObjectId, RecordSize, Txg};

use crate::bytes::{Field, field};
use crate::node::TreeRoot;
use crate::properties::Properties;

/// Kind of a dataset, with the fields of that kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatasetKind {
    /// A block volume, or a dataset with many objects.
    Volume(Descent),
    /// State of a volume at the end of a txg.
    Snapshot(SnapshotFields),
    /// A bookmark: a snapshot's point in time without its data. Of the fields of a dataset, it has
    /// only a name and the snapshot's time of creation.
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
    /// Size of the blocks and nodes in the volume's tree that were born in the origin's txg or
    /// earlier, in units of 64 bytes.
    pub inherited_units: u64,
    /// The stream that is being received into the volume. While this field is set, no other change
    /// of the volume is allowed.
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
    /// Object of `next_record`; 0 for a volume, and before the first object of a dataset.
    pub next_object: ObjectId,
    /// Number of the first record that was not received yet.
    pub next_record: u64,
    /// Name of the snapshot in the stream.
    pub snapshot: String,
    /// Time at which the snapshot was taken, by the sender's wall clock.
    pub created_unix_ms: u64,
}

impl Receiving {
    /// First place that was not received yet.
    pub fn next(&self) -> (ObjectId, u64) {
        (self.next_object, self.next_record)
    }

    /// Notes that the stream is received up to this record of an object.
    pub fn pass(&mut self, object: ObjectId, record: u64) {
        (self.next_object, self.next_record) = self.next().max((object, record));
    }
}

/// The snapshot from which a volume was cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Dataset number of the snapshot.
    pub snapshot: DatasetId,
    /// Txg of the snapshot. Blocks born in this txg or earlier belong to the origin's snapshot
    /// chain.
    pub txg: Txg,
}

/// A volume that owned a snapshot chain before its present owner and wrote some of the chain's
/// blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// Newest birth txg of the blocks that this ancestor owns. The oldest birth txg is the txg
    /// after the `until` of the previous ancestor.
    pub until: Txg,
    /// Dataset number of the volume, as in the segment summaries.
    pub owner: DatasetId,
}

/// Fields of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFields {
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

/// Fields of a dataset with many objects, and of its snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectTable {
    /// While the dataset is being destroyed: the object that is being freed;
    /// [`DatasetRecord::freed_to`] is a record number of this object.
    pub freed_object: u64,
    /// Bytes that the layer above the engine stores with the dataset, such as the key of a hash.
    pub layer: [u8; Self::LAYER_BYTES],
}

impl ObjectTable {
    /// Size of [`Self::layer`].
    pub const LAYER_BYTES: usize = 40;
}

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
    /// Stored size, in units of 64 bytes, of the blocks and nodes that are still on disk and were
    /// born since the newest snapshot (in the record of a volume) or since the previous snapshot
    /// (in the record of a snapshot).
    pub born_units: u64,
    /// While the dataset is being destroyed: number of the first record that is not freed yet.
    pub freed_to: u64,
    /// Set for a dataset with many objects, and for its snapshots. The tree of the record is then
    /// the object table.
    pub objects: Option<ObjectTable>,
}

impl DatasetRecord {
    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "id", "dataset number"),
        field(1, "kind", "17 volume, 18 snapshot, 19 bookmark; 1 to 3: the layout of format 8"),
        field(1, "state", "0 active, 1 being destroyed"),
        field(8, "created_txg", "txg of creation"),
        field(8, "created_unix_ms", "wall clock of creation"),
        field(0, "name", "u16 length, UTF-8"),
        field(2, "body_bytes", "length of the body"),
        field(0, "body", "fields of the kind, as below"),
        field(2, "properties_bytes", "length of the properties"),
        field(0, "properties", "as below"),
        field(0, "zero", "up to the end of the block"),
    ];

    /// Fields of the body, for the format documentation.
    pub const BODY_FIELDS: &[Field] = &[
        field(0, "volume", "the tree, then the descent"),
        field(0, "snapshot", "the tree, then u64 volume, u64 txg, u64 guid, u64 unique units (all"),
        field(0, "", "ones: not known), u8 count, count x {u16 length, tag}"),
        field(0, "bookmark", "u64 volume, u64 txg, u64 guid; no tree"),
    ];

    /// Fields of the tree in the body of a volume or snapshot, for the format documentation.
    pub const TREE_FIELDS: &[Field] = &[
        field(8, "size_bytes", "size that clients see"),
        field(1, "record_size", "log2 of a record's blocks, 0 to 8"),
        field(33, "root", "tree root of its blocks"),
        field(8, "used_blocks", "blocks that are not holes"),
        field(8, "stored_units", "space of these blocks, in 64 B"),
        field(8, "shared_units", "of that, blocks that an earlier pointer references as well"),
        field(8, "tree_units", "space of the blocks and the tree nodes, in 64 B"),
        field(8, "born_units", "space of blocks born here and still stored, in 64 B"),
        field(8, "freed_to", "while it is being destroyed: the first record that is not freed"),
    ];

    /// Fields of the descent in the body of a volume, for the format documentation.
    pub const DESCENT_FIELDS: &[Field] = &[
        field(8, "origin", "dataset number of the origin's snapshot, 0 none"),
        field(8, "origin_txg", "txg of that snapshot"),
        field(8, "inherited_units", "space of the blocks that the origin's chain owns, in 64 B"),
        field(1, "ancestors", "number of ancestors, at most 64"),
        field(0, "ancestor", "for each {u64 until txg, u64 owner}, ascending"),
        field(1, "receiving", "0 nothing, 1 into an existing volume, 2 into a new volume; then:"),
        field(
            0,
            "stream",
            "u64 guid of the snapshot, u64 guid of the preceding snapshot (0 none),",
        ),
        field(0, "", "u64 next record, u64 created ms, string"),
        field(0, "object", "3 and 4 are as 1 and 2, with u64 object of the next record at the end"),
    ];
}
