//! Dataset with many objects in a sample pool, the layer above it, and operations on such datasets
//! of a forged pool.
//!
//! `sample` builds the pool, and `exercise` calls the operations.
//!
//! Invariant: nothing is random.

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use weir_base::property::COMPRESSION;
use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_block::Block;
use weir_dataset::{
    DatasetError, Engine, LogOrder, LoggedObjectRecord, ObjectChange, ObjectLayer, ObjectRecord,
    PropertyChange, ReplayTarget, SnapshotId, SyncOf, Volume,
};
use weir_format::{Compression, ObjectSlot, ObjectTable};

use crate::bench::{Bench, drive};
use crate::disks::noise;

/// Name of the dataset.
pub const FILES: &str = "files";
const LAYER: [u8; ObjectTable::LAYER_BYTES] = [9; ObjectTable::LAYER_BYTES];
/// Numbers of the objects: several in one block of the table, and some so high that the table's
/// tree gets further levels.
const NUMBERS: [u64; 8] = [1, 2, 3, 5, 9, 600, 70_000, 70_001];
/// Records of each object: in two leaves.
const RECORDS: [u64; 4] = [0, 1, 7, 300];
/// Object and its damaged record. No snapshot contains the object, so all snapshots can be sent.
const DAMAGED: (u64, u64) = (13, 7);
/// Number of objects and of their records that an operation on a forged pool reads.
const READS: usize = 6;

/// Layer that replays log records of every type: it writes the payload to the slot of the object.
pub(crate) struct AnyLayer;

impl ObjectLayer for AnyLayer {
    fn handles(&self, _: &[u8; ObjectTable::LAYER_BYTES]) -> bool {
        true
    }

    fn replay<'a>(
        &'a self,
        dataset: ReplayTarget<'a>,
        record: LoggedObjectRecord<'a>,
    ) -> LocalBoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            let slot = dataset.slot(record.object).await?;
            let size = slot.map_or(RecordSize::BLOCK, |(size, _)| size);
            let (object, mut body) = (record.object, Box::new([0; ObjectSlot::BODY_BYTES]));
            let len = record.payload.len().min(body.len());
            body[..len].copy_from_slice(&record.payload[..len]);
            dataset.change(vec![ObjectChange::SetSlot { object, size, body }]).await
        })
    }
}

fn size_of(object: u64) -> RecordSize {
    RecordSize::from_shift((object % 2) as u8).expect("one block or two")
}

fn set_slot(object: u64, byte: u8) -> ObjectChange {
    let body = Box::new([byte; ObjectSlot::BODY_BYTES]);
    ObjectChange::SetSlot { object: ObjectId(object), size: size_of(object), body }
}

fn write(object: u64, record: u64, seed: u64) -> ObjectChange {
    let size = size_of(object);
    let bytes = noise(seed + record + (object << 20), size.blocks());
    let blocks = bytes.chunks(BLOCK_BYTES).map(|block| {
        let block = block.first_chunk().expect("whole blocks");
        Block::copy_of(block)
    });
    ObjectChange::Write { object: ObjectId(object), size, record, blocks: blocks.collect() }
}

