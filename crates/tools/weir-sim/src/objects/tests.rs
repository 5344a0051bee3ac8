//! Tests of thousands of small objects under power cuts, and of an import by a program that lacks
//! the layer of the dataset.
//!
//! Invariant: a run depends only on its seed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use weir_base::Guid;
use weir_dataset::{Engine, EngineOptions, SyncOf};
use weir_format::{VdevKind, VdevRole};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, VdevSpec};

use super::actor::ObjectsActor;
use super::book::{NAMES, ObjectsBook};
use super::layer::{LAYER, ObjectOp, SimLayer, apply};
use crate::cut::CutPlan;
use crate::expected::ExpectedState;
use crate::media::{DiskOptions, MediaImage};
use crate::rng::Rng;
use crate::scenario::devices;
use crate::world::SimWorld;

const DISK_BYTES: u64 = 96 << 20;
const OBJECTS: u64 = 2_000;

fn options(world: &SimWorld) -> EngineOptions {
    let clock = world.executor().clock();
    EngineOptions { memory_bytes: 8 << 20, clock, bug: PlantedBug::None }
}

async fn new_engine(world: &SimWorld) -> Arc<Engine> {
    let vdev = VdevSpec { kind: VdevKind::Mirror, role: VdevRole::Data, disks: devices(world) };
    let sizes = CreateOptions { segment_bytes: Some(1 << 20), ..CreateOptions::default() };
    let mut guids = (1..).map(Guid);
    let mut guid = || guids.next().unwrap();
    Engine::create("tank", &[vdev], sizes, &options(world), &mut guid).await.unwrap()
}

fn two_disks() -> Vec<MediaImage> {
    ["disk0", "disk1"].map(|name| MediaImage::blank(DiskOptions::new(name, DISK_BYTES))).to_vec()
}

/// Runs operations and syncs on many objects, and cuts the power at some steps. Returns the number
/// of cuts, and of cuts that lost changes.
fn cut_load(seed: u64) -> (usize, usize) {
    let world = SimWorld::from_media(seed, two_disks());
    let mut expected = ExpectedState::new(0, 0, 1, 1);
    expected.objects = ObjectsBook::new((2..2 + OBJECTS).collect());
    let expected = Rc::new(RefCell::new(expected));
    let cuts = Rc::new(RefCell::new(Vec::new()));
    let ran = world.run_until(async {
        let engine = new_engine(&world).await;
        let (timer, committer) = (world.executor().clone(), Arc::clone(&engine));
        let committer = async move { committer.run(|time| timer.sleep(time)).await };
        let committer = world.executor().spawn("committer", committer);
        let (found, state) = (Rc::clone(&cuts), Rc::clone(&expected));
        world.on_step(move |cut| {
            let mut rng = Rng::new(seed).stream("cut", cut.steps);
            if rng.below(40) == 0 {
                let plan = if rng.coin() { CutPlan::Nothing } else { CutPlan::Random(cut.steps) };
                found.borrow_mut().push((state.borrow().clone(), cut.cut(plan)));
            }
        });
        let turn = Rc::default();
        let tasks: Vec<_> = (0..4)
            .map(|n| {
                let mut actor = ObjectsActor {
                    rng: Rng::new(seed).stream("objects", n),
                    engine: Arc::clone(&engine),
                    expected: Rc::clone(&expected),
                    recent: None,
                    turn: Rc::clone(&turn),
                };
                let pause = world.executor().clone();
                world.executor().spawn(format!("objects {n}"), async move {
                    for _ in 0..if n == 0 { 4_000 } else { 60 } {
                        let done =
                            if n == 0 { actor.step().await } else { actor.sync_step().await };
                        assert!(done.is_ok(), "an operation failed on healthy disks");
                        pause.yield_now().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        engine.stop();
        committer.await.unwrap();
    });
    ran.unwrap();
    world.crash();
    let lost = Cell::new(0);
    let cuts = cuts.take();
    let count = cuts.len();
    for (expected, images) in cuts {
        let world = SimWorld::from_media(seed, images);
        let judged = world.run_until(async {
            let how = ImportOptions::new(Guid(99));
            let disks = devices(&world);
            let engine = Engine::open_with_layer(disks, how, &options(&world), &SimLayer).await;
            let engine = engine.unwrap();
            let found = expected.objects.judge(&engine).await.unwrap();
            lost.set(lost.get() + usize::from(!expected.objects.is_whole(&found)));
            assert_eq!(engine.check_live_bytes().await.unwrap(), []);
            assert_eq!(engine.check_accounts().await.unwrap(), []);
        });
        judged.unwrap();
        world.crash();
    }
    (count, lost.get())
}

#[test]
fn thousands_of_objects_survive_power_cuts() {
    let (cuts, lost) = cut_load(3);
    assert!(cuts > 20 && lost > 5, "{lost} of {cuts} cuts lost changes");
}

/// A program without a layer refuses the import; it must not drop flushed changes of objects.
#[test]
fn import_without_the_layer_of_logged_changes_is_refused() {
    let world = SimWorld::from_media(1, two_disks());
    let ran = world.run_until(async {
        let engine = new_engine(&world).await;
        engine.create_object_dataset(NAMES[0], LAYER, &[]).await.unwrap();
        let files = engine.volume(NAMES[0]).unwrap();
        let op = ObjectOp::Create { object: 2, seq: 1 };
        apply(&files, op).await.unwrap().unwrap();
        engine.sync_objects(&files, SyncOf::Namespace).await.unwrap();
    });
    ran.unwrap();
    let images = world.cut(CutPlan::Nothing);
    world.crash();
    let world = SimWorld::from_media(2, images);
    let ran = world.run_until(async {
        let how = ImportOptions::new(Guid(9));
        let error = Engine::open(devices(&world), how, &options(&world)).await.err().unwrap();
        assert!(error.to_string().starts_with("tank/files has flushed changes"), "{error}");
        assert_eq!(world.step_count(), 0, "a refused import writes nothing");
        let disks = devices(&world);
        let engine = Engine::open_with_layer(disks, how, &options(&world), &SimLayer).await;
        let files = engine.unwrap().volume(NAMES[0]).unwrap();
        assert!(files.object_slot(weir_base::ObjectId(2)).await.unwrap().is_some());
    });
    ran.unwrap();
    world.crash();
}
