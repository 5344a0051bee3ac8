//! Fuzzes the log records of a filesystem. The first byte of an input is the type of the record.
//!
//! `log_batch` fuzzes the batches of the log that contain the records.
//!
//! Invariants: no panic; encoding an accepted record reproduces its bytes.

use weir_base::{BLOCK_BYTES, ObjectId, Txg};
use weir_format::files::{
    AttributeChanges, EntryKey, Fate, FileRecord, Inode, Limits, NamedEntry, OwnerId, OwnerKind,
    Stamp, TimeStamp,
};

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    let Some((kind, payload)) = data.split_first() else { return };
    if let Ok((stamp, record)) = FileRecord::decode(*kind, payload) {
        assert_eq!(record.kind(), *kind);
        let mut encoded = record.encode(stamp);
        if let FileRecord::Write { blocks, .. } = record {
            encoded.extend(blocks);
        }
        assert_eq!(encoded, payload);
    }
}

/// One record of each type.
pub fn seeds() -> Vec<Vec<u8>> {
    let stamp = Stamp { txg: Txg(9), time: TimeStamp { seconds: 5, nanos: 6 } };
    let entry = |name| {
        let (directory, key) = (ObjectId(1), EntryKey::MIN);
        NamedEntry { directory, key, name }
    };
    let mut body = [0; weir_format::ObjectSlot::BODY_BYTES];
    let inodes = super::inode::seeds().into_iter().filter_map(|seed| {
        body.fill(0);
        body.get_mut(..seed.len())?.copy_from_slice(&seed);
        Inode::decode(&body).ok().flatten()
    });
    let creates = inodes.map(|inode| {
        let inode = Box::new(inode);
        FileRecord::Create { entry: Some(entry(b"new")), inode, target: b"" }
    });
    let (from, to) = (entry(b"from"), entry(b"to"));
    let block = vec![7; BLOCK_BYTES];
    let records = [
        FileRecord::Write { offset: 3, head: b"head", blocks: &[], tail: b"", permissions: 0o600 },
        FileRecord::Write { offset: 4095, head: b"h", blocks: &block, tail: b"t", permissions: 0 },
        FileRecord::Zero { offset: 1, bytes: 2, permissions: 0o755 },
        FileRecord::SetAttributes(AttributeChanges {
            permissions: Some(0o644),
            size: Some(12),
            mtime: Some(stamp.time),
            ..AttributeChanges::default()
        }),
        FileRecord::SetXattr { name: b"user.a", value: Some(b"value"), object: None },
        FileRecord::SetXattr { name: b"user.a", value: Some(&block), object: Some(ObjectId(18)) },
        FileRecord::SetXattr { name: b"user.a", value: None, object: None },
        FileRecord::Link { entry: from },
        FileRecord::Remove { entry: from, fate: Fate::Freed },
        FileRecord::Rename { from, to, replaced: Some((ObjectId(17), Fate::Orphan)) },
        FileRecord::Rename { from, to, replaced: None },
        FileRecord::Exchange { from, to, other: ObjectId(17) },
        FileRecord::Remove { entry: from, fate: Fate::Freeing },
        FileRecord::Release,
        FileRecord::BeginFreeing,
        FileRecord::Access { atime: stamp.time },
        FileRecord::SetLimits {
            owner: OwnerId { kind: OwnerKind::Project, id: 7 },
            limits: Limits { blocks: 100, inodes: 0 },
        },
    ];
    let encode = |record: FileRecord<'_>| {
        let mut bytes = vec![record.kind()];
        bytes.extend(record.encode(stamp));
        if let FileRecord::Write { blocks, .. } = record {
            bytes.extend(blocks);
        }
        bytes
    };
    creates.chain(records).map(encode).collect()
}
