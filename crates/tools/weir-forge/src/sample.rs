//! Sample pools with every kind of structure: volumes of several record sizes, snapshots, clones,
//! shared blocks, cleaned segments, and log batches that no txg has committed yet.
//!
//! The module `forgery` changes the sample, and `exercise` runs operations on it.
//!
//! Invariant: nothing is random.

use std::sync::Arc;

use weir_base::Guid;
use weir_base::RecordSize;
use weir_base::property::{COMPRESSION, DEDUPE};
use weir_block::IoBuf;
use weir_dataset::{
    DatasetError, Engine, PropertyChange, SendFrom, SendSpec, SnapshotId, VolumeSize,
};
use weir_device::{Device, Durability, MemoryDevice};
use weir_format::layout::LABEL_BYTES;
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{CreateOptions, VdevSpec};

use crate::bench::{Bench, drive, now};
use crate::disks::{Disks, SECTOR, import, noise, options};
use crate::objects::{self, AnyLayer};

const BLOCK: u64 = 4096;
const LOG_BYTES: u64 = 64 << 10;
/// Creates the sample pool with volumes on a vdev of this kind.
pub fn sample(kind: VdevKind) -> Disks {
    let (devices, _) = pool_of(kind, fill);
    log_in(devices.clone(), log);
    Disks { sample: devices, forged: Vec::new() }
}

/// Creates the sample pool with a dataset with many objects. The list of permanent errors contains
/// a damaged record of the dataset.
pub fn object_sample() -> Disks {
    let (devices, engine) = pool_of(VdevKind::Disk, objects::fill);
    let damaged = now(objects::damaged_bytes(&engine)).expect("a sound pool");
    drop(engine);
    let sector = damaged - damaged % SECTOR;
    let (read, mut buf) = now(devices[0].read_at(sector, IoBuf::zeroed(SECTOR as usize)));
    read.expect("a disk in memory");
    buf[(damaged - sector) as usize] ^= 0xff;
    let write = devices[0].write_at(sector, Arc::new(buf), 0..SECTOR as usize, Durability::Cached);
    now(write).expect("a disk in memory");
    log_in(devices.clone(), objects::log);
    Disks { sample: devices, forged: Vec::new() }
}

/// Reopens a pool, so that the log continues in a new epoch, and makes changes.
fn log_in(
    devices: Vec<Arc<dyn Device>>,
    change: impl AsyncFnOnce(&Arc<Engine>) -> Result<(), DatasetError>,
) {
    let engine = now(Engine::open_with_layer(devices, import(false), &options(), &AnyLayer));
    let bench = Bench::new(engine.expect("a sound pool"));
    drive(&bench, change(&bench)).expect("it goes on").expect("a sound pool");
}

/// Creates a pool and fills it.
fn pool_of(
    kind: VdevKind,
    fill: impl AsyncFnOnce(&Arc<Engine>) -> Result<(), DatasetError>,
) -> (Vec<Arc<dyn Device>>, Arc<Engine>) {
    // Use a small segment area, so that segments fill up and the cleaner has work.
    let (legs, area) = match kind {
        VdevKind::Disk => (1, 3 << 20),
        VdevKind::Mirror => (2, 3 << 20),
        _ => (3, 3 << 19),
    };
    let len = (2 * LABEL_BYTES + LOG_BYTES) as usize + area;
    let devices: Vec<Arc<dyn Device>> = (0..legs)
        .map(|n| Arc::new(MemoryDevice::new(format!("disk{n}"), len)) as Arc<dyn Device>)
        .collect();
    let (role, disks) = (VdevRole::Data, devices.clone());
    let sizes = CreateOptions {
        segment_bytes: Some(64 << 10),
        strip_bytes: Some(4096),
        log_bytes: Some(LOG_BYTES),
        disk_bytes_min: Some(2 * LABEL_BYTES),
    };
    let mut next = 0;
    let mut guid = || {
        next += 1;
        Guid(next)
    };
    let vdevs = [VdevSpec { kind, role, disks }];
    let engine = now(Engine::create("tank", &vdevs, sizes, &options(), &mut guid));
    let engine = engine.expect("a sound pool");
    let bench = Bench::new(engine);
    drive(&bench, fill(&bench)).expect("it goes on").expect("a sound pool");
    let engine = Arc::clone(&bench);
    (devices, engine)
}

