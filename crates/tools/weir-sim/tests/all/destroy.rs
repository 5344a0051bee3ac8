//! Volumes and snapshots that are destroyed while a commit runs, under power cuts.
//!
//! Scenarios destroy volumes and snapshots under load, at random times.
//!
//! Invariant: a seed determines each run; time is virtual.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_base::{BLOCK_BYTES, Guid, RecordSize};
use weir_dataset::{Engine, SnapshotId, VolumeSize};
use weir_format::{VdevKind, VdevRole};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, VdevSpec};
use weir_sim::{CutPlan, DiskOptions, MediaImage, Rng, SimWorld};

use crate::timed::options;

const VOLUME: &str = "v";
const BLOCKS: usize = 16;
/// Names of the snapshots, and the byte that fills all blocks of each. The last entry, with an
/// empty name, is the volume itself.
const VERSIONS: [(&str, u8); 6] = [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5), ("", 6)];
/// Snapshots that are destroyed first. Each commit frees one.
const FIRST: [&str; 2] = ["a", "b"];
const SECOND: [&str; 3] = ["c", "d", "e"];

/// Datasets that a call destroys while a commit frees a snapshot of [`FIRST`].
#[derive(Clone, Copy, Debug)]
enum Destroyed {
    Volume,
    Snapshots,
}

fn id(name: &str) -> SnapshotId {
    SnapshotId::new(VOLUME, name)
}

fn names(of: &[&str]) -> Vec<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

/// Creates a pool with a volume and its snapshots. All their blocks differ.
async fn create(world: &SimWorld) -> Arc<Engine> {
    let vdevs = [VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks: world.devices() }];
    let sizes = CreateOptions { segment_bytes: Some(1 << 20), ..CreateOptions::default() };
    let mut guids = (1..).map(Guid);
    let mut guid = || guids.next().unwrap();
    let options = options(world, PlantedBug::None);
    let engine = Engine::create("sim", &vdevs, sizes, &options, &mut guid).await.unwrap();
    let (bytes, record) = ((BLOCKS * BLOCK_BYTES) as u64, RecordSize::BLOCK);
    engine.create_volume_with(VOLUME, VolumeSize { bytes, record }, &[]).await.unwrap();
    let volume = engine.volume(VOLUME).unwrap();
    for (name, byte) in VERSIONS {
        volume.write(0, &vec![byte; BLOCKS * BLOCK_BYTES]).await.unwrap();
        if !name.is_empty() {
            engine.create_snapshots(&[id(name)]).await.unwrap();
        }
    }
    engine.commit().await.unwrap();
    engine
}

/// Checks the content of the versions that a recovered pool has, except [`FIRST`]; returns their
/// names.
async fn found(engine: &Engine) -> Vec<&'static str> {
    let mut found = Vec::new();
    for (name, byte) in &VERSIONS[FIRST.len()..] {
        let view =
            if name.is_empty() { engine.volume(VOLUME) } else { engine.open_snapshot(&id(name)) };
        let Ok(view) = view else { continue };
        let mut content = vec![0; BLOCKS * BLOCK_BYTES];
        view.read(0, &mut content).await.unwrap();
        assert!(content.iter().all(|found| found == byte), "{name:?} has {}", content[0]);
        found.push(*name);
    }
    found
}

/// Destroys datasets during a commit that frees a snapshot of [`FIRST`], and cuts the power at each
/// step. Returns the images of each cut, and whether the destroy call had returned before the cut.
fn cuts(seed: u64, destroyed: Destroyed) -> Vec<(bool, Vec<MediaImage>)> {
    let world = SimWorld::new(seed, &[DiskOptions::new("disk", 64 << 20)]);
    let executor = world.executor().clone();
    let (images, done) = <(Rc<RefCell<Vec<_>>>, Rc<Cell<bool>>)>::default();
    let (taken, is_done) = (Rc::clone(&images), Rc::clone(&done));
    let ran = world.run_until(async {
        let engine = create(&world).await;
        engine.destroy_snapshots(VOLUME, &names(&FIRST)).await.unwrap();
        // The commit writes this data before it frees the snapshot.
        let (_, byte) = VERSIONS[VERSIONS.len() - 1];
        let volume = engine.volume(VOLUME).unwrap();
        volume.write(0, &vec![byte; BLOCKS * BLOCK_BYTES]).await.unwrap();
        world.on_step(move |cut| {
            for plan in [CutPlan::Nothing, CutPlan::Everything] {
                taken.borrow_mut().push((is_done.get(), cut.cut(plan)));
            }
        });
        let committer = Arc::clone(&engine);
        let commit = executor.spawn("commit", async move { committer.commit().await });
        executor.sleep(Duration::from_micros(Rng::new(seed).below(4000))).await;
        match destroyed {
            Destroyed::Volume => engine.destroy_volume(VOLUME, true).await.unwrap(),
            Destroyed::Snapshots => {
                engine.destroy_snapshots(VOLUME, &names(&SECOND)).await.unwrap()
            }
        };
        done.set(true);
        commit.await.unwrap();
        engine.commit().await.unwrap();
    });
    ran.unwrap();
    world.crash();
    images.take()
}

// Regression: a commit that freed an earlier snapshot also freed datasets that a call destroyed
// after the commit had begun. After a crash before the next commit, the volume existed without its
// data, or only some of the snapshots existed.
#[test]
fn destroy_during_a_commit_leaves_all_or_none_after_a_crash() {
    for (seed, destroyed) in
        (0..20).flat_map(|seed| [(seed, Destroyed::Volume), (seed, Destroyed::Snapshots)])
    {
        let none: &[&str] = if matches!(destroyed, Destroyed::Volume) { &[] } else { &[""] };
        let (mut before, mut after) = (0, 0);
        for (done, images) in cuts(seed, destroyed) {
            let world = SimWorld::from_media(seed, images);
            let found = world.run_until(async {
                let how = ImportOptions::new(Guid(99));
                let options = options(&world, PlantedBug::None);
                let engine = Engine::open(world.devices(), how, &options).await.unwrap();
                let found = found(&engine).await;
                assert_eq!(engine.check_live_bytes().await.unwrap(), []);
                found
            });
            world.crash();
            let found = found.unwrap();
            let is_destroyed = found == none;
            assert!(
                is_destroyed || (found == ["c", "d", "e", ""] && !done),
                "{destroyed:?}, seed {seed}: {found:?} are left"
            );
            *(if is_destroyed { &mut after } else { &mut before }) += 1;
        }
        assert!(before > 0 && after > 0, "{destroyed:?}, seed {seed}");
    }
}
