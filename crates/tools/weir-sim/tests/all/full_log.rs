//! A log that fills up during a commit, and the next commit, which releases the log's space.
//!
//! The scenario's storms test a full log under load.
//!
//! Invariant: a seed determines each run; time is virtual.

use std::sync::Arc;
use std::time::Duration;

use weir_base::RecordSize;
use weir_base::{BLOCK_BYTES, Guid};
use weir_dataset::{DatasetError, Engine, EngineOptions, VolumeSize};
use weir_format::layout::LABEL_BYTES;
use weir_format::{VdevKind, VdevRole};
use weir_pool::{CreateOptions, PlantedBug, VdevSpec};
use weir_sim::{DiskOptions, Rng, SimWorld};

const LOG_BYTES: u64 = 64 << 10;
/// Number of blocks that fill more than half of the log, but not all of it.
const BLOCKS: usize = 10;

async fn create(world: &SimWorld) -> Result<Arc<Engine>, DatasetError> {
    let disks = world.devices();
    let sizes = CreateOptions {
        segment_bytes: Some(256 << 10),
        strip_bytes: Some(4096),
        log_bytes: Some(LOG_BYTES),
        disk_bytes_min: Some(2 * LABEL_BYTES),
    };
    let mut next = 0;
    let mut guid = || {
        next += 1;
        Guid(next)
    };
    let (clock, bug) = (world.executor().clock(), PlantedBug::None);
    let options = EngineOptions { memory_bytes: 4 << 20, clock, bug };
    let vdevs = [VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks }];
    let engine = Engine::create("sim", &vdevs, sizes, &options, &mut guid).await?;
    let (bytes, record) = (64 * BLOCK_BYTES as u64, RecordSize::BLOCK);
    engine.create_volume_with("v", VolumeSize { bytes, record }, &[]).await?;
    Ok(engine)
}

// Regression: a flush logged data that filled more than half of the log, while a concurrent commit
// made the same data durable. After that, the committer ran empty commits in an endless loop, which
// blocked the pool's thread. A user saw a replication that stayed at "sending 0B".
#[test]
fn log_filled_during_a_commit_is_released_by_the_next_commit() {
    let mut filled = 0;
    for seed in 0..400 {
        let disk = DiskOptions::new("disk", 2 * LABEL_BYTES + LOG_BYTES + (12 << 20));
        let world = SimWorld::new(seed, &[disk]);
        let executor = world.executor().clone();
        let is_full = world.run_until(async {
            let engine = create(&world).await.unwrap();
            let volume = engine.volume("v").unwrap();
            let mut rng = Rng::new(seed).stream("full log", 0);
            let bytes: Vec<u8> = (0..BLOCKS * BLOCK_BYTES).map(|_| rng.next_u64() as u8).collect();
            volume.write(0, &bytes).await.unwrap();
            let (committer, flusher) = (Arc::clone(&engine), Arc::clone(&engine));
            let commit = executor.spawn("commit", async move { committer.commit().await });
            let (timer, later) = (executor.clone(), Duration::from_micros(rng.below(4000)));
            let flush = executor.spawn("flush", async move {
                timer.sleep(later).await;
                flusher.flush(&volume).await
            });
            commit.await.unwrap();
            flush.await.unwrap();
            let was_full = engine.pool().log_half_full();
            engine.commit().await.unwrap();
            assert!(!engine.pool().log_half_full(), "seed {seed}: nothing releases the log");
            was_full
        });
        filled += usize::from(is_full.unwrap());
    }
    assert!(filled > 0, "no seed logged beside the commit");
}