/// Makes changes that exist only in the intent log.
async fn log(engine: &Arc<Engine>) -> Result<(), DatasetError> {
    let plain = engine.volume("plain")?;
    plain.write(40 * BLOCK, &noise(77, 2)).await?;
    engine.flush(&plain).await?;
    plain.zero(10 * BLOCK, 5 * BLOCK).await?;
    engine.flush(&plain).await
}

async fn fill(engine: &Arc<Engine>) -> Result<(), DatasetError> {
    let lz4 = PropertyChange::set(COMPRESSION, Compression::Lz4);
    let size = |blocks: u64, shift| VolumeSize {
        bytes: blocks * BLOCK,
        record: RecordSize::from_shift(shift).expect("a record size"),
    };
    engine.create_volume_with("plain", size(1 << 22, 0), std::slice::from_ref(&lz4)).await?;
    let dedupe = PropertyChange::set(DEDUPE, true);
    engine.create_volume_with("dedupe", size(300, 0), &[lz4.clone(), dedupe]).await?;
    engine.create_volume_with("large", size(256, 1), &[lz4]).await?;
    let (plain, dedupe) = (engine.volume("plain")?, engine.volume("dedupe")?);
    let large = engine.volume("large")?;
    for at in [0, 50, 130, 1000, 4000] {
        plain.write(at * BLOCK, &noise(at, 9)).await?;
    }
    large.write(0, &noise(5, 20)).await?;
    engine.commit().await?;
    engine
        .create_snapshots(&[SnapshotId::new("plain", "one"), SnapshotId::new("large", "one")])
        .await?;
    for at in [0, 60, 200] {
        dedupe.write(at * BLOCK, &noise(5, 8)).await?;
        engine.commit().await?;
    }
    plain.write(52 * BLOCK, &noise(6, 4)).await?;
    engine.create_snapshots(&[SnapshotId::new("plain", "two")]).await?;
    engine.clone_snapshot(&SnapshotId::new("plain", "one"), "clone").await?;
    let clone = engine.volume("clone")?;
    clone.write(51 * BLOCK, &noise(8, 3)).await?;
    engine.commit().await?;
    engine.create_snapshots(&[SnapshotId::new("clone", "own")]).await?;
    // Rewrite blocks until segments are cleaned: most of the segments' blocks are dead, and some
    // stay live.
    for round in 0..60_u64 {
        plain.write((2000 + round % 3 * 40) * BLOCK, &noise(100 + round, 6)).await?;
        plain.write((3000 + round) * BLOCK, &noise(400 + round, 1)).await?;
        engine.commit().await?;
    }
    engine.create_snapshots(&[SnapshotId::new("plain", "three")]).await?;
    engine.destroy_snapshots("plain", &["two".to_owned()]).await?;
    engine.commit().await
}

/// Streams of a volume or dataset of a sample, to be received in order: a full stream of its
/// snapshot `one`, and an incremental stream to `three`.
pub fn streams_of(disks: &Disks, volume: &str) -> Vec<Vec<u8>> {
    let (one, three) = (SnapshotId::new(volume, "one"), SnapshotId::new(volume, "three"));
    let later = SendFrom::Snapshot(one.clone());
    let specs = [
        SendSpec { snapshot: one, from: None, resume: None },
        SendSpec { snapshot: three, from: Some(later), resume: None },
    ];
    let sent = now(async {
        let layer = &AnyLayer;
        let engine =
            Engine::open_with_layer(disks.devices(), import(false), &options(), layer).await?;
        let mut streams = Vec::new();
        for spec in specs {
            streams.push(send(&engine, &spec).await?);
        }
        Ok::<_, DatasetError>(streams)
    });
    sent.expect("a sound pool")
}

/// Sends a snapshot; returns the bytes of the stream.
pub(crate) async fn send(engine: &Engine, spec: &SendSpec) -> Result<Vec<u8>, DatasetError> {
    let sending = engine.prepare_send(spec)?;
    let mut bytes = Vec::new();
    engine
        .send(&sending, async |part| {
            bytes.extend(part);
            Ok(())
        })
        .await?;
    Ok(bytes)
}
