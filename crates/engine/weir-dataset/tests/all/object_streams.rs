//! Model test of send and receive of a dataset with many objects: random histories in one pool, and
//! streams to another pool that are interrupted at any byte.
//!
//! `send` tests streams of volumes.
//!
//! Invariants: a received snapshot has the content of the model and the digest of the sent
//! snapshot.

use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{as_devices, assert_exact, committing, id, import, now, stream_of};
use weir_base::{ErrorKind, Guid, ObjectId, RecordSize, SystemClock};
use weir_block::Block;
use weir_codec::checksum::xxh3_128;
use weir_dataset::{
    BookmarkId, DatasetError, Engine, EngineOptions, ObjectChange, ReceiveSpec, Received, Receiver,
    SendFrom, SendSpec, Volume,
};
use weir_device::{DiskOp, MemoryDevice};
use weir_format::stream::{ResumeToken, StreamBegin, StreamObjects, StreamWriter};
use weir_format::{Codec, Compression, ObjectSlot, VdevKind, VdevRole};
use weir_pool::{CreateOptions, PlantedBug, VdevSpec};

const DISK_BYTES: usize = 96 << 20;
const MEMORY_BYTES: u64 = 16 << 20;
const LAYER: [u8; 40] = [7; 40];
/// Number of the last object.
const LAST: u64 = 700;

#[derive(Clone, Debug, Default, PartialEq)]
struct Object {
    tag: u8,
    shift: u8,
    /// Seed of each record's content, by the number of the record.
    records: BTreeMap<u64, u64>,
}

impl Object {
    fn size(&self) -> RecordSize {
        RecordSize::from_shift(self.shift).unwrap()
    }
}

type Model = BTreeMap<u64, Object>;

struct Pool {
    disk: Arc<MemoryDevice>,
    engine: Arc<Engine>,
    bug: PlantedBug,
}

fn options(bug: PlantedBug) -> EngineOptions {
    EngineOptions { memory_bytes: MEMORY_BYTES, clock: Arc::new(SystemClock::default()), bug }
}

impl Pool {
    fn new(name: &str, guids: u64, bug: PlantedBug) -> Self {
        let disk = Arc::new(MemoryDevice::new("disk", DISK_BYTES));
        let disks = as_devices(&[Arc::clone(&disk)]);
        let vdev = VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks };
        let mut guids = (guids..).map(Guid);
        let mut guid = || guids.next().unwrap();
        let sizes = CreateOptions::default();
        let engine = now(Engine::create(name, &[vdev], sizes, &options(bug), &mut guid)).unwrap();
        Self { disk, engine, bug }
    }

    /// Reopens the pool without a commit, as after a crash.
    fn reopen(&mut self) {
        let disks = as_devices(&[Arc::clone(&self.disk)]);
        self.engine = now(Engine::open(disks, import(), &options(self.bug))).unwrap();
    }

    fn make(&self, name: &str) -> Arc<Volume> {
        now(self.engine.create_object_dataset(name, LAYER, &[])).unwrap();
        self.engine.volume(name).unwrap()
    }

    fn snap(&self, volume: &str, name: &str) {
        committing(&self.engine, self.engine.create_snapshots(&[id(volume, name)])).unwrap();
    }

    fn apply(&self, volume: &str, changes: Vec<ObjectChange>) {
        let volume = self.engine.volume(volume).unwrap();
        committing(&self.engine, volume.change_objects(changes)).unwrap();
    }

    fn send(&self, spec: &SendSpec) -> Result<Vec<u8>, DatasetError> {
        stream_of(&self.engine, spec)
    }

    fn receive(&self, volume: &str, bytes: &[u8]) -> Result<Received, DatasetError> {
        self.receive_with(volume, bytes, false)
    }

    fn receive_with(
        &self,
        volume: &str,
        bytes: &[u8],
        roll_back: bool,
    ) -> Result<Received, DatasetError> {
        let spec = ReceiveSpec { volume: volume.to_owned(), roll_back, dry_run: false, mark: None };
        let dry = ReceiveSpec { dry_run: true, ..spec.clone() };
        let judged = self.receive_as(dry, bytes).map(|received| received.counts);
        let received = self.receive_as(spec, bytes);
        assert_eq!(judged.is_ok(), received.is_ok(), "{judged:?}");
        received
    }

    fn receive_as(&self, spec: ReceiveSpec, bytes: &[u8]) -> Result<Received, DatasetError> {
        let mut receiver = Receiver::new(Arc::clone(&self.engine), spec).with_objects();
        for part in bytes.chunks(100_000) {
            committing(&self.engine, receiver.push(part))?;
        }
        committing(&self.engine, receiver.finish())
    }

    fn digest(&self, volume: &str, name: &str) -> weir_dataset::Digests {
        now(self.engine.digest(&id(volume, name), 0, u64::MAX)).unwrap()
    }

    fn check(&self) {
        for _ in 0..8 {
            now(self.engine.sync()).unwrap();
        }
        assert_exact(&self.engine);
    }
}

