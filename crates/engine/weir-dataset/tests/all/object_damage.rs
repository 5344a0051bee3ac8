//! Tests of the list of permanent errors for datasets with many objects: records, slots and nodes
//! without a good copy. Also tests the lists of objects and records that a rescue can read.
//!
//! `damage` tests the list of permanent errors for volumes.

use std::slice::from_ref;
use std::sync::Arc;

use weir_base::property::{DEDUPE, QUOTA};
use weir_base::{BLOCK_BYTES, ErrorKind, ObjectId, RecordSize};
use weir_block::Block;
use weir_dataset::{
    DamagedData, DamagedWhere, DatasetError, Engine, FoundRanges, ObjectChange, PropertyChange,
    PropertyTarget, RecordCopy, SendSpec, SnapshotId, SyncOf, Volume,
};
use weir_device::MemoryDevice;
use weir_format::{ObjectSlot, VdevKind};

use crate::common::{
    as_devices, committing, copy_records, find_shared_damage, import, now, options, pool_of,
    run_scans,
};

const MEMORY_BYTES: u64 = 16 << 20;
const DISK_BYTES: usize = 64 << 20;
/// Objects of the dataset; each has records 0 to 3.
const OBJECTS: u64 = 40;
/// An object with several leaves.
const LARGE: u64 = 20;
/// Records of the large object.
const LARGE_RECORDS: u64 = 300;
const SIZE: RecordSize = RecordSize::BLOCK;

struct Pool {
    disks: Vec<Arc<MemoryDevice>>,
    engine: Arc<Engine>,
}

fn content(object: u64, record: u64, round: u64) -> Vec<Block> {
    let mut state = (object * 1_000_003 + record + (round << 40)) | 1 << 60;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state ^ (state >> 29)).to_le_bytes()
    });
    let bytes: Vec<u8> = words.take(BLOCK_BYTES / 8).flatten().collect();
    vec![Block::copy_of(bytes.first_chunk().unwrap())]
}

fn write(object: u64, record: u64, round: u64) -> ObjectChange {
    let blocks = content(object, record, round);
    ObjectChange::Write { object: ObjectId(object), size: SIZE, record, blocks }
}

fn set_slot(object: u64) -> ObjectChange {
    let body = Box::new([object as u8; ObjectSlot::BODY_BYTES]);
    ObjectChange::SetSlot { object: ObjectId(object), size: SIZE, body }
}

fn id(name: &str) -> SnapshotId {
    SnapshotId::new("files", name)
}

impl Pool {
    fn new(disks: usize, dedupe: bool) -> Self {
        let disks: Vec<_> = (0..disks)
            .map(|n| Arc::new(MemoryDevice::new(format!("disk{n}"), DISK_BYTES)))
            .collect();
        let kind = if disks.len() == 1 { VdevKind::Disk } else { VdevKind::Mirror };
        let engine = pool_of(kind, as_devices(&disks), &options(MEMORY_BYTES));
        let changes = [PropertyChange::set(DEDUPE, dedupe)];
        now(engine.create_object_dataset("files", [1; 40], &changes)).unwrap();
        let pool = Self { disks, engine };
        for object in 1..=OBJECTS {
            let records = if object == LARGE { LARGE_RECORDS } else { 4 };
            let mut changes = vec![set_slot(object)];
            changes.extend((0..records).map(|record| write(object, record, 1)));
            pool.change(changes).unwrap();
        }
        now(pool.engine.sync()).unwrap();
        pool
    }

    fn files(&self) -> Arc<Volume> {
        self.engine.volume("files").unwrap()
    }

    fn change(&self, changes: Vec<ObjectChange>) -> Result<(), DatasetError> {
        committing(&self.engine, self.files().change_objects(changes))
    }

    /// Reopens the pool, so that its caches are empty.
    fn reopen(&mut self) {
        now(self.engine.sync()).unwrap();
        let disks = as_devices(&self.disks);
        self.engine = now(Engine::open(disks, import(), &options(MEMORY_BYTES))).unwrap();
    }

