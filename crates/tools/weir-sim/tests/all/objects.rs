//! Datasets with many objects under power cuts.
//!
//! The model test without faults is in weir-dataset.
//!
//! Invariants:
//! - after a cut the dataset has a prefix of the calls, with all calls before the last sync;
//! - each snapshot has the content at the call that created it;
//! - the counters match the trees after the recovery.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use weir_base::{Guid, ObjectId, RecordSize};
use weir_block::Block;
use weir_dataset::{Engine, ObjectChange, SnapshotId, Volume};
use weir_format::files::{Layout, NameCase};
use weir_format::layout::{CONFIG_BYTES, label_offsets};
use weir_format::{Features, Label, ObjectSlot, VdevKind, VdevRole};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, VdevSpec};
use weir_sim::{CutPlan, DiskOptions, MediaImage, Rng, SimWorld};

use crate::timed::options;

const DISK_BYTES: u64 = 64 << 20;
const OBJECTS: u64 = 40;
/// Numbers of the records that the load uses: some in the first leaf of an object's tree, one in
/// another leaf, and one so large that the tree gets a further level.
const RECORDS: [u64; 6] = [0, 1, 2, 5, 1000, 70_000];

/// For each object: the tag in its slot, and the seed of each record's content.
type Model = BTreeMap<u64, (u8, BTreeMap<u64, u64>)>;

fn size_of(object: u64) -> RecordSize {
    RecordSize::from_shift((object % 3) as u8).unwrap()
}

fn blocks_of(seed: u64, size: RecordSize) -> Vec<Block> {
    let block = |part: u64| {
        let word = |word: u64| if word == 0 { seed } else { (seed + part).wrapping_mul(word | 1) };
        let bytes: Vec<u8> = (0..512).flat_map(|at| word(at).to_le_bytes()).collect();
        Block::copy_of(bytes.first_chunk().unwrap())
    };
    (0..size.blocks()).map(block).collect()
}

/// Draws random changes of some objects, applies them to the model and returns them.
fn batch(rng: &mut Rng, model: &mut Model) -> Vec<ObjectChange> {
    let mut changes = Vec::new();
    for _ in 0..=rng.below(4) {
        let number = 1 + rng.below(OBJECTS);
        let (object, size) = (ObjectId(number), size_of(number));
        if model.contains_key(&number) && rng.below(6) == 0 {
            model.remove(&number);
            changes.push(ObjectChange::Remove { object });
            continue;
        }
        let (tag, records) = model.entry(number).or_default();
        *tag = 1 + rng.below(200) as u8;
        let body = Box::new([*tag; ObjectSlot::BODY_BYTES]);
        changes.push(ObjectChange::SetSlot { object, size, body });
        let record = RECORDS[rng.index(RECORDS.len())];
        if rng.below(4) == 0 {
            let holes = record..record + 1000;
            records.retain(|record, _| !holes.contains(record));
            changes.push(ObjectChange::Zero { object, size, records: holes });
        } else {
            let seed = 1 + rng.below(1 << 40);
            records.insert(record, seed);
            let blocks = blocks_of(seed, size);
            changes.push(ObjectChange::Write { object, size, record, blocks });
        }
    }
    changes
}

async fn content(volume: &Volume) -> Model {
    let mut model = Model::new();
    for number in 1..=OBJECTS {
        let (object, size) = (ObjectId(number), size_of(number));
        let mut found = BTreeMap::new();
        for record in RECORDS {
            let Some(blocks) = volume.read_object(object, size, record).await.unwrap() else {
                continue;
            };
            let seed = u64::from_le_bytes(*blocks[0].first_chunk().unwrap());
            let wanted = blocks_of(seed, size);
            assert!(blocks.iter().zip(&wanted).all(|(block, wanted)| block[..] == wanted[..]));
            found.insert(record, seed);
        }
        match volume.object_slot(object).await.unwrap() {
            Some((of, body)) => {
                assert!(of == size && body.iter().all(|byte| *byte == body[0]));
                model.insert(number, (body[0], found));
            }
            None => assert!(found.is_empty(), "records of an unused slot {number}"),
        }
    }
    model
}

/// State of the load at a cut.
#[derive(Clone)]
struct Expected {
    /// Number of calls up to the last sync, which are durable, and number of all calls.
    calls: [usize; 2],
    /// Snapshots that must exist, each with the number of calls before it was taken.
    snapshots: BTreeMap<String, usize>,
}

fn id(name: &str) -> SnapshotId {
    SnapshotId::new("files", name)
}