fn spec(volume: &str, name: &str) -> SendSpec {
    SendSpec { snapshot: id(volume, name), from: None, resume: None }
}

fn since(volume: &str, from: &str, name: &str) -> SendSpec {
    SendSpec { from: Some(SendFrom::Snapshot(id(volume, from))), ..spec(volume, name) }
}

fn blocks_of(seed: u64, size: RecordSize) -> Vec<Block> {
    let block = |part: u64| {
        let words = if seed.is_multiple_of(3) { 40 } else { 512 };
        let word = |word: u64| if word < words { seed * 8 + part + (word << 40) } else { 0 };
        let words = (0..512).map(|at| word(at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        Block::copy_of(bytes.first_chunk().unwrap())
    };
    (0..size.blocks()).map(block).collect()
}

fn set_slot(number: u64, object: &Object) -> ObjectChange {
    let body = Box::new([object.tag; ObjectSlot::BODY_BYTES]);
    ObjectChange::SetSlot { object: ObjectId(number), size: object.size(), body }
}

fn write(number: u64, object: &Object, record: u64, seed: u64) -> ObjectChange {
    let size = object.size();
    let object = ObjectId(number);
    ObjectChange::Write { object, size, record, blocks: blocks_of(seed, size) }
}

/// Draws random changes of one object, applies them to the model and returns them.
fn change(numbers: &mut Rng, model: &mut Model) -> Vec<ObjectChange> {
    let mut changes = Vec::new();
    let number = 1 + numbers.u64(..LAST);
    if model.contains_key(&number) && numbers.u64(..4) == 0 {
        // Remove the object, and often reuse its number with another record size.
        model.remove(&number);
        changes.push(ObjectChange::Remove { object: ObjectId(number) });
        if numbers.u64(..2) == 0 {
            return changes;
        }
    }
    let is_new = !model.contains_key(&number);
    let object = model.entry(number).or_default();
    if is_new || numbers.u64(..3) == 0 {
        object.tag = 1 + numbers.u64(..250) as u8;
        if is_new {
            object.shift = numbers.u64(..4) as u8;
        }
        changes.push(set_slot(number, object));
    }
    match numbers.u64(..8) {
        0 => {
            let start = numbers.u64(..300);
            let records = start..start + numbers.u64(..200_000);
            object.records.retain(|record, _| !records.contains(record));
            let (size, object) = (object.size(), ObjectId(number));
            changes.push(ObjectChange::Zero { object, size, records });
        }
        1 => {
            let (record, seed) = (numbers.u64(..100_000), numbers.u64(..1 << 40));
            object.records.insert(record, seed);
            changes.push(write(number, object, record, seed));
        }
        2 => {}
        _ => {
            let first = numbers.u64(..200);
            for record in first..first + numbers.u64(..4) {
                let seed = numbers.u64(..1 << 40);
                object.records.insert(record, seed);
                changes.push(write(number, object, record, seed));
            }
        }
    }
    changes
}

fn same(read: Option<Vec<Block>>, wanted: Option<Vec<Block>>) -> bool {
    let bytes = |blocks: Vec<Block>| blocks.iter().flat_map(|block| block.to_vec()).collect();
    read.map::<Vec<u8>, _>(bytes) == wanted.map::<Vec<u8>, _>(bytes)
}

/// Compares all objects with the model. `before`: an earlier model. Its records are compared, too,
/// because a stream must have removed the records that the present model lacks.
fn compare(volume: &Volume, model: &Model, before: &Model) -> Result<(), String> {
    for number in 1..LAST + 10 {
        let object = ObjectId(number);
        let slot = now(volume.object_slot(object)).unwrap();
        let known = model.get(&number);
        let tag = slot.map(|(size, body)| (size, body[0], body[body.len() - 1]));
        if tag != known.map(|known| (known.size(), known.tag, known.tag)) {
            return Err(format!("slot {number}: {tag:?}"));
        }
        let Some(known) = known else { continue };
        let gone = before.get(&number).into_iter().flat_map(|object| object.records.keys());
        for record in known.records.keys().chain(gone).copied().chain(0..3) {
            let read = now(volume.read_object(object, known.size(), record));
            let read = read.map_err(|error| format!("record {record} of {number}: {error}"))?;
            let seed = known.records.get(&record);
            if !same(read, seed.map(|seed| blocks_of(*seed, known.size()))) {
                return Err(format!("record {record} of object {number}"));
            }
        }
    }
    Ok(())
}

/// Sends one stream, which is cut at random bytes and resumed.
fn transfer(
    numbers: &mut Rng,
    (source, back): (&Pool, &mut Pool),
    mut how: SendSpec,
    to: &str,
) -> Result<u64, String> {
    let (mut cuts, mut resumed) = (numbers.u64(..5), 0);
    loop {
        let mut bytes = source.send(&how).map_err(|error| error.to_string())?;
        let is_cut = cuts > 0;
        cuts = cuts.saturating_sub(1);
        if is_cut {
            bytes.truncate(numbers.u64(..bytes.len() as u64) as usize);
        }
        match back.receive(to, &bytes) {
            Ok(_) if !is_cut => return Ok(resumed),
            Err(DatasetError::CutOff { token, .. }) if is_cut => {
                resumed += u64::from(token.next_object.0 > 0);
                how = SendSpec { from: None, resume: Some(token), ..how };
            }
            // The stream was cut before the end of its begin frame.
            Err(DatasetError::Stream { error, .. }) if is_cut && error.is_cut() => {}
            other => return Err(format!("{other:?}")),
        }
        if numbers.u64(..2) == 0 {
            back.reopen();
            if back.engine.volume(to).is_ok_and(|volume| volume.receiving().is_some()) {
                let token = Some(now(back.engine.receive_token(to)).unwrap());
                how = SendSpec { from: None, resume: token, ..how };
            }
        }
    }
}

/// Sends a clone to a pool that has the origin of the clone.
fn send_clone(
    numbers: &mut Rng,
    (source, back): (&Pool, &mut Pool),
    origin: &str,
    model: &Model,
) -> Result<(), String> {
    now(source.engine.clone_snapshot(&id("v", origin), "clone")).unwrap();
    let mut changed = model.clone();
    for _ in 0..20 {
        source.apply("clone", change(numbers, &mut changed));
    }
    source.snap("clone", "c");
    let from = Some(SendFrom::Snapshot(id("v", origin)));
    let how = SendSpec { from, ..spec("clone", "c") };
    transfer(numbers, (source, back), how, "clone")?;
    compare(&back.engine.open_snapshot(&id("clone", "c")).unwrap(), &changed, model)?;
    if source.digest("clone", "c") != back.digest("clone", "c") {
        return Err("digest of the clone".to_owned());
    }
    compare(&back.engine.open_snapshot(&id("w", origin)).unwrap(), model, &changed)
}

/// Runs a random history. Returns the number of streams that resumed at an object.
fn run(seed: u64, bug: PlantedBug) -> Result<u64, String> {
    let mut numbers = Rng::with_seed(seed);
    let source = Pool::new("tank", 0, bug);
    let mut back = Pool::new("back", 1000, PlantedBug::None);
    source.make("v");
    let mut model = Model::new();
    let mut before: Vec<(String, Model)> = Vec::new();
    let mut resumed = 0;
    for round in 1..=6 {
        let changes = [10, 150, 400][numbers.u64(..3) as usize];
        let mut old = model.clone();
        for _ in 0..changes {
            source.apply("v", change(&mut numbers, &mut model));
        }
        if round > 1 && numbers.u64(..4) == 0 {
            let (name, known) = before.last().unwrap();
            committing(&source.engine, source.engine.rollback(&id("v", name), false)).unwrap();
            old = std::mem::replace(&mut model, known.clone());
            for _ in 0..30 {
                source.apply("v", change(&mut numbers, &mut model));
            }
        }
        let name = format!("s{round}");
        source.snap("v", &name);
        if round > 1 && numbers.u64(..3) == 0 {
            let copy = format!("copy{round}");
            let full = source.send(&spec("v", &name)).unwrap();
            back.receive(&copy, &full).map_err(|error| error.to_string())?;
            compare(&back.engine.open_snapshot(&id(&copy, &name)).unwrap(), &model, &old)?;
        }
        let from = before.last().map(|(name, _)| SendFrom::Snapshot(id("v", name)));
        let mut how = SendSpec { from, ..spec("v", &name) };
        if let (Some((name, _)), 0) = (before.last(), numbers.u64(..3)) {
            let mark = BookmarkId { volume: "v".to_owned(), name: format!("m{round}") };
            now(source.engine.create_bookmark(&id("v", name), &mark.name)).unwrap();
            how.from = Some(SendFrom::Bookmark(mark));
        }
        if round > 1 && numbers.u64(..4) == 0 {
            // A change in the destination is rolled back.
            let other = Object { tag: 1, shift: 0, records: BTreeMap::new() };
            back.apply("w", vec![set_slot(LAST, &other), write(LAST - 1, &other, 900, 1)]);
            let bytes = source.send(&how).unwrap();
            let error = back.receive("w", &bytes).unwrap_err();
            assert!(matches!(error, DatasetError::Changed { .. }), "{error}");
            let received = back.receive_with("w", &bytes, true);
            assert!(received.map_err(|error| error.to_string())?.rolled_back);
        } else {
            resumed += transfer(&mut numbers, (&source, &mut back), how, "w")?;
        }
        before.push((name, model.clone()));
        for (name, model) in &before {
            let view = back.engine.open_snapshot(&id("w", name)).unwrap();
            compare(&view, model, &old).map_err(|error| format!("{name}: {error}"))?;
            if source.digest("v", name) != back.digest("w", name) {
                return Err(format!("digest of {name}"));
            }
        }
        if let [.., (older, was), (newer, is)] = &before[..] {
            let same = source.digest("v", older) == source.digest("v", newer);
            assert_eq!(same, was == is, "digests of {older} and {newer}");
        }
        compare(&back.engine.volume("w").unwrap(), &model, &old)?;
    }
    let (name, known) = &before[numbers.u64(..before.len() as u64) as usize];
    send_clone(&mut numbers, (&source, &mut back), name, known)?;
    source.check();
    back.check();
    Ok(resumed)
}

#[test]
fn interrupted_object_streams_of_random_histories_arrive_unchanged() {
    let mut resumed = 0;
    for seed in 1..=12 {
        resumed += run(seed, PlantedBug::None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    assert!(resumed > 5, "{resumed} streams resumed at an object");
}

#[test]
fn planted_bugs_of_object_streams_are_noticed() {
    for bug in [PlantedBug::TrimsNotSent, PlantedBug::ResumeSkips] {
        assert!((1..=12).any(|seed| run(seed, bug).is_err()), "{bug:?}");
    }
}

/// An object with more leaves than one txg removes.
fn large() -> Object {
    let records = (0..2600).map(|at| (at * 128, at + 1)).collect();
    Object { tag: 9, shift: 0, records }
}

#[test]
fn large_objects_are_removed_and_truncated_in_steps() {
    let source = Pool::new("tank", 0, PlantedBug::None);
    let mut back = Pool::new("back", 1000, PlantedBug::None);
    source.make("v");
    let mut model = Model::new();
    for number in [5, 6, 7] {
        let object = large();
        source.apply("v", vec![set_slot(number, &object)]);
        for (record, seed) in &object.records {
            source.apply("v", vec![write(number, &object, *record, *seed)]);
        }
        model.insert(number, object);
    }
    source.snap("v", "a");
    back.receive("w", &source.send(&spec("v", "a")).unwrap()).unwrap();
    let before = model.clone();
    // Object 5 is removed, 6 is replaced, 7 loses all records but the first.
    model.remove(&5);
    let small = Object { tag: 1, shift: 2, records: [(3, 4)].into() };
    model.insert(6, small.clone());
    model.get_mut(&7).unwrap().records.retain(|record, _| *record == 0);
    let (object, size) = (ObjectId(7), RecordSize::BLOCK);
    source.apply(
        "v",
        vec![
            ObjectChange::Remove { object: ObjectId(5) },
            ObjectChange::Remove { object: ObjectId(6) },
            set_slot(6, &small),
            write(6, &small, 3, 4),
            ObjectChange::Zero { object, size, records: 1..1 << 30 },
        ],
    );
    source.snap("v", "b");
    let bytes = source.send(&since("v", "a", "b")).unwrap();
    let txg = back.engine.pool().committed_txg();
    // Drop the receiver after the object frame and reopen the pool, as if the server had crashed.
    let spec = ReceiveSpec { volume: "w".to_owned(), roll_back: false, dry_run: false, mark: None };
    let mut receiver = Receiver::new(Arc::clone(&back.engine), spec).with_objects();
    committing(&back.engine, receiver.push(&bytes[..bytes.len() - 60])).unwrap();
    let steps = back.engine.pool().committed_txg().0 - txg.0;
    assert!(steps >= 6, "each object takes several txgs: {steps}");
    drop(receiver);
    back.reopen();
    let token = now(back.engine.receive_token("w")).unwrap();
    assert!(token.next_object.0 >= 6, "{token:?}");
    let resume = SendSpec { snapshot: id("v", "b"), from: None, resume: Some(token) };
    back.receive("w", &source.send(&resume).unwrap()).unwrap();
    compare(&back.engine.open_snapshot(&id("w", "b")).unwrap(), &model, &before).unwrap();
    assert_eq!(source.digest("v", "b"), back.digest("w", "b"));
    compare(&back.engine.open_snapshot(&id("w", "a")).unwrap(), &before, &model).unwrap();
    back.check();
}

#[test]
fn neighbouring_blocks_of_the_object_table_are_read_together() {
    const OBJECTS: u64 = 4 * 64;
    let mut pool = Pool::new("tank", 1, PlantedBug::None);
    pool.make("v");
    let reads = |pool: &Pool| {
        let figures = pool.engine.pool().status().vdevs[0].legs[0].io.unwrap();
        figures.of(DiskOp::Read).count
    };
    for tag in [1, 2] {
        let slot = |number| set_slot(number, &Object { tag, ..Object::default() });
        pool.apply("v", (1..OBJECTS).map(slot).collect());
        pool.snap("v", &tag.to_string());
    }
    pool.reopen();
    let before = reads(&pool);
    pool.send(&spec("v", "2")).unwrap();
    let sent = reads(&pool) - before;
    assert!(sent < 16, "a send reads 64 blocks, stored side by side, in {sent} reads");
    pool.reopen();
    let before = reads(&pool);
    let names = ["1".to_owned()];
    committing(&pool.engine, pool.engine.destroy_snapshots("v", &names)).unwrap();
    for _ in 0..4 {
        now(pool.engine.sync()).unwrap();
    }
    let freed = reads(&pool) - before;
    assert!(freed < 32, "freeing reads 64 blocks, stored side by side, in {freed} reads");
    pool.check();
}

#[test]
fn refused_object_stream_leaves_no_partial_data() {
    let source = Pool::new("tank", 0, PlantedBug::None);
    let back = Pool::new("back", 1000, PlantedBug::None);
    source.make("v");
    let object = Object { tag: 3, shift: 0, records: [(0, 1), (200, 2)].into() };
    let changes = |number| vec![set_slot(number, &object), write(number, &object, 0, 1)];
    source.apply("v", changes(9));
    source.snap("v", "a");
    back.receive("w", &source.send(&spec("v", "a")).unwrap()).unwrap();
    source.apply("v", changes(50));
    source.snap("v", "b");
    let more = source.send(&since("v", "a", "b")).unwrap();
    // A client cannot change the dataset while a stream is interrupted.
    let error = back.receive("w", &more[..more.len() - 60]).unwrap_err();
    assert!(matches!(error, DatasetError::CutOff { .. }), "{error}");
    let volume = back.engine.volume("w").unwrap();
    assert_eq!(now(volume.change_objects(changes(3))).unwrap_err().kind(), ErrorKind::Busy);
    now(back.engine.abort_receive("w")).unwrap();
    let model = Model::from([(9, Object { records: [(0, 1)].into(), ..object.clone() })]);
    compare(&volume, &model, &Model::new()).unwrap();
    // A stream with a malformed record is undone.
    let body = [1; ObjectSlot::BODY_BYTES];
    let (mut writer, mut bytes) = StreamWriter::new(&forged_begin());
    writer.object(ObjectId(4), RecordSize::BLOCK, 1, &body);
    writer.record(0, Codec::Lz4, &[255; 64], xxh3_128(&[255; 64]));
    bytes.extend(writer.finish().0);
    let error = back.receive("new", &bytes).unwrap_err();
    assert!(error.to_string().contains("malformed record"), "{error}");
    assert!(back.engine.volume("new").is_err());
    // A stream that begins beyond the position of the receiver is refused.
    let ahead = ResumeToken { to: 0, from: None, next_object: ObjectId(60), next_record: 1 };
    let to = source.engine.prepare_send(&spec("v", "b")).unwrap().begin().to;
    let ahead = SendSpec { resume: Some(ResumeToken { to, ..ahead }), ..spec("v", "b") };
    let error = back.receive("other", &source.send(&ahead).unwrap()).unwrap_err();
    assert!(error.to_string().contains("record 1 of object 60"), "{error}");
    back.check();
}

#[test]
fn digest_covers_numbers_slots_sizes_and_contents() {
    let pool = Pool::new("tank", 0, PlantedBug::None);
    pool.make("v");
    let object = |tag, shift| Object { tag, shift, records: BTreeMap::new() };
    let (one, empty, large) = (object(1, 0), object(2, 0), object(2, 2));
    let remove = |number| ObjectChange::Remove { object: ObjectId(number) };
    let zeros = vec![Block::copy_of(&[0; 4096]); 4];
    let (number, size) = (ObjectId(7), large.size());
    let zero_record = ObjectChange::Write { object: number, size, record: 1, blocks: zeros };
    let steps = [
        vec![set_slot(5, &one), write(5, &one, 0, 4)],
        vec![set_slot(5, &object(9, 0))],
        vec![write(5, &one, 0, 5)],
        vec![write(5, &one, 200, 5)],
        vec![set_slot(6, &empty)],
        vec![remove(6), set_slot(6, &large)],
        vec![remove(6), set_slot(7, &large)],
        vec![],
        vec![zero_record],
        vec![write(5, &one, 0, 5)],
    ];
    let mut digests = Vec::new();
    for (step, changes) in steps.into_iter().enumerate() {
        pool.apply("v", changes);
        pool.snap("v", &format!("s{step}"));
        digests.push(pool.digest("v", &format!("s{step}")));
    }
    for pair in digests[..7].windows(2) {
        assert_ne!(pair[0], pair[1]);
    }
    let rest = &digests[6..];
    assert!(rest.iter().all(|same| *same == rest[0]), "equal contents have equal digests");
}

fn forged_begin() -> StreamBegin {
    StreamBegin {
        to: 77,
        from: None,
        is_clone: false,
        compression: Compression::Lz4,
        first_record: 0,
        size_bytes: 0,
        record_size: RecordSize::BLOCK,
        created_unix_ms: 1,
        volume: "v".to_owned(),
        snapshot: "x".to_owned(),
        objects: Some(StreamObjects { first: ObjectId(0), layer: LAYER }),
    }
}

/// A forged stream with objects of one record of this size.
fn forged(objects: &[u64], shift: u8) -> Vec<u8> {
    let (mut writer, mut bytes) = StreamWriter::new(&forged_begin());
    let size = RecordSize::from_shift(shift).unwrap();
    for object in objects {
        writer.object(ObjectId(*object), size, 128, &[1; ObjectSlot::BODY_BYTES]);
        let stored = vec![1; size.bytes()];
        writer.record(u64::from(shift), Codec::Raw, &stored, xxh3_128(&stored));
    }
    bytes.extend(writer.finish().0);
    bytes
}

#[test]
fn forged_streams_neither_panic_nor_mix() {
    let back = Pool::new("back", 1000, PlantedBug::None);
    // Two streams of the same snapshot guid with different record sizes. The second one begins
    // before the changes of the first one are committed.
    let spec = ReceiveSpec { volume: "w".to_owned(), roll_back: false, dry_run: false, mark: None };
    let first = forged(&[4, 9], 1);
    let mut receiver = Receiver::new(Arc::clone(&back.engine), spec).with_objects();
    committing(&back.engine, receiver.push(&first[..first.len() - 64])).unwrap();
    drop(receiver);
    back.receive("w", &forged(&[4, 9], 3)).unwrap();
    let view = back.engine.open_snapshot(&id("w", "x")).unwrap();
    for object in [4, 9].map(ObjectId) {
        let size = RecordSize::from_shift(3).unwrap();
        assert_eq!(now(view.object_slot(object)).unwrap().map(|slot| slot.0), Some(size));
        assert!(now(view.read_object(object, size, 1)).unwrap().is_none());
        assert!(now(view.read_object(object, size, 3)).unwrap().is_some());
    }
    // The last object that a table can have, at its last records.
    let last = [1, (1 << 44) - 1];
    back.receive("far", &forged(&last, 0)).unwrap();
    let far = back.engine.volume("far").unwrap();
    assert!(now(far.object_slot(ObjectId(last[1]))).unwrap().is_some());
    // The largest records: the receiver accepts them, or refuses them if they exceed the limit of
    // the pool's segment size.
    let error = back.receive("large", &forged(&[4], 8)).map(drop);
    assert!(error.is_ok() || error.is_err_and(|error| error.kind() == ErrorKind::Invalid));
    back.check();
}

#[test]
fn streams_of_volumes_and_objects_do_not_mix() {
    let source = Pool::new("tank", 0, PlantedBug::None);
    let back = Pool::new("back", 1000, PlantedBug::None);
    source.make("v");
    source.snap("v", "a");
    source.snap("v", "b");
    back.receive("w", &source.send(&spec("v", "a")).unwrap()).unwrap();
    let more = source.send(&since("v", "a", "b")).unwrap();
    // A pool without the feature flag of objects receives volumes only.
    let spec = ReceiveSpec { volume: "w".to_owned(), roll_back: false, dry_run: false, mark: None };
    let mut receiver = Receiver::new(Arc::clone(&back.engine), spec);
    let error = now(receiver.push(&more)).unwrap_err();
    assert!(error.to_string().contains("receives volumes only"), "{error}");
    drop(receiver);
    // An increment is refused if the layer bytes of the stream and of the dataset differ.
    let view = source.engine.prepare_send(&since("v", "a", "b")).unwrap();
    let mut begin = view.begin().clone();
    begin.objects = Some(StreamObjects { first: ObjectId(0), layer: [8; 40] });
    let (writer, mut forged) = StreamWriter::new(&begin);
    forged.extend(writer.finish().0);
    let error = back.receive("w", &forged).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    begin.objects = None;
    begin.size_bytes = 4096;
    let (writer, mut forged) = StreamWriter::new(&begin);
    forged.extend(writer.finish().0);
    let error = back.receive("w", &forged).unwrap_err();
    assert!(error.to_string().contains("the stream is of a volume"), "{error}");
    back.receive("w", &more).unwrap();
    back.check();
}
