//! Copies of volumes by reference, interrupted at every write.
//!
//! `references` tests block clones.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_util::future::pending;
use futures_util::task::noop_waker_ref;
use weir_base::BLOCK_BYTES;
use weir_block::IoBuf;
use weir_dataset::{DatasetError, Engine, Outcome, VolumeSpec};
use weir_device::{
    Device, DeviceError, DeviceStats, Durability, Geometry, IoFuture, MemoryDevice, ReadFuture,
};
use weir_format::Compression;

use crate::common::{as_devices, assert_exact, id, import, now, options, pool_on};

const MEMORY_BYTES: u64 = 16 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;
const BLOCKS: u64 = 300;
/// Maximum number of polls: enough for any future that does not wait for another task.
const POLLS: usize = 1000;

/// A disk that loses power after a number of writes: from then on no operation completes.
struct DyingDevice {
    behind: Arc<MemoryDevice>,
    left: AtomicU64,
}

impl DyingDevice {
    fn lives(&self, costs: u64) -> bool {
        let taken = |left: u64| left.checked_sub(costs);
        let order = Ordering::Relaxed;
        self.left.fetch_update(order, order, taken).is_ok() && self.left.load(order) > 0
    }
}

impl Device for DyingDevice {
    fn path(&self) -> &str {
        self.behind.path()
    }

    fn geometry(&self) -> Geometry {
        self.behind.geometry()
    }

    fn stats(&self) -> &DeviceStats {
        self.behind.stats()
    }

    fn read_at(&self, offset: u64, buf: IoBuf) -> ReadFuture<'_> {
        if self.lives(0) { self.behind.read_at(offset, buf) } else { Box::pin(pending()) }
    }

    fn write_at(
        &self,
        offset: u64,
        data: Arc<IoBuf>,
        range: Range<usize>,
        durability: Durability,
    ) -> IoFuture<'_, Result<(), DeviceError>> {
        if self.lives(1) {
            return self.behind.write_at(offset, data, range, durability);
        }
        Box::pin(pending())
    }

    fn flush(&self) -> IoFuture<'_, Result<(), DeviceError>> {
        if self.lives(0) { self.behind.flush() } else { Box::pin(pending()) }
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> IoFuture<'_, Result<(), DeviceError>> {
        if self.lives(0) { self.behind.discard(offset, len_bytes) } else { Box::pin(pending()) }
    }
}

fn block(at: u64, fill: u8) -> [u8; BLOCK_BYTES] {
    let mut data = [fill; BLOCK_BYTES];
    data[..8].copy_from_slice(&at.to_le_bytes());
    data
}

/// Creates a pool with a volume `v` in which every third block is a hole, and a snapshot from
/// before the holes.
fn make() -> (Arc<MemoryDevice>, Arc<Engine>) {
    let disk = Arc::new(MemoryDevice::new("disk", 64 << 20));
    let engine = pool_on(&disk, MEMORY_BYTES);
    let size_bytes = BLOCKS * BLOCK;
    let spec = VolumeSpec { name: "v".to_owned(), size_bytes, compression: Compression::Off };
    now(engine.create_volume(&spec)).unwrap();
    fill(&engine, 1);
    now(engine.create_snapshots(&[id("v", "old")])).unwrap();
    fill(&engine, 2);
    now(engine.sync()).unwrap();
    (disk, engine)
}

fn fill(engine: &Engine, fill: u8) {
    let volume = engine.volume("v").unwrap();
    for at in (0..BLOCKS).filter(|at| !at.is_multiple_of(3)) {
        now(volume.write(at * BLOCK, &block(at, fill))).unwrap();
    }
}

fn holds(engine: &Engine, name: &str, fill: u8) {
    let volume = engine.volume(name).unwrap();
    for at in 0..BLOCKS {
        let mut data = [0; BLOCK_BYTES];
        now(volume.read(at * BLOCK, &mut data)).unwrap();
        let wanted = if at.is_multiple_of(3) { [0; BLOCK_BYTES] } else { block(at, fill) };
        assert!(data == wanted, "{name}: block {at}");
    }
}

/// Frees destroyed data, checks all counts, and returns the space of the snapshots of `v`.
fn settled(engine: &Engine) -> u64 {
    for _ in 0..12 {
        now(engine.sync()).unwrap();
    }
    assert_eq!(engine.dataset_space().freeing, 0, "something destroyed is still there");
    assert_exact(engine);
    let space = engine.volume("v").unwrap().info().space;
    space.by_snapshots
}

fn names(engine: &Engine) -> Vec<String> {
    engine.volumes().iter().map(|volume| volume.info().name).collect()
}

#[test]
fn copy_is_independent_and_leaves_no_snapshot() {
    let (_disk, engine) = make();
    let before = settled(&engine);
    assert_eq!(now(engine.copy_volume("v", None, "copy")).unwrap(), Outcome::Changed);
    assert_eq!(now(engine.copy_volume("v", Some("old"), "older")).unwrap(), Outcome::Changed);
    assert_eq!(engine.snapshot_names("v").unwrap(), ["old"]);
    assert_eq!(settled(&engine), before, "what the copy was made of is gone");
    let error = now(engine.copy_volume("v", None, "copy")).unwrap_err();
    assert!(matches!(error, DatasetError::Exists { .. }), "{error}");
    now(engine.destroy_volume("v", true)).unwrap();
    holds(&engine, "copy", 2);
    holds(&engine, "older", 1);
}

/// Regression: the temporary snapshot of a copy was stored like a user's snapshot, and a crash left
/// it behind.
#[test]
fn copy_interrupted_at_any_write_leaves_no_partial_volume() {
    let (mut cut, mut whole) = (0, 0);
    for writes in 1_u64.. {
        let (disk, engine) = make();
        let before = settled(&engine);
        drop(engine);
        let left = AtomicU64::new(u64::MAX);
        let dying = Arc::new(DyingDevice { behind: Arc::clone(&disk), left });
        let disks = vec![Arc::clone(&dying) as Arc<dyn Device>];
        let engine = now(Engine::open(disks, import(), &options(MEMORY_BYTES))).unwrap();
        dying.left.store(writes, Ordering::Relaxed);
        let done = {
            let mut copying = std::pin::pin!(engine.copy_volume("v", None, "copy"));
            let mut context = Context::from_waker(noop_waker_ref());
            (0..POLLS).any(|_| matches!(copying.as_mut().poll(&mut context), Poll::Ready(Ok(_))))
        };
        drop(engine);
        let disks = as_devices(&[disk]);
        let engine = now(Engine::open(disks, import(), &options(MEMORY_BYTES))).unwrap();
        assert_eq!(settled(&engine), before, "after {writes} writes");
        assert_eq!(engine.snapshot_names("v").unwrap(), ["old"], "after {writes} writes");
        holds(&engine, "v", 2);
        let found = names(&engine);
        if found.iter().any(|name| name == "copy") {
            holds(&engine, "copy", 2);
            whole += 1;
        } else {
            assert!(!done, "a copy that was reserved is gone, after {writes} writes");
            cut += 1;
        }
        assert_eq!(found.len(), if found.contains(&"copy".to_owned()) { 2 } else { 1 });
        if done {
            break;
        }
    }
    assert!(cut > 10 && whole > 0, "{cut} cut off, {whole} whole");
}