/// Runs the load and cuts the power at some steps. Returns the models after each call, and the
/// disks after each cut.
fn cut_load(seed: u64) -> (Vec<Model>, Vec<(Expected, Vec<MediaImage>)>) {
    let disk = |name: &str| MediaImage::blank(DiskOptions::new(name, DISK_BYTES));
    let world = SimWorld::from_media(seed, vec![disk("disk0"), disk("disk1")]);
    let state = Rc::new(RefCell::new(Expected { calls: [0, 0], snapshots: BTreeMap::new() }));
    let cuts = Rc::new(RefCell::new(Vec::new()));
    let models = world.run_until(async {
        let vdev =
            VdevSpec { kind: VdevKind::Mirror, role: VdevRole::Data, disks: world.devices() };
        let sizes = CreateOptions { segment_bytes: Some(1 << 20), ..CreateOptions::default() };
        let mut guids = (1..).map(Guid);
        let mut guid = || guids.next().unwrap();
        let how = options(&world, PlantedBug::None);
        let engine = Engine::create("tank", &[vdev], sizes, &how, &mut guid).await.unwrap();
        engine.create_object_dataset("files", [3; 40], &[]).await.unwrap();
        let (at_cut, found) = (Rc::clone(&state), Rc::clone(&cuts));
        world.on_step(move |cut| {
            let mut rng = Rng::new(seed).stream("cut", cut.steps);
            if rng.below(12) == 0 {
                let plan = match rng.below(3) {
                    0 => CutPlan::Nothing,
                    1 => CutPlan::Everything,
                    _ => CutPlan::Random(cut.steps),
                };
                found.borrow_mut().push((at_cut.borrow().clone(), cut.cut(plan)));
            }
        });
        run_load(seed, &engine, &state).await
    });
    world.crash();
    (models.unwrap(), cuts.take())
}

async fn run_load(seed: u64, engine: &Engine, state: &RefCell<Expected>) -> Vec<Model> {
    let mut rng = Rng::new(seed).stream("load", 0);
    let files = engine.volume("files").unwrap();
    let mut models = vec![Model::new()];
    for step in 0..90 {
        let mut model = models[models.len() - 1].clone();
        let changes = batch(&mut rng, &mut model);
        models.push(model);
        state.borrow_mut().calls[1] += 1;
        files.change_objects(changes).await.unwrap();
        let calls = models.len() - 1;
        match rng.below(9) {
            0..3 => engine.sync().await.unwrap(),
            3 => {
                let name = format!("s{step}");
                engine.create_snapshots(&[id(&name)]).await.unwrap();
                state.borrow_mut().snapshots.insert(name, calls);
            }
            4 => {
                let name = state.borrow_mut().snapshots.pop_first();
                let Some((name, _)) = name else { continue };
                engine.destroy_snapshots("files", &[name]).await.unwrap();
            }
            _ => continue,
        }
        state.borrow_mut().calls[0] = calls;
    }
    models
}

/// Opens the pool after a cut and checks its content. Returns whether the cut lost any call.
fn check_cut(models: &[Model], expected: &Expected, images: Vec<MediaImage>) -> bool {
    let world = SimWorld::from_media(1, images);
    let Expected { calls: [durable, all], snapshots } = expected;
    let lost = Cell::new(false);
    let checked = world.run_until(async {
        let how = options(&world, PlantedBug::None);
        let engine = Engine::open(world.devices(), ImportOptions::new(Guid(99)), &how).await;
        let engine = engine.unwrap();
        let files = engine.volume("files").unwrap();
        let found = content(&files).await;
        let is_prefix = models[*durable..=*all].contains(&found);
        assert!(is_prefix, "no prefix of {durable} to {all} calls");
        lost.set(found != models[*all]);
        for (name, calls) in snapshots {
            let view = engine.open_snapshot(&id(name)).unwrap();
            assert!(content(&view).await == models[*calls], "snapshot {name}");
        }
        let mut model = found;
        let changes = batch(&mut Rng::new(7), &mut model);
        files.change_objects(changes).await.unwrap();
        engine.sync().await.unwrap();
        assert!(content(&files).await == model, "the dataset takes changes after the recovery");
        assert_eq!(engine.check_live_bytes().await.unwrap(), []);
        assert_eq!(engine.check_accounts().await.unwrap(), []);
    });
    checked.unwrap();
    world.crash();
    lost.get()
}

/// Number of label copies of a disk that lack the flag of objects or of case-insensitive
/// filesystems. A Weir without the feature accepts such a label.
fn unflagged_copies(image: &MediaImage) -> usize {
    let starts = label_offsets(DISK_BYTES);
    let copies = starts.into_iter().flat_map(|start| [start, start + CONFIG_BYTES as u64]);
    let labels = copies.filter_map(|at| {
        let mut config = vec![0; CONFIG_BYTES];
        image.read(at, &mut config);
        Label::decode(&config).ok()
    });
    let has_both = |features: &Features| features.has_objects() && features.has_folded_names();
    labels.filter(|label| !has_both(&label.features)).count()
}