    /// Inverts bytes of a record (`level` 0) or node of an object on every disk, and empties the
    /// caches. A second call with the result restores the bytes.
    fn flip(&mut self, object: u64, level: u8, index: u64) -> usize {
        let place = now(self.files().object_address(ObjectId(object), level, index));
        self.flip_at(place.unwrap().unwrap().offset as usize)
    }

    /// As [`Self::flip`], for a block (`level` 0) or node of the object table.
    fn flip_table(&mut self, level: u8, index: u64) -> usize {
        let place = now(self.files().disk_address(level, index)).unwrap().unwrap();
        self.flip_at(place.offset as usize)
    }

    fn flip_at(&mut self, at: usize) -> usize {
        self.disks.iter().for_each(|disk| disk.corrupt(at..at + 32, |byte| *byte = !*byte));
        self.reopen();
        at
    }

    fn listed(&self) -> Vec<String> {
        let text = |data: DamagedData| {
            let DamagedData { volume, part, in_volume, snapshots, .. } = data;
            let part = match part {
                DamagedWhere::Bytes => "bytes".to_owned(),
                DamagedWhere::Slots { first, count } => format!("slots {first}+{count}"),
                DamagedWhere::Records { object, first, count } => {
                    format!("object {object} {first}+{count}")
                }
            };
            let own = if in_volume { "itself" } else { "" };
            format!("{volume} {part} {own}@{}", snapshots.join("@"))
        };
        self.engine.damage().data.into_iter().map(text).collect()
    }

    fn reads(volume: &Volume, object: u64, record: u64) -> bool {
        match now(volume.read_object(ObjectId(object), SIZE, record)) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Data, "{error}");
                false
            }
        }
    }

    /// Runs a complete scrub and reopens the pool.
    fn scrub(&mut self) {
        self.engine.scrub_start().unwrap();
        run_scans(&self.engine);
        self.reopen();
    }

    /// Lets the engine find the versions that share the listed data.
    fn settle(&mut self) {
        find_shared_damage(&self.engine);
        self.reopen();
    }
}

#[test]
fn lost_record_of_an_object_is_listed_over_restarts_until_it_is_overwritten() {
    for disks in [1, 2] {
        let mut pool = Pool::new(disks, false);
        pool.flip(12, 0, 3);
        pool.flip(12, 0, 2);
        pool.flip(13, 0, 0);
        assert!(pool.listed().is_empty(), "nothing met it yet");
        let files = pool.files();
        for (object, record) in [(12, 3), (12, 2), (13, 0)] {
            assert!(!Pool::reads(&files, object, record));
        }
        assert!(Pool::reads(&files, 12, 1) && Pool::reads(&files, 14, 0));
        let all = ["files object 12 2+2 itself@", "files object 13 0+1 itself@"];
        assert_eq!(pool.listed(), all);
        pool.reopen();
        assert_eq!(pool.listed(), all, "after a restart");
        pool.change(vec![write(12, 2, 2)]).unwrap();
        now(pool.engine.sync()).unwrap();
        assert_eq!(pool.listed(), ["files object 12 3+1 itself@", all[1]]);
        pool.change(vec![ObjectChange::Remove { object: ObjectId(13) }]).unwrap();
        let (object, size) = (ObjectId(12), SIZE);
        pool.change(vec![ObjectChange::Zero { object, size, records: 0..1000 }]).unwrap();
        now(pool.engine.sync()).unwrap();
        assert!(pool.listed().is_empty(), "{:?}", pool.listed());
        pool.reopen();
        assert!(pool.listed().is_empty(), "after a restart");
        assert!(!pool.engine.pool().had_damage());
    }
}

