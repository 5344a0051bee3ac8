//! Pools of format 8: import, first commit in format 9, and power cuts between the two.
//!
//! The images are in weir-forge, which also changes their fields.
//!
//! Invariant: no test is random; time is virtual.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use weir_base::property::{COMPRESSION, DEDUPE, QUOTA, READ_ONLY};
use weir_base::{Compression, Guid, RecordSize};
use weir_dataset::{
    Engine, EngineOptions, PropertyTarget, ReceiveSpec, Receiver, SendSpec, SnapshotId, Volume,
    VolumeSpec,
};
use weir_forge::images::{IMAGE_BYTES, Image, MIRROR_V8, RAIDZ_V8, block_of};
use weir_format::layout::{
    CONFIG_BYTES, FORMAT_VERSION, OLDEST_VERSION, RING_OFFSET, RING_SLOTS, SLOT_BYTES,
    label_offsets,
};
use weir_format::{Label, Uberblock};
use weir_pool::{ImportOptions, PlantedBug, PoolOptions, import};
use weir_sim::{CutPlan, DiskOptions, MediaImage, SimWorld};

use crate::timed::options;

const BLOCK: u64 = 4096;

fn media(images: &[Image]) -> Vec<MediaImage> {
    let one = |image: &Image| {
        let mut media = MediaImage::blank(DiskOptions::new(image.name, IMAGE_BYTES as u64));
        image.parts(|at, bytes| media.write(at, bytes));
        media
    };
    images.iter().map(one).collect()
}

async fn open(world: &SimWorld, epoch: u64) -> Arc<Engine> {
    let how = ImportOptions::new(Guid(epoch));
    Engine::open(world.devices(), how, &options(world, PlantedBug::None)).await.unwrap()
}

/// Runs a test on disks with these images; returns the images after it.
fn on(images: Vec<MediaImage>, test: impl AsyncFnOnce(&SimWorld)) -> Vec<MediaImage> {
    let world = SimWorld::from_media(1, images);
    world.run_until(test(&world)).unwrap();
    world.crash();
    world.cut(CutPlan::Everything)
}

fn label_of(image: &MediaImage) -> Label {
    let mut config = vec![0; CONFIG_BYTES];
    image.read(0, &mut config);
    Label::decode(&config).unwrap()
}

/// Format versions of the label copies that this Weir can decode, and of the uberblocks in the
/// rings of all label copies.
fn versions(image: &MediaImage) -> (Vec<u32>, Vec<u32>) {
    let (mut labels, mut slots) = (Vec::new(), Vec::new());
    for start in label_offsets(IMAGE_BYTES as u64) {
        let mut config = vec![0; CONFIG_BYTES];
        for copy in [start, start + CONFIG_BYTES as u64] {
            image.read(copy, &mut config);
            labels.extend(Label::decode(&config).ok().map(|label| label.version));
        }
        let mut slot = vec![0; SLOT_BYTES];
        for number in 0..RING_SLOTS {
            image.read(start + RING_OFFSET + number * SLOT_BYTES as u64, &mut slot);
            slots.extend(Uberblock::decode(&slot).ok().map(|uberblock| uberblock.version));
        }
    }
    (labels, slots)
}

/// True if a Weir of format 8 would import an older txg than the newest one from this disk: it can
/// decode a label copy, but not the uberblocks of format 9.
fn misleads_old_weir(image: &MediaImage) -> bool {
    let (labels, slots) = versions(image);
    labels.contains(&OLDEST_VERSION) && slots.contains(&FORMAT_VERSION)
}

async fn assert_blocks(volume: &Volume, name: &str, blocks: std::ops::Range<u64>, generation: u64) {
    for block in blocks {
        let mut out = vec![0; BLOCK as usize];
        volume.read(block * BLOCK, &mut out).await.unwrap();
        assert!(out == block_of(name, generation, block), "{name} block {block}");
    }
}

