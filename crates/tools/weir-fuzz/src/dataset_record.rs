//! Fuzzes the entries of the dataset directory: any block, decoded as the entry of a dataset and as
//! the entry of the pool, in the layouts of formats 8 and 9.
//!
//! The fuzz target does not check relations between directory entries.
//!
//! Invariants: no panic; an accepted entry is encoded in the layout of format 9 and survives
//! decoding unchanged; an entry that is already in this layout is encoded to the same bytes.

use weir_base::property::{QUOTA, READ_ONLY};
use weir_base::{BLOCK_BYTES, DatasetId, ObjectId, RecordSize, Txg};
use weir_forge::images::MIRROR_V8;
use weir_forge::{Disks, Kind, Map};
use weir_format::{
    Ancestor, Bookmark, DatasetKind, DatasetRecord, DatasetState, Descent, ObjectTable, Origin,
    PoolRecord, Properties, Receiving, SnapshotFields, TreeRoot,
};

use crate::valid::{padded, trimmed};

/// Kinds of directory entries in format 8, then the kinds in format 9.
const KINDS: [u8; 8] = [1, 2, 3, 17, 18, 19, 20, 21];
/// Offset of the kind in a directory entry.
const KIND_AT: usize = 8;

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let mut block = padded(data);
    check(&block);
    for kind in KINDS {
        block[KIND_AT] = kind;
        check(&block);
    }
    block[..KIND_AT].fill(0);
    for kind in KINDS {
        block[KIND_AT] = kind;
        check(&block);
    }
}

/// Directory entries of each kind, and the entries of a pool of format 8.
pub fn seeds() -> Vec<Vec<u8>> {
    let descent = Descent {
        origin: Some(Origin { snapshot: DatasetId(2), txg: Txg(9) }),
        lineage: vec![Ancestor { until: Txg(3), owner: DatasetId(1) }],
        inherited_units: 17,
        receiving: Some(Receiving {
            to: 8,
            from: Some(7),
            is_new: true,
            next_object: ObjectId(0),
            next_record: 12,
            snapshot: "monday".to_owned(),
            created_unix_ms: 3,
        }),
    };
    let mut properties = Properties::default().with(QUOTA, 4096.into()).with(READ_ONLY, true);
    properties.user.insert("a:b".to_owned(), "c".to_owned());
    let volume = DatasetRecord {
        id: DatasetId(3),
        kind: DatasetKind::Volume(descent),
        state: DatasetState::Active,
        name: "vm1".to_owned(),
        size_bytes: 0,
        record_size: RecordSize::BLOCK,
        properties: properties.clone(),
        created_txg: Txg(2),
        created_unix_ms: 5,
        root: TreeRoot::default(),
        used_blocks: 0,
        stored_units: 0,
        shared_units: 0,
        tree_units: 0,
        born_units: 0,
        freed_to: 0,
        objects: None,
    };
    let (of, txg, guid) = (DatasetId(3), Txg(8), 5);
    let holds = vec!["backup".to_owned()];
    let moment = SnapshotFields { of, txg, guid, holds, unique_units: None };
    let snapshot = DatasetRecord { kind: DatasetKind::Snapshot(moment), ..volume.clone() };
    let objects = Some(ObjectTable { freed_object: 4, layer: [5; ObjectTable::LAYER_BYTES] });
    let mut resumed = volume.clone();
    if let DatasetKind::Volume(Descent { receiving: Some(receiving), .. }) = &mut resumed.kind {
        receiving.next_object = ObjectId(9);
    }
    let of_objects = [&volume, &resumed, &snapshot].map(|record| {
        let record = DatasetRecord { objects, ..record.clone() };
        record.encode()
    });
    let kind = DatasetKind::Bookmark(Bookmark { of, txg, guid });
    let bookmark = DatasetRecord { kind, ..volume.clone() };
    let pool = PoolRecord { properties, lost: vec![3..5, 9..10] };
    let blocks = [volume.encode(), snapshot.encode(), bookmark.encode(), pool.encode()];
    let old = Map::of(&Disks::of_images(MIRROR_V8));
    let old = old.contents(Kind::Directory).map(trimmed);
    let blocks = blocks.iter().chain(&of_objects);
    blocks.map(|block| trimmed(block)).chain(old).collect()
}

fn check(block: &[u8; BLOCK_BYTES]) {
    let is_old = block[KIND_AT] < 16;
    if let Ok(record) = DatasetRecord::decode(block) {
        let encoded = record.encode();
        assert_eq!(DatasetRecord::decode(&encoded).as_ref(), Ok(&record));
        // The decoder lowers a count above its bound to the bound, so such an entry is encoded to
        // different bytes.
        assert!(is_old || encoded == *block || has_lowered_count(&record));
    }
    if let Ok(record) = PoolRecord::decode(block) {
        let encoded = record.encode();
        assert_eq!(PoolRecord::decode(&encoded).as_ref(), Ok(&record));
        assert!(is_old || encoded == *block);
    }
}

fn has_lowered_count(record: &DatasetRecord) -> bool {
    const COUNT_MAX: u64 = 1 << 40;
    let inherited = match &record.kind {
        DatasetKind::Volume(descent) => Some(descent.inherited_units),
        DatasetKind::Snapshot(moment) => moment.unique_units,
        DatasetKind::Bookmark(_) => None,
    };
    let DatasetRecord { used_blocks, stored_units, shared_units, tree_units, born_units, .. } =
        *record;
    let counts = [used_blocks, stored_units, shared_units, tree_units, born_units];
    counts.into_iter().chain(inherited).any(|count| count == COUNT_MAX)
}