#[test]
fn snapshots_and_clones_that_share_a_lost_record_are_listed() {
    let mut pool = Pool::new(2, false);
    now(pool.engine.create_snapshots(&[id("monday")])).unwrap();
    now(pool.engine.clone_snapshot(&id("monday"), "clone")).unwrap();
    pool.flip(12, 0, 3);
    pool.flip(30, 0, 0);
    let monday = pool.engine.open_snapshot(&id("monday")).unwrap();
    assert!(!Pool::reads(&monday, 12, 3));
    drop(monday);
    pool.change(vec![write(30, 0, 2)]).unwrap();
    pool.settle();
    let shared = ["clone object 12 3+1 itself@", "files object 12 3+1 itself@monday"];
    assert_eq!(pool.listed(), shared);
    pool.change(vec![write(12, 3, 2)]).unwrap();
    now(pool.engine.sync()).unwrap();
    assert_eq!(pool.listed(), [shared[0], "files object 12 3+1 @monday"]);
    // A stream of the snapshot cannot read the damaged record that the head has overwritten.
    let spec = SendSpec { snapshot: id("monday"), from: None, resume: None };
    let sending = pool.engine.prepare_send(&spec).unwrap();
    let sent = now(pool.engine.send(&sending, async |_| Ok(())));
    assert_eq!(sent.unwrap_err().kind(), ErrorKind::Data);
    drop(sending);
    assert_eq!(now(pool.engine.digest(&id("monday"), 0, 9)).unwrap_err().kind(), ErrorKind::Data);
    now(pool.engine.rollback(&id("monday"), true)).unwrap();
    pool.settle();
    assert!(pool.listed().contains(&shared[1].to_owned()), "{:?}", pool.listed());
    now(pool.engine.destroy_volume("clone", true)).unwrap();
    now(pool.engine.destroy_volume("files", true)).unwrap();
    assert!(pool.listed().is_empty());
}

#[test]
fn scrub_lists_lost_records_and_slots_and_removes_restored_ones() {
    for disks in [1, 2] {
        let mut pool = Pool::new(disks, false);
        now(pool.engine.create_snapshots(&[id("monday")])).unwrap();
        let record = pool.flip(12, 0, 3);
        // Damage a record, a leaf, and the slots of objects 16 to 19.
        let leaf = pool.flip(LARGE, 1, 1);
        let slots = pool.flip_table(0, 4);
        pool.scrub();
        let all = [
            "files slots 16+4 itself@monday",
            "files object 12 3+1 itself@monday",
            "files object 20 128+128 itself@monday",
        ];
        assert_eq!(pool.listed(), all, "no client met it");
        pool.scrub();
        assert_eq!(pool.listed(), all, "it is there still");
        assert!(!Pool::reads(&pool.files(), 16, 0));
        assert!(now(pool.files().object_slot(ObjectId(17))).is_err());
        assert_eq!(pool.change(vec![write(18, 0, 2)]).unwrap_err().kind(), ErrorKind::Data);
        // Restore the blocks, as if a disk with good copies had reconnected.
        pool.flip_at(slots);
        assert!(Pool::reads(&pool.files(), 16, 0));
        pool.scrub();
        assert_eq!(pool.listed(), all[1..]);
        pool.flip_at(record);
        pool.flip_at(leaf);
        pool.scrub();
        assert!(pool.listed().is_empty(), "{:?}", pool.listed());
        assert_eq!(now(pool.engine.check_live_bytes()).unwrap(), Vec::new());
    }
}

#[test]
fn clients_that_meet_lost_slots_and_nodes_list_them() {
    let mut pool = Pool::new(2, false);
    pool.flip(LARGE, 1, 1);
    pool.flip_table(0, 3);
    let files = pool.files();
    assert!(!Pool::reads(&files, LARGE, 130) && !Pool::reads(&files, 13, 0));
    let all = ["files slots 12+4 itself@", "files object 20 128+128 itself@"];
    assert_eq!(pool.listed(), all);
    // The removal of an object removes its damage from the list.
    pool.change(vec![ObjectChange::Remove { object: ObjectId(LARGE) }]).unwrap();
    now(pool.engine.sync()).unwrap();
    assert_eq!(pool.listed(), all[..1]);
    assert!(now(pool.engine.verify(|_| ())).unwrap().damaged > 0, "a check counts it");
    // Only a rollback can replace an unreadable block of the object table. The rest of the dataset
    // stays usable.
    pool.change(vec![write(30, 1, 2)]).unwrap();
    pool.reopen();
    assert_eq!(pool.listed(), all[..1]);
}