/// Creates the dataset with three snapshots, and destroys one of them.
pub(crate) async fn fill(engine: &Arc<Engine>) -> Result<(), DatasetError> {
    let plain = PropertyChange::set(COMPRESSION, Compression::Off);
    engine.create_object_dataset(FILES, LAYER, &[plain]).await?;
    let files = engine.volume(FILES)?;
    for object in NUMBERS {
        let records = RECORDS.into_iter().map(|record| write(object, record, 1));
        files.change_objects([set_slot(object, 1)].into_iter().chain(records).collect()).await?;
    }
    engine.create_snapshots(&[SnapshotId::new(FILES, "one")]).await?;
    engine.clone_snapshot(&SnapshotId::new(FILES, "one"), "copy").await?;
    engine.volume("copy")?.change_objects(vec![write(2, 1, 2)]).await?;
    for (object, name) in NUMBERS.into_iter().zip(["two", "three"]) {
        let all = 0..u64::from(u32::MAX);
        let size = size_of(object);
        let zero = ObjectChange::Zero { object: ObjectId(object), size, records: all };
        let changes = vec![zero, set_slot(object, 2), write(object, 2, 3), write(9, 1, 3)];
        files.change_objects(changes).await?;
        files.change_objects(vec![ObjectChange::Remove { object: ObjectId(object + 1) }]).await?;
        engine.create_snapshots(&[SnapshotId::new(FILES, name)]).await?;
    }
    engine.destroy_snapshots(FILES, &["two".to_owned()]).await?;
    let (object, record) = DAMAGED;
    files.change_objects(vec![set_slot(object, 4), write(object, record, 4)]).await?;
    engine.commit().await
}

/// Offset on the disk of the record to damage.
pub(crate) async fn damaged_bytes(engine: &Arc<Engine>) -> Result<u64, DatasetError> {
    let (object, record) = DAMAGED;
    let files = engine.volume(FILES)?;
    let place = files.object_address(ObjectId(object), 0, record).await?;
    Ok(place.expect("the record has data").offset)
}

/// Reads the damaged record, so that the engine adds the record to the permanent errors; then makes
/// changes that exist only in the log.
pub(crate) async fn log(engine: &Arc<Engine>) -> Result<(), DatasetError> {
    let files = engine.volume(FILES)?;
    let (object, record) = DAMAGED;
    let read = files.read_object(ObjectId(object), size_of(object), record).await;
    assert!(read.is_err(), "the record is damaged");
    engine.commit().await?;
    for (object, kind) in [(9, 16), (600, 255)] {
        let (object, names) = (ObjectId(object), vec![ObjectId(object), ObjectId(1)]);
        let order = LogOrder::Namespace { names, ends: Vec::new() };
        let (payload, blocks) = (vec![kind; 40], Vec::new());
        let logged = ObjectRecord { object, kind, order, payload, blocks, frees: false };
        files.change_logged_objects(vec![set_slot(object.0, 3)], logged).await?;
    }
    engine.sync_objects(&files, SyncOf::All).await
}

/// Reads slots and records of a dataset with many objects; returns false for a volume.
pub(crate) fn read(bench: &Bench, volume: &Volume) -> bool {
    let Some(Ok(listed)) = drive(bench, volume.objects_in_use(0)) else { return false };
    let listed = listed.used.into_iter().flatten().take(READS);
    for object in listed.chain(NUMBERS).map(ObjectId) {
        let slot = drive(bench, volume.object_slot(object));
        let Some(Ok(Some((size, _)))) = slot else { continue };
        let records = drive(bench, volume.object_records(object, 0, READS));
        let records = records.and_then(Result::ok).map(|records| records.used);
        let listed = records.into_iter().flatten().flatten().take(READS);
        for record in listed.chain(RECORDS) {
            let _read = drive(bench, volume.read_object(object, size, record));
        }
    }
    true
}

/// Changes objects of a dataset with many objects.
pub(crate) fn change(bench: &Bench, volume: &Volume) {
    for object in NUMBERS {
        let slot = drive(bench, volume.object_slot(ObjectId(object)));
        let Some(Ok(slot)) = slot else { continue };
        if slot.is_some_and(|(size, _)| size != size_of(object)) {
            continue;
        }
        let _write = drive(bench, volume.change_objects(vec![write(object, 1, 7)]));
        let (object, size, records) = (ObjectId(object), size_of(object), 5..400);
        let zero = ObjectChange::Zero { object, size, records };
        let _zero = drive(bench, volume.change_objects(vec![zero]));
    }
    let _sync = drive(bench, bench.sync_objects(volume, SyncOf::All));
    let _remove =
        drive(bench, volume.change_objects(vec![ObjectChange::Remove { object: ObjectId(9) }]));
}
