//! Model test of a dataset with many objects: random changes, snapshots, clones, rollbacks and
//! restarts on memory devices.
//!
//! weir-sim tests power cuts and faults.
//!
//! Invariants: after every step, reads of the head and of each snapshot match the model; the space
//! counters match the trees.

use fastrand::Rng;
use futures_util::FutureExt as _;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{
    as_devices, assert_exact, committing, copy_records, import, now, options, pool_on,
};
use weir_base::{ErrorKind, ObjectId, RecordSize};
use weir_block::Block;
use weir_dataset::{DatasetError, Engine, ObjectChange, RecordCopy, SnapshotId, Volume};
use weir_device::MemoryDevice;
use weir_format::{NODE_FANOUT, ObjectSlot};

const DISK_BYTES: usize = 64 << 20;
const MEMORY_BYTES: u64 = 16 << 20;
const LAYER: [u8; 40] = [7; 40];
/// Number of the last object.
const LAST: u64 = 300;

#[derive(Clone, Debug, Default, PartialEq)]
struct Object {
    tag: u8,
    /// Seed of each record's content, by the number of the record.
    records: BTreeMap<u64, u64>,
}

type Model = BTreeMap<u64, Object>;

fn size_of(object: u64) -> RecordSize {
    RecordSize::from_shift((object % 3) as u8).unwrap()
}

fn blocks_of(seed: u64, size: RecordSize) -> Vec<Block> {
    let block = |part: u64| {
        let words = (0..512).map(|word| (seed * 8 + part).wrapping_mul(word | 1) >> 7);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        Block::copy_of(bytes.first_chunk().unwrap())
    };
    (0..size.blocks()).map(block).collect()
}

fn set_slot(object: u64, tag: u8) -> ObjectChange {
    let body = Box::new([tag; ObjectSlot::BODY_BYTES]);
    ObjectChange::SetSlot { object: ObjectId(object), size: size_of(object), body }
}

fn write(object: u64, record: u64, seed: u64) -> ObjectChange {
    let (object, size) = (ObjectId(object), size_of(object));
    ObjectChange::Write { object, size, record, blocks: blocks_of(seed, size) }
}

/// Draws a random batch of changes, applies it to the model and returns it.
fn batch(numbers: &mut Rng, model: &mut Model) -> Vec<ObjectChange> {
    let mut changes = Vec::new();
    for _ in 0..=numbers.u64(..4) {
        let number = 1 + numbers.u64(..LAST);
        let (object, size) = (ObjectId(number), size_of(number));
        let is_new = !model.contains_key(&number);
        let known = model.entry(number).or_default();
        if is_new || numbers.u64(..4) == 0 {
            known.tag = 1 + numbers.u64(..250) as u8;
            changes.push(set_slot(number, known.tag));
        }
        match numbers.u64(..10) {
            0 if !is_new => {
                model.remove(&number);
                changes.push(ObjectChange::Remove { object });
            }
            1 | 2 => {
                let start = numbers.u64(..6);
                let records = start..start + numbers.u64(..3) * 200;
                known.records.retain(|record, _| !records.contains(record));
                changes.push(ObjectChange::Zero { object, size, records });
            }
            3 => {
                let (record, seed) = (numbers.u64(..100_000), numbers.u64(..1 << 40));
                known.records.insert(record, seed);
                changes.push(write(number, record, seed));
            }
            _ => {
                let first = numbers.u64(..5);
                for record in first..first + numbers.u64(..3) {
                    let seed = numbers.u64(..1 << 40);
                    known.records.insert(record, seed);
                    changes.push(write(number, record, seed));
                }
            }
        }
    }
    changes
}

/// Draws a copy between two objects, and the changes that precede it in the txg. Applies both to
/// the model.
fn copy(numbers: &mut Rng, model: &mut Model) -> Option<(RecordCopy, Vec<ObjectChange>)> {
    let source = numbers.choice(model.keys().copied())?;
    let same = model.keys().copied().filter(|number| size_of(*number) == size_of(source));
    let same: Vec<u64> = same.collect();
    let target = numbers.choice(same)?;
    let (from, to) = (numbers.u64(..6), numbers.u64(..6));
    let records = from..from + 1 + numbers.u64(..4);
    let end = to + (records.end - from);
    if source == target && from < end && to < records.end {
        return None;
    }
    let (object, size) = (ObjectId(target), size_of(target));
    let found: Vec<(u64, u64)> =
        model[&source].records.range(records.clone()).map(|(at, seed)| (*at, *seed)).collect();
    let known = model.get_mut(&target).expect("it has this object");
    known.tag = 1 + numbers.u64(..250) as u8;
    known.records.retain(|record, _| !(to..end).contains(record));
    known.records.extend(found.into_iter().map(|(at, seed)| (at - from + to, seed)));
    let changes =
        vec![set_slot(target, known.tag), ObjectChange::Zero { object, size, records: to..end }];
    Some((RecordCopy { source: ObjectId(source), records, object, to, size }, changes))
}

