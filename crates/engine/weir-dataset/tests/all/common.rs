//! Helpers of the engine's tests: memory devices and an executor for their futures.
//!
//! The tests are in the other modules.
//!
//! Invariant: memory devices complete at once, so that a pending future waits only for other tasks.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_base::{Guid, SystemClock};
use weir_dataset::{
    DatasetError, Engine, EngineOptions, ObjectChange, RecordCopy, SendSpec, SnapshotId, Volume,
};
use weir_device::{Device, MemoryDevice};
use weir_format::{VdevKind, VdevRole};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, ScanState, VdevSpec};

/// Polls a future to completion. A future that waits for another task fails the test.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(futures_util::task::noop_waker_ref());
    for _ in 0..1_000_000 {
        if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
    }
    panic!("nothing to wait for on memory disks");
}

/// Runs a future, and commits while the future waits, because no other task commits here.
pub(crate) fn committing<T>(engine: &Engine, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(futures_util::task::noop_waker_ref());
    for _ in 0..10_000 {
        // Poll often before the commit: the future may be in the middle of its own commit.
        for _ in 0..1000 {
            if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) {
                return done;
            }
        }
        now(engine.sync()).unwrap();
    }
    panic!("commits do not help");
}

/// Copies records. Waits while too much data is dirty.
pub(crate) async fn copy_records(
    volume: &Volume,
    copy: &RecordCopy,
    changes: &[ObjectChange],
) -> Result<(), DatasetError> {
    while !volume.record_copy_turn().await.copy(copy, changes).await? {
        volume.wait_for_room().await?;
    }
    Ok(())
}

/// Returns the options of a small engine without planted faults.
pub(crate) fn options(memory_bytes: u64) -> EngineOptions {
    let clock = Arc::new(SystemClock::default());
    EngineOptions { memory_bytes, clock, bug: PlantedBug::None }
}

/// Returns the options of a user's import, with a new import epoch each time.
pub(crate) fn import() -> ImportOptions {
    static OPENINGS: AtomicU64 = AtomicU64::new(1 << 32);
    let import_epoch = Guid(OPENINGS.fetch_add(1, Ordering::Relaxed));
    ImportOptions::new(import_epoch)
}

/// Converts disks to the type that the engine expects.
pub(crate) fn as_devices(disks: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn Device>> {
    disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Device>).collect()
}

/// Creates a pool on one disk.
pub(crate) fn pool_on(disk: &Arc<MemoryDevice>, memory_bytes: u64) -> Arc<Engine> {
    let disks = as_devices(&[Arc::clone(disk)]);
    pool_of(VdevKind::Disk, disks, &options(memory_bytes))
}

/// Creates a pool of one data vdev.
pub(crate) fn pool_of(
    kind: VdevKind,
    disks: Vec<Arc<dyn Device>>,
    how: &EngineOptions,
) -> Arc<Engine> {
    let vdev = VdevSpec { kind, role: VdevRole::Data, disks };
    let mut next = 0;
    let mut guid = || {
        next += 1;
        Guid(next)
    };
    now(Engine::create("tank", &[vdev], CreateOptions::default(), how, &mut guid)).unwrap()
}

/// Runs the due scans to their end, then stops the engine.
pub(crate) fn run_scans(engine: &Engine) {
    now(engine.run_scans(|_| {
        let is_done = |state| matches!(state, ScanState::Finished | ScanState::Stopped);
        if engine.pool().scan_status().is_some_and(|scan| is_done(scan.state)) {
            engine.stop();
        }
        std::future::ready(())
    }))
    .unwrap();
}

/// Waits until the engine has found the volumes and snapshots that share the listed data, then
/// stops the engine.
pub(crate) fn find_shared_damage(engine: &Engine) {
    let naps = Cell::new(0);
    now(engine.run_scans(|_| {
        naps.set(naps.get() + 1);
        if naps.get() == 3 {
            engine.stop();
        }
        std::future::ready(())
    }))
    .unwrap();
}

/// Asserts that every counter of the committed pool is exact.
pub(crate) fn assert_exact(engine: &Engine) {
    assert_eq!(now(engine.check_references()).unwrap(), Vec::new());
    assert_eq!(now(engine.check_live_bytes()).unwrap(), Vec::new());
    assert_eq!(now(engine.check_accounts()).unwrap(), Vec::new());
    assert_eq!(now(engine.check_places()).unwrap(), None);
}

pub(crate) fn id(volume: &str, name: &str) -> SnapshotId {
    SnapshotId::new(volume, name)
}

/// Sends a snapshot. Returns the stream.
pub(crate) fn stream_of(engine: &Engine, spec: &SendSpec) -> Result<Vec<u8>, DatasetError> {
    let sending = engine.prepare_send(spec)?;
    now(engine.estimate_send(&sending))?;
    let mut bytes = Vec::new();
    now(engine.send(&sending, async |part| {
        bytes.extend(part);
        Ok(())
    }))?;
    Ok(bytes)
}