/// Checks the content that `make-v8.sh` wrote to the mirror. The writes of generation 4 were only
/// in the intent log.
async fn assert_mirror(engine: &Engine) {
    let mut names: Vec<String> = engine.volumes().iter().map(|v| v.info().name).collect();
    names.sort();
    assert_eq!(names, ["clone", "dup1", "dup2", "half", "media", "source", "vm1"]);
    let volume = |name: &str| engine.volume(name).unwrap();
    let vm1 = volume("vm1");
    for (blocks, generation) in
        [(0..100, 1), (100..300, 2), (300..400, 1), (400..403, 4), (403..512, 1)]
    {
        assert_blocks(&vm1, "v8m/vm1", blocks, generation).await;
    }
    let one = engine.open_snapshot(&SnapshotId::new("vm1", "one")).unwrap();
    assert_blocks(&one, "v8m/vm1", 0..512, 1).await;
    let two = engine.open_snapshot(&SnapshotId::new("vm1", "two")).unwrap();
    assert_blocks(&two, "v8m/vm1", 100..300, 2).await;
    assert_blocks(&two, "v8m/vm1", 300..512, 1).await;
    let clone = volume("clone");
    assert_blocks(&clone, "v8m/clone", 0..10, 3).await;
    assert_blocks(&clone, "v8m/vm1", 10..512, 1).await;
    assert_blocks(&volume("dup1"), "v8m/dup1", 0..256, 1).await;
    assert_blocks(&volume("dup2"), "v8m/dup1", 0..256, 1).await;
    assert_blocks(&volume("media"), "v8m/media", 0..320, 1).await;
    assert_eq!(volume("media").record_size(), RecordSize::from_bytes(128 << 10).unwrap());
    assert_blocks(&volume("source"), "v8m/source", 0..512, 1).await;
    let own = |name: &str| {
        let target = PropertyTarget::Volume(name.to_owned());
        engine.properties(&target).unwrap().own
    };
    assert_eq!(own("vm1").get(COMPRESSION), Compression::find("zstd-3"));
    assert_eq!((own("dup1").get(DEDUPE), own("dup1").get(READ_ONLY)), (Some(true), Some(true)));
    assert!(own("media").refreservation_bytes() > 8 << 20);
    let pool = engine.properties(&PropertyTarget::Pool).unwrap().own;
    assert_eq!((pool.get(QUOTA), &*pool.user["ops:owner"]), (Some((40 << 20).into()), "ada"));
    let snapshots = engine.snapshots("vm1").await.unwrap();
    assert_eq!((&*snapshots[0].name, &snapshots[0].holds[..]), ("one", &["backup".into()][..]));
    assert_eq!(snapshots[0].clones, ["clone"]);
    assert_eq!(engine.bookmarks("vm1").unwrap()[0].name, "mark");
    assert_eq!(engine.check_accounts().await.unwrap(), []);
}

#[test]
fn pool_of_format_8_keeps_its_content_and_becomes_format_9() {
    let images = media(MIRROR_V8);
    for image in &images {
        let (labels, slots) = versions(image);
        assert!(labels == [OLDEST_VERSION; 4] && slots.iter().all(|slot| *slot == OLDEST_VERSION));
    }
    // An import that opens the pool without an engine must write no labels.
    let images = on(images, async |world| {
        let EngineOptions { memory_bytes: cache_bytes, clock, bug } =
            options(world, PlantedBug::None);
        let pool = PoolOptions { cache_bytes, clock, bug };
        let found = import(world.devices(), ImportOptions::new(Guid(5)), &pool).await.unwrap();
        assert!(!found.batches.is_empty(), "the log has writes to replay");
    });
    assert!(images.iter().all(|image| versions(image).0 == [OLDEST_VERSION; 4]));
    let images = on(images, async |world| assert_mirror(&*open(world, 6).await).await);
    for image in &images {
        let (labels, slots) = versions(image);
        assert_eq!(labels, [FORMAT_VERSION; 4]);
        assert!(slots.contains(&FORMAT_VERSION) && slots.contains(&OLDEST_VERSION));
    }
    // The engine reads directory entries of both formats, and rewrites an entry when its dataset
    // changes.
    let images = on(images, async |world| {
        let engine = open(world, 7).await;
        assert_mirror(&engine).await;
        let token = engine.receive_token("half").await.unwrap();
        let snapshot = SnapshotId::new("source", "full");
        let sending = SendSpec { snapshot, from: None, resume: Some(token) };
        let sending = engine.prepare_send(&sending).unwrap();
        let mut stream = Vec::new();
        let sent = engine.send(&sending, async |part| {
            stream.extend(part);
            Ok(())
        });
        sent.await.unwrap();
        let volume = "half".to_owned();
        let spec = ReceiveSpec { volume, roll_back: false, dry_run: false, mark: None };
        let mut receiver = Receiver::new(Arc::clone(&engine), spec);
        for part in stream.chunks(100_000) {
            receiver.push(part).await.unwrap();
        }
        receiver.finish().await.unwrap();
        assert_blocks(&engine.volume("half").unwrap(), "v8m/source", 0..512, 1).await;
        assert_mirror(&engine).await;
        engine.destroy_snapshots("vm1", &["two".to_owned()]).await.unwrap();
        engine.rename_volume("vm1", "vm2").await.unwrap();
        let (compression, size_bytes) = (Compression::Lz4, 1 << 20);
        let spec = VolumeSpec { name: "new".to_owned(), size_bytes, compression };
        engine.create_volume(&spec).await.unwrap();
        engine.sync().await.unwrap();
    });
    on(images, async |world| {
        let engine = open(world, 8).await;
        assert_blocks(&engine.volume("vm2").unwrap(), "v8m/vm1", 100..300, 2).await;
        assert_blocks(&engine.volume("half").unwrap(), "v8m/source", 0..512, 1).await;
        assert_eq!(engine.volume("new").unwrap().size_bytes(), 1 << 20);
        assert_eq!(engine.check_accounts().await.unwrap(), []);
    });
}