#[test]
fn stream_of_a_damaged_snapshot_fails_and_lists_the_damage() {
    let mut pool = Pool::new(1, false);
    now(pool.engine.create_snapshots(&[id("monday")])).unwrap();
    let fails = |pool: &Pool| {
        let spec = SendSpec { snapshot: id("monday"), from: None, resume: None };
        let sending = pool.engine.prepare_send(&spec).unwrap();
        let error = now(pool.engine.send(&sending, async |_| Ok(()))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data, "{error}");
        error.to_string()
    };
    let leaf = pool.flip(LARGE, 1, 1);
    assert!(fails(&pool).contains("object 20"));
    let node = "files object 20 128+128 itself@monday";
    pool.settle();
    assert_eq!(pool.listed(), [node]);
    pool.flip_at(leaf);
    let slots = pool.flip_table(0, 3);
    fails(&pool);
    pool.settle();
    assert_eq!(pool.listed(), ["files slots 12+4 itself@monday", node]);
    pool.flip_at(slots);
    pool.flip_table(1, 0);
    assert!(fails(&pool).contains("object table"));
    pool.settle();
    assert_eq!(pool.listed(), ["files slots 1+511 itself@monday", node]);
    // Regression: the search for damage skipped the listed slots, and then visited each leaf up to
    // the largest number of an object.
    assert!(fails(&pool).contains("object table"));
}

#[test]
fn all_references_to_a_lost_shared_record_are_listed() {
    let mut pool = Pool::new(2, true);
    let blocks = content(1, 0, 1);
    let copy = |object: u64, record| {
        let (object, size, blocks) = (ObjectId(object), SIZE, blocks.clone());
        ObjectChange::Write { object, size, record, blocks }
    };
    pool.change(vec![copy(9, 3), copy(33, 0)]).unwrap();
    now(pool.engine.sync()).unwrap();
    pool.flip(1, 0, 0);
    pool.scrub();
    let all =
        ["files object 1 0+1 itself@", "files object 9 3+1 itself@", "files object 33 0+1 itself@"];
    assert_eq!(pool.listed(), all);
    pool.change(vec![write(9, 3, 5)]).unwrap();
    now(pool.engine.sync()).unwrap();
    assert_eq!(pool.listed(), [all[0], all[2]]);
}

/// Collects a list in all its parts.
fn all_parts(mut part: impl FnMut(u64) -> FoundRanges) -> FoundRanges {
    let (mut all, mut next) = (FoundRanges::default(), Some(0));
    while let Some(from) = next {
        let found = part(from);
        all.used.extend(found.used);
        all.unreadable.extend(found.unreadable);
        next = found.next;
    }
    all
}

#[test]
fn rescue_lists_the_readable_objects_of_a_damaged_dataset() {
    let mut pool = Pool::new(1, false);
    // Objects in two leaves of the object table.
    pool.change(vec![set_slot(2000), write(2000, 0, 1), set_slot(2100)]).unwrap();
    now(pool.engine.sync()).unwrap();
    pool.flip(LARGE, 1, 1);
    pool.flip_table(0, 3);
    let files = pool.files();
    let objects = all_parts(|first| now(files.objects_in_use(first)).unwrap());
    assert_eq!(objects.unreadable, from_ref(&(12..16)));
    assert_eq!(objects.used, [1..12, 16..41, 2000..2001, 2100..2101]);
    let large = ObjectId(LARGE);
    for most in [7, 1000] {
        let records = all_parts(|first| now(files.object_records(large, first, most)).unwrap());
        assert_eq!(records.unreadable, from_ref(&(128..256)));
        let used: Vec<u64> = records.used.into_iter().flatten().collect();
        assert!(used.into_iter().eq((0..128).chain(256..LARGE_RECORDS)));
    }
    let lost = now(files.object_records(ObjectId(13), 0, 9)).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Data);
    pool.flip_table(1, 0);
    let files = pool.files();
    let objects = all_parts(|first| now(files.objects_in_use(first)).unwrap());
    assert_eq!(objects.unreadable, from_ref(&(1..512)));
    assert_eq!(objects.used, [2000..2001, 2100..2101]);
    assert!(!Pool::reads(&files, 1, 0));
    assert_eq!(pool.listed()[0], "files slots 1+511 itself@");
}