fn check(volume: &Volume, model: &Model) {
    for number in 1..=LAST {
        let (object, size) = (ObjectId(number), size_of(number));
        let slot = now(volume.object_slot(object)).unwrap();
        let known = model.get(&number);
        let tag = slot.map(|(size, body)| (size, body[0], body[body.len() - 1]));
        assert_eq!(tag, known.map(|known| (size, known.tag, known.tag)), "slot {number}");
        let records = known.into_iter().flat_map(|known| known.records.keys().copied());
        for record in records.chain(0..6) {
            let read = now(volume.read_object(object, size, record)).unwrap();
            let seed = known.and_then(|known| known.records.get(&record));
            let wanted = seed.map(|seed| blocks_of(*seed, size));
            let bytes = |blocks: &Vec<Block>| {
                blocks.iter().flat_map(|block| block.to_vec()).collect::<Vec<u8>>()
            };
            let same = read.as_ref().map(bytes) == wanted.as_ref().map(bytes);
            assert!(same, "record {record} of object {number}");
        }
    }
}

fn id(name: &str) -> SnapshotId {
    SnapshotId::new("files", name)
}

fn reopen(engine: Arc<Engine>, disk: &Arc<MemoryDevice>) -> Arc<Engine> {
    drop(engine);
    let disks = as_devices(&[Arc::clone(disk)]);
    now(Engine::open(disks, import(), &options(MEMORY_BYTES))).unwrap()
}

/// Clones a snapshot, promotes the clone and destroys both datasets.
fn check_clone(engine: &Engine, snapshot: &str, model: &Model, numbers: &mut Rng) {
    now(engine.clone_snapshot(&id(snapshot), "clone")).unwrap();
    let clone = engine.volume("clone").unwrap();
    check(&clone, model);
    let mut model = model.clone();
    let changes = batch(numbers, &mut model);
    now(clone.change_objects(changes)).unwrap();
    now(engine.sync()).unwrap();
    check(&clone, &model);
    now(engine.promote("clone")).unwrap();
    assert_exact(engine);
    now(engine.destroy_volume("files", true)).unwrap();
    check(&clone, &model);
    now(engine.destroy_volume("clone", true)).unwrap();
}

#[test]
fn object_dataset_matches_a_model() {
    for seed in 0..3 {
        let mut numbers = Rng::with_seed(seed);
        let disk = Arc::new(MemoryDevice::new("disk", DISK_BYTES));
        let mut engine = pool_on(&disk, MEMORY_BYTES);
        now(engine.create_object_dataset("files", LAYER, &[])).unwrap();
        let (mut model, mut snapshots) = (Model::new(), BTreeMap::<String, Model>::new());
        for step in 0..120 {
            let volume = engine.volume("files").unwrap();
            for _ in 0..numbers.u64(..40) {
                if numbers.u64(..5) == 0
                    && let Some((copy, changes)) = copy(&mut numbers, &mut model)
                {
                    committing(&engine, copy_records(&volume, &copy, &changes)).unwrap();
                    continue;
                }
                let changes = batch(&mut numbers, &mut model);
                committing(&engine, volume.change_objects(changes)).unwrap();
            }
            match numbers.u64(..12) {
                0..4 => now(engine.sync()).unwrap(),
                4 => {
                    let name = format!("s{step}");
                    committing(&engine, engine.create_snapshots(&[id(&name)])).unwrap();
                    snapshots.insert(name, model.clone());
                }
                5 if snapshots.len() > 2 => {
                    let at = numbers.u64(..snapshots.len() as u64) as usize;
                    let name = snapshots.keys().nth(at).unwrap().clone();
                    now(engine.destroy_snapshots("files", std::slice::from_ref(&name))).unwrap();
                    snapshots.remove(&name);
                }
                6 if !snapshots.is_empty() && numbers.u64(..3) == 0 => {
                    let newest = |name: &&String| name[1..].parse::<u32>().unwrap();
                    let name = snapshots.keys().max_by_key(newest).unwrap().clone();
                    committing(&engine, engine.rollback(&id(&name), false)).unwrap();
                    model = snapshots[&name].clone();
                }
                7 => {
                    committing(&engine, engine.flush(&volume)).unwrap();
                    drop(volume);
                    engine = reopen(engine, &disk);
                }
                _ => {}
            }
            if step % 12 == 0 {
                check(&engine.volume("files").unwrap(), &model);
                now(engine.sync()).unwrap();
                assert_exact(&engine);
                for (name, model) in &snapshots {
                    check(&engine.open_snapshot(&id(name)).unwrap(), model);
                }
            }
        }
        match snapshots.first_key_value() {
            Some((name, model)) => check_clone(&engine, name, model, &mut numbers),
            None => drop(now(engine.destroy_volume("files", true)).unwrap()),
        }
        for _ in 0..200 {
            now(engine.sync()).unwrap();
        }
        assert_exact(&engine);
        assert!(engine.volumes().is_empty());
        let left = engine.pool().space().live_bytes;
        assert!(left < 256 << 10, "only metadata of the pool is left: {left}");
    }
}