#[test]
fn raidz2_of_format_8_without_two_disks_keeps_its_content() {
    let images = media(RAIDZ_V8);
    let two = images[2..].to_vec();
    let assert_data = async |engine: &Engine| {
        let data = engine.volume("data").unwrap();
        assert_blocks(&data, "v8z/data", 0..7, 1).await;
        assert_blocks(&data, "v8z/data", 7..10, 2).await;
        assert_blocks(&data, "v8z/data", 10..1024, 1).await;
        let first = engine.open_snapshot(&SnapshotId::new("data", "first")).unwrap();
        assert_blocks(&first, "v8z/data", 0..1024, 1).await;
    };
    let two = on(two, async |world| assert_data(&*open(world, 5).await).await);
    assert!(two.iter().all(|image| versions(image).0 == [FORMAT_VERSION; 4]));
    // The other disks return with labels of format 8. No uberblock of format 9 may precede the new
    // labels.
    let all = [images[..2].to_vec(), two].concat();
    let all = on(all, async |world| {
        let engine = open(world, 6).await;
        assert_data(&engine).await;
        assert_eq!(engine.check_accounts().await.unwrap(), []);
    });
    assert!(!all.iter().any(misleads_old_weir));
    assert!(all.iter().all(|image| versions(image).0 == [FORMAT_VERSION; 4]));
}

/// Cuts the power at every step while the first `disks` images are imported and the other images
/// reconnect. Returns the number of cuts, and the number of disks that would mislead a Weir of
/// format 8.
fn cut_imports(images: &[MediaImage], disks: usize, bug: PlantedBug) -> (u64, u64) {
    let world = SimWorld::from_media(1, images.to_vec());
    let guids: Vec<Guid> = images.iter().map(|image| label_of(image).disk).collect();
    let counts = Rc::new((Cell::new(0), Cell::new(0)));
    let own = Rc::clone(&counts);
    let found = Rc::new(RefCell::new(Vec::new()));
    let cut_images = Rc::clone(&found);
    world.on_step(move |cut| {
        let (cuts, misled) = (&own.0, &own.1);
        let random = (0..3).map(|n| CutPlan::Random(cut.steps * 3 + n));
        for plan in [CutPlan::Nothing, CutPlan::Everything].into_iter().chain(random) {
            let images = cut.cut(plan);
            cuts.set(cuts.get() + 1);
            misled
                .set(misled.get() + images.iter().filter(|i| misleads_old_weir(i)).count() as u64);
            // Recover one cut in 16, because recoveries of all cuts would take minutes.
            if cuts.get() % 16 == 0 {
                cut_images.borrow_mut().push(images);
            }
        }
    });
    world
        .run_until(async {
            let how = ImportOptions::new(Guid(5));
            let mut first = world.devices();
            let returning = first.split_off(disks);
            let engine = Engine::open(first, how, &options(&world, bug)).await.unwrap();
            for (disk, guid) in returning.into_iter().zip(&guids[disks..]) {
                // Run commits while the labels of the returning disk are written.
                let commits = async {
                    let vm1 = engine.volume("vm1").unwrap();
                    for _ in 0..10 {
                        vm1.write(0, &block_of("v8m/vm1", 1, 0)).await.unwrap();
                        engine.commit().await.unwrap();
                    }
                };
                let online = engine.pool().online_leg(*guid, disk, false);
                futures_util::join!(commits, online).1.unwrap();
                engine.leg_came_back();
            }
            engine.volume("vm1").unwrap().write(0, &block_of("v8m/vm1", 1, 0)).await.unwrap();
            engine.sync().await.unwrap();
        })
        .unwrap();
    world.crash();
    for images in found.take() {
        on(images, async |world| assert_mirror(&*open(world, 6).await).await);
    }
    (counts.0.get(), counts.1.get())
}

#[test]
fn power_cut_during_the_change_of_the_format_misleads_no_older_weir() {
    let mirror = media(MIRROR_V8);
    let (cuts, misled) = cut_imports(&mirror, 2, PlantedBug::None);
    assert!(cuts > 500 && misled == 0, "{misled} of {cuts}");
    // Disk 1 missed the change to format 9 and still has labels of format 8.
    let alone = on(mirror[..1].to_vec(), async |world| drop(open(world, 5).await));
    let both = [alone, mirror[1..].to_vec()].concat();
    for disks in [2, 1] {
        let (cuts, misled) = cut_imports(&both, disks, PlantedBug::None);
        assert!(cuts > 300 && misled == 0, "{misled} of {cuts}");
    }
    let (_, misled) = cut_imports(&mirror, 2, PlantedBug::LabelsKeepFormat);
    assert!(misled > 0, "the planted bug is detected");
}