/// Cuts the power at each step of the creation of a case-insensitive filesystem. Returns the number
/// of cuts, and the number of cuts that leave a label copy without a flag although the pool has the
/// dataset.
fn cut_creation(bug: PlantedBug) -> (usize, usize) {
    let disk = |name: &str| MediaImage::blank(DiskOptions::new(name, DISK_BYTES));
    let world = SimWorld::from_media(1, vec![disk("disk0"), disk("disk1")]);
    let cuts = Rc::new(RefCell::new(Vec::new()));
    let made = world.run_until(async {
        let vdev =
            VdevSpec { kind: VdevKind::Mirror, role: VdevRole::Data, disks: world.devices() };
        let mut guids = (1..).map(Guid);
        let mut guid = || guids.next().unwrap();
        let (sizes, how) = (CreateOptions::default(), options(&world, bug));
        let engine = Engine::create("tank", &[vdev], sizes, &how, &mut guid).await.unwrap();
        let found = Rc::clone(&cuts);
        world.on_step(move |cut| {
            let random = (0..3).map(|n| CutPlan::Random(cut.steps * 3 + n));
            for plan in random.chain([CutPlan::Nothing, CutPlan::Everything]) {
                found.borrow_mut().push(cut.cut(plan));
            }
        });
        let (record_size, case) = (RecordSize::BLOCK, NameCase::Insensitive);
        let layer = Layout { hash_key: 3, record_size, case }.encode();
        engine.create_object_dataset("files", layer, &[]).await.unwrap();
    });
    made.unwrap();
    cuts.borrow_mut().push(world.cut(CutPlan::Nothing));
    world.crash();
    let cuts = cuts.take();
    let misleads = |images: &&Vec<MediaImage>| {
        let is_unflagged = images.iter().any(|image| unflagged_copies(image) > 0);
        let world = SimWorld::from_media(1, (*images).clone());
        let has_files = world.run_until(async {
            let how = options(&world, PlantedBug::None);
            let engine = Engine::open(world.devices(), ImportOptions::new(Guid(99)), &how).await;
            engine.unwrap().volume("files").is_ok()
        });
        world.crash();
        has_files.unwrap() && is_unflagged
    };
    let misled = cuts.iter().filter(misleads).count();
    (cuts.len(), misled)
}

#[test]
fn power_cut_during_the_creation_misleads_no_weir_without_the_feature() {
    let (cuts, misled) = cut_creation(PlantedBug::None);
    assert!(cuts > 100 && misled == 0, "{misled} of {cuts}");
    let (_, misled) = cut_creation(PlantedBug::LabelsKeepFormat);
    assert!(misled > 0, "the planted bug is noticed");
}

/// A pool with filesystems gets the second flag before its first case-insensitive filesystem.
#[test]
fn pool_with_filesystems_is_flagged_before_its_first_case_insensitive_one() {
    let disk = MediaImage::blank(DiskOptions::new("disk0", DISK_BYTES));
    let world = SimWorld::from_media(1, vec![disk]);
    let made = world.run_until(async {
        let vdev = VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks: world.devices() };
        let mut guids = (1..).map(Guid);
        let mut guid = || guids.next().unwrap();
        let (sizes, how) = (CreateOptions::default(), options(&world, PlantedBug::None));
        let engine = Engine::create("tank", &[vdev], sizes, &how, &mut guid).await.unwrap();
        let layer = |case| Layout { hash_key: 3, record_size: RecordSize::BLOCK, case }.encode();
        let unflagged = || unflagged_copies(&world.cut(CutPlan::Nothing)[0]);
        let plain = layer(NameCase::Sensitive);
        engine.create_object_dataset("plain", plain, &[]).await.unwrap();
        assert_eq!(unflagged(), 4, "an older Weir can still import the pool");
        let folded = layer(NameCase::Insensitive);
        engine.create_object_dataset("folded", folded, &[]).await.unwrap();
        assert_eq!(unflagged(), 0);
    });
    made.unwrap();
    world.crash();
}

#[test]
fn power_cuts_leave_a_prefix_of_the_calls() {
    for seed in 1..=3 {
        let (models, cuts) = cut_load(seed);
        let count = cuts.len();
        let lost = cuts
            .into_iter()
            .filter(|(expected, images)| check_cut(&models, expected, images.clone()));
        let lost = lost.count();
        assert!(count > 60 && lost > 10, "{lost} of {count} cuts lost calls");
    }
}