/// Regression: a write far beyond the end of an object grows its tree, and a hole in the same txg
/// covers the new nodes above the old tree. If the cache had evicted these nodes, the commit tried
/// to read them from disk before it had written them, and never freed the old tree.
#[test]
fn hole_over_a_tree_that_grows_in_the_same_txg_frees_the_old_tree() {
    let disk = Arc::new(MemoryDevice::new("disk", DISK_BYTES));
    let engine = pool_on(&disk, 64 << 10);
    now(engine.create_object_dataset("files", LAYER, &[])).unwrap();
    let volume = engine.volume("files").unwrap();
    let change = |changes| committing(&engine, volume.change_objects(changes)).unwrap();
    // An object whose nodes fill the cache.
    let wide = |leaf: u64| leaf * NODE_FANOUT as u64;
    change(vec![set_slot(12, 1)]);
    (0..200).for_each(|leaf| change(vec![write(12, wide(leaf), 1)]));
    // Trees of one block, of one leaf and of two levels.
    for (object, last) in [(3, 0), (6, 100), (9, 300)] {
        change(vec![set_slot(object, 1)]);
        (0..=last).for_each(|record| change(vec![write(object, record, record + 1)]));
        now(engine.sync()).unwrap();
        let size = size_of(object);
        let hole = ObjectChange::Zero { object: ObjectId(object), size, records: 0..20_000 };
        // Read the nodes twice, so that the cache evicts new nodes first.
        for leaf in (0..200).chain(0..200) {
            now(volume.read_object(ObjectId(12), size, wide(leaf))).unwrap();
        }
        change(vec![hole, write(object, 20_000, 7)]);
        now(engine.sync()).unwrap();
        assert_exact(&engine);
        assert_eq!(engine.pool().damaged_since(), None, "object {object}");
    }
}

#[test]
fn object_dataset_has_no_blocks() {
    let disk = Arc::new(MemoryDevice::new("disk", DISK_BYTES));
    let engine = pool_on(&disk, MEMORY_BYTES);
    now(engine.create_object_dataset("files", LAYER, &[])).unwrap();
    let again = now(engine.create_object_dataset("files", LAYER, &[]));
    assert!(matches!(again, Err(DatasetError::Exists { .. })));
    let volume = engine.volume("files").unwrap();
    assert!(now(volume.write(0, &[1; 4096])).is_err(), "it has no block addresses");
    now(volume.change_objects(vec![set_slot(5, 1), write(5, 0, 1)])).unwrap();
    now(engine.create_snapshots(&[id("s")])).unwrap();
    let view = engine.open_snapshot(&id("s")).unwrap();
    let refused = now(view.change_objects(vec![set_slot(6, 1)])).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
}

/// Calls wait for a commit once the changes take the memory for dirty data: changes of many
/// objects, and many holes in one object, which need little space on disk.
#[test]
fn changes_wait_while_they_fill_the_memory() {
    const MEMORY: u64 = 2 << 20;
    let disk = Arc::new(MemoryDevice::new("disk", 1 << 30));
    let engine = pool_on(&disk, MEMORY);
    now(engine.create_object_dataset("files", LAYER, &[])).unwrap();
    let volume = engine.volume("files").unwrap();
    let hole = |number: u64| {
        let records = number * 1_000..number * 1_000 + 1;
        ObjectChange::Zero { object: ObjectId(3), size: size_of(3), records }
    };
    let calls: [&dyn Fn(u64) -> ObjectChange; 2] = [&|number| set_slot(4 * number + 4, 1), &hole];
    for call in calls {
        let is_done = |number| volume.change_objects(vec![call(number)]).now_or_never().is_some();
        let waits = (0..2_000).find(|number| !is_done(*number));
        let waits = waits.expect("the memory is bounded");
        assert!(engine.dirty_bytes() <= MEMORY / 2, "{} bytes", engine.dirty_bytes());
        committing(&engine, volume.change_objects(vec![call(waits)])).unwrap();
        now(engine.sync()).unwrap();
        assert_eq!(engine.dirty_bytes(), 0);
    }
    assert_exact(&engine);
}