fn copy_of(source: u64, object: u64, count: u64) -> RecordCopy {
    let (source, object) = (ObjectId(source), ObjectId(object));
    RecordCopy { source, records: 0..count, object, to: 0, size: SIZE }
}

#[test]
fn copy_from_a_damaged_leaf_fails_and_changes_nothing() {
    let mut pool = Pool::new(2, false);
    let at = pool.flip(LARGE, 1, 1);
    let changes = [ObjectChange::Zero { object: ObjectId(12), size: SIZE, records: 0..300 }];
    let copy = |pool: &Pool, count| {
        let copy = copy_of(LARGE, 12, count);
        committing(&pool.engine, copy_records(&pool.files(), &copy, &changes))
    };
    assert_eq!(copy(&pool, 200).unwrap_err().kind(), ErrorKind::Data);
    let files = pool.files();
    let bytes = |blocks: Option<Vec<Block>>| blocks.map(|blocks| blocks[0].to_vec());
    let read =
        |files: &Volume, record| bytes(now(files.read_object(ObjectId(12), SIZE, record)).unwrap());
    assert_eq!(read(&files, 3), bytes(Some(content(12, 3, 1))), "the target is unchanged");
    drop(files);
    // The first leaf is intact, and so is the second after its repair.
    copy(&pool, 100).unwrap();
    now(pool.engine.sync()).unwrap();
    assert_eq!(read(&pool.files(), 3), bytes(Some(content(LARGE, 3, 1))));
    pool.flip_at(at);
    copy(&pool, 200).unwrap();
    pool.reopen();
    assert_eq!(read(&pool.files(), 199), bytes(Some(content(LARGE, 199, 1))));
}

#[test]
fn copy_is_committed_by_the_next_sync_and_lost_without_one() {
    let mut pool = Pool::new(1, false);
    let read = |pool: &Pool| {
        let read = now(pool.files().read_object(ObjectId(12), SIZE, 0)).unwrap();
        read.map(|blocks| blocks[0].to_vec())
    };
    let old = Some(content(12, 0, 1)[0].to_vec());
    let new = Some(content(LARGE, 0, 1)[0].to_vec());
    for syncs in [false, true] {
        committing(&pool.engine, copy_records(&pool.files(), &copy_of(LARGE, 12, 4), &[])).unwrap();
        assert_eq!(read(&pool), new, "before the commit");
        // A change of the source after the copy does not change the copy.
        pool.change(vec![write(LARGE, 0, 9)]).unwrap();
        assert_eq!(read(&pool), new);
        if syncs {
            let files = pool.files();
            let sync = pool.engine.sync_objects(&files, SyncOf::Object(ObjectId(12)));
            committing(&pool.engine, sync).unwrap();
        }
        let disks = as_devices(&pool.disks);
        pool.engine = now(Engine::open(disks, import(), &options(MEMORY_BYTES))).unwrap();
        assert_eq!(read(&pool), if syncs { new.clone() } else { old.clone() });
    }
}

#[test]
fn copies_count_towards_the_quota_and_take_no_space() {
    let pool = Pool::new(1, false);
    let used = || pool.engine.pool().space().live_bytes;
    let target = PropertyTarget::Volume("files".to_owned());
    let quota = PropertyChange::set(QUOTA, 4 << 20);
    committing(&pool.engine, pool.engine.change_properties(&[target], &[quota])).unwrap();
    let before = used();
    let copies = (21..=OBJECTS).take_while(|object| {
        let copy = copy_of(LARGE, *object, LARGE_RECORDS);
        match committing(&pool.engine, copy_records(&pool.files(), &copy, &[])) {
            Ok(()) => true,
            Err(error) => {
                assert!(matches!(error, DatasetError::Quota { .. }), "{error}");
                false
            }
        }
    });
    // The objects have 1.8 MiB, and each copy has 1.2 MiB.
    assert_eq!(copies.count(), 1);
    now(pool.engine.sync()).unwrap();
    assert!(used() < before + (1 << 20), "{} bytes after {before}", used());
    crate::common::assert_exact(&pool.engine);
}
