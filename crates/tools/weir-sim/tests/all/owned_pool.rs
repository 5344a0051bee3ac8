//! A mirror with one volume that a server has open, in virtual time.
//!
//! The tests are in other files.
//!
//! Invariant: no function is random.

use std::sync::Arc;

use weir_base::Guid;
use weir_dataset::{DatasetError, Engine, VolumeSpec};
use weir_format::layout::LABEL_BYTES;
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{CreateOptions, Identity, ImportOptions, PlantedBug, VdevSpec};
use weir_sim::{DiskOptions, SimWorld};

use crate::timed::options;

pub(crate) const BYTES: usize = 64 << 10;

pub(crate) fn host(name: &str) -> &'static Identity {
    Box::leak(Box::new(Identity {
        machine: format!("machine of {name}"),
        host: name.to_owned(),
        boot: format!("boot of {name}"),
        pid_namespace: 1,
        pid: 77,
        pid_start: 1,
        runs: |_, _| true,
    }))
}

pub(crate) async fn pool(world: &SimWorld, owner: &'static Identity) -> Arc<Engine> {
    pool_with(world, owner, PlantedBug::None).await
}

/// Creates a mirror with one volume, open on the server `owner`.
pub(crate) async fn pool_with(
    world: &SimWorld,
    owner: &'static Identity,
    bug: PlantedBug,
) -> Arc<Engine> {
    let sizes = CreateOptions {
        segment_bytes: Some(256 << 10),
        strip_bytes: Some(4096),
        log_bytes: Some(256 << 10),
        disk_bytes_min: Some(2 * LABEL_BYTES),
    };
    let mut next = 0;
    let mut guid = || {
        next += 1;
        Guid(next)
    };
    let vdev = VdevSpec { kind: VdevKind::Mirror, role: VdevRole::Data, disks: world.devices() };
    let made = Engine::create("tank", &[vdev], sizes, &options(world, bug), &mut guid).await;
    let engine = made.unwrap();
    let compression = Compression::Off;
    let spec = VolumeSpec { name: "v".into(), size_bytes: 2 << 20, compression };
    engine.create_volume(&spec).await.unwrap();
    engine.volume("v").unwrap().write(0, &vec![1; BYTES]).await.unwrap();
    engine.sync().await.unwrap();
    engine.pool().announce_owner(owner, &[]).await;
    engine
}

pub(crate) async fn import(
    world: &SimWorld,
    owner: &'static Identity,
    import_epoch: u64,
    force: bool,
) -> Result<Arc<Engine>, DatasetError> {
    import_with(world, owner, (import_epoch, force), PlantedBug::None).await
}

pub(crate) async fn import_with(
    world: &SimWorld,
    owner: &'static Identity,
    (import_epoch, force): (u64, bool),
    bug: PlantedBug,
) -> Result<Arc<Engine>, DatasetError> {
    let how = ImportOptions { force, owner: Some(owner), ..ImportOptions::new(Guid(import_epoch)) };
    Engine::open(world.devices(), how, &options(world, bug)).await
}

pub(crate) fn world(seed: u64) -> SimWorld {
    let len = 2 * LABEL_BYTES + (256 << 10) + (12 << 20);
    SimWorld::new(seed, &["disk0", "disk1"].map(|name| DiskOptions::new(name, len)))
}

pub(crate) async fn assert_holds(engine: &Engine, byte: u8) {
    let mut out = vec![0; BYTES];
    engine.volume("v").unwrap().read(0, &mut out).await.unwrap();
    assert!(out.iter().all(|found| *found == byte));
}

/// Imports the pool with one disk alone.
pub(crate) async fn import_alone(
    world: &SimWorld,
    owner: &'static Identity,
    disk: usize,
    import_epoch: u64,
) -> Result<Arc<Engine>, DatasetError> {
    let how = ImportOptions { owner: Some(owner), ..ImportOptions::new(Guid(import_epoch)) };
    let disks = vec![world.devices().swap_remove(disk)];
    Engine::open(disks, how, &options(world, PlantedBug::None)).await
}

/// Starts the owner's heartbeat.
pub(crate) fn keep(world: &SimWorld, engine: &Arc<Engine>) {
    let (engine, timer) = (Arc::clone(engine), world.executor().clone());
    let beats = async move { engine.pool().keep_owner(|time| timer.sleep(time)).await };
    let _detached = world.executor().spawn("beats", beats);
}
