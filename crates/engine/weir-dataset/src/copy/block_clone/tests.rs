//! Block clones and concurrent writes to the same blocks in one txg: the order in which they apply,
//! and the unwritten part of a partly written block.
//!
//! tests/all/references.rs tests clones against a model.
//!
//! Invariant: a test holds the committer lock, so it controls what joins one txg.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::task::noop_waker_ref;
use weir_base::property::COMPRESSION;
use weir_base::{Guid, SystemClock};
use weir_device::{Device, DeviceOp, FaultDevice, Faults, MemoryDevice};
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{CreateOptions, PlantedBug, VdevSpec};

use super::*;
use crate::objects::record::VolumeSize;
use crate::properties::change::PropertyChange;
use crate::state::engine::EngineOptions;

const BLOCKS: u64 = 200;
/// Enough polls for any future that does not wait for another task.
const POLLS: usize = 1000;

fn try_now<T>(future: &mut Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let mut context = Context::from_waker(noop_waker_ref());
    (0..POLLS).find_map(|_| match future.as_mut().poll(&mut context) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    })
}

pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    try_now(&mut std::pin::pin!(future)).expect("nothing to wait for on memory disks")
}

/// A volume `a` whose bytes are all 1, and a volume `b` whose bytes are all 9.
pub(crate) fn engine() -> (Arc<Engine>, Arc<Volume>, Arc<Volume>) {
    let (engine, _, [a, b]) = engine_of(RecordSize::BLOCK);
    (engine, a, b)
}

/// As [`engine`], with records of this size on a disk that can stop responding.
fn engine_of(record: RecordSize) -> (Arc<Engine>, Arc<Faults>, [Arc<Volume>; 2]) {
    let faults = Arc::new(Faults::default());
    let disk = Arc::new(MemoryDevice::new("disk", 64 << 20));
    let disk = Arc::new(FaultDevice::new(disk, Arc::clone(&faults))) as Arc<dyn Device>;
    let vdev = VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks: vec![disk] };
    let mut next = 0;
    let mut guid = || {
        next += 1;
        Guid(next)
    };
    let clock = Arc::new(SystemClock::default());
    let options = EngineOptions { memory_bytes: 16 << 20, clock, bug: PlantedBug::None };
    let sizes = CreateOptions::default();
    let engine = now(Engine::create("tank", &[vdev], sizes, &options, &mut guid)).unwrap();
    let volumes = [("a", 1), ("b", 9)].map(|(name, fill)| {
        let size = VolumeSize { bytes: BLOCKS * BLOCK, record };
        let off = PropertyChange::set(COMPRESSION, Compression::Off);
        now(engine.create_volume_with(name, size, &[off])).unwrap();
        let volume = engine.volume(name).unwrap();
        write(&volume, 0..BLOCKS, fill);
        volume
    });
    now(engine.sync()).unwrap();
    (engine, faults, volumes)
}

fn write(volume: &Volume, blocks: Range<u64>, fill: u8) {
    for at in blocks {
        now(volume.write(at * BLOCK, &[fill; BLOCK_BYTES])).unwrap();
    }
}

fn read(volume: &Volume, block: u64) -> [u8; BLOCK_BYTES] {
    let mut data = [0; BLOCK_BYTES];
    now(volume.read(block * BLOCK, &mut data)).unwrap();
    data
}

fn holds(volume: &Volume, blocks: Range<u64>, fill: u8) {
    for at in blocks {
        assert!(read(volume, at) == [fill; BLOCK_BYTES], "block {at} is not of {fill}");
    }
}

/// Asserts that the bytes of two sectors of a block are 3 and that all others are `rest`.
fn holds_part(volume: &Volume, block: u64, rest: u8) {
    let data = read(volume, block);
    let is_rest = |bytes: &[u8]| bytes.iter().all(|byte| *byte == rest);
    assert!(is_rest(&data[..512]) && is_rest(&data[1536..]), "block {block}");
    assert!(data[512..1536] == [3; 1024], "block {block}");
}

fn sound(engine: &Engine) {
    assert_eq!(now(engine.check_references()).unwrap(), Vec::new());
    assert_eq!(now(engine.check_live_bytes()).unwrap(), Vec::new());
    assert_eq!(now(engine.check_accounts()).unwrap(), Vec::new());
}

#[test]
fn writes_during_a_clone_win_and_earlier_writes_lose() {
    let (engine, a, b) = engine();
    write(&b, 20..30, 5);
    now(b.zero(30 * BLOCK, 10 * BLOCK)).unwrap();
    // These two changes are acknowledged before the clone request, so the engine commits them
    // before it makes the clone, and the clone replaces them.
    let mut cloning = std::pin::pin!(engine.clone_range(&a, 0, &b, 10 * BLOCK, 100 * BLOCK));
    {
        let _committer = engine.core.committer.try_lock().unwrap();
        assert!(try_now(&mut cloning).is_none(), "it waits for that commit");
    }
    now(&mut cloning).unwrap();
    holds(&b, 0..10, 9);
    holds(&b, 10..110, 1);
    holds(&b, 110..BLOCKS, 9);

    let mut cloning = std::pin::pin!(engine.clone_range(&a, 0, &b, 110 * BLOCK, 90 * BLOCK));
    let txg = engine.core.open_txg();
    {
        let _committer = engine.core.committer.try_lock().unwrap();
        assert!(try_now(&mut cloning).is_none());
        assert_eq!(b.state.lock().clones.len(), 1, "it is part of the open txg");
        write(&b, 120..130, 7);
        now(b.zero(130 * BLOCK, 5 * BLOCK)).unwrap();
        assert_eq!(engine.core.open_txg(), txg);
    }
    now(&mut cloning).unwrap();
    assert_eq!(engine.core.pool.committed_txg(), txg, "all of it was one txg");
    holds(&b, 110..120, 1);
    holds(&b, 120..130, 7);
    holds(&b, 130..135, 0);
    holds(&b, 135..BLOCKS, 1);
    sound(&engine);
}

/// Regression: a write changed some sectors of a block while a block clone to that block waited for
/// a commit. The engine completed the block with its old content and wrote it after the cloned
/// block, so the unwritten sectors had the old content.
#[test]
fn partial_write_while_a_clone_waits_keeps_the_cloned_rest() {
    for shift in [0, 2] {
        let (engine, faults, [a, b]) = engine_of(RecordSize::from_shift(shift).unwrap());
        // Because of this write, the clone request first commits. The read brings the content of
        // block 50 into memory.
        write(&b, 199..200, 9);
        holds(&b, 50..51, 9);
        let txg = engine.core.open_txg();
        faults.freeze();
        let mut cloning = std::pin::pin!(engine.clone_range(&a, 0, &b, 0, 100 * BLOCK));
        assert!(try_now(&mut cloning).is_none());
        assert_eq!(engine.core.open_txg(), txg.next(), "the commit before the clone is under way");
        let mut writing = std::pin::pin!(b.write(50 * BLOCK + 512, &[3; 1024]));
        assert!(try_now(&mut writing).is_none(), "the rest of the record is not there yet");
        now(b.write(64 * BLOCK, &[7; 4 * BLOCK_BYTES])).unwrap();
        now(b.write(65 * BLOCK + 512, &[3; 1024])).unwrap();
        faults.clear();
        now(&mut cloning).unwrap();
        now(&mut writing).unwrap();
        for (blocks, fill) in [(0..50, 1), (51..64, 1), (64..65, 7), (66..68, 7), (68..100, 1)] {
            holds(&b, blocks, fill);
        }
        holds(&b, 100..BLOCKS, 9);
        for (block, rest) in [(50, 1), (65, 7)] {
            holds_part(&b, block, rest);
        }
        now(engine.sync()).unwrap();
        sound(&engine);
    }
}

/// A record that a partial write completed is committed in a txg before the txg of the clone.
#[test]
fn record_completed_before_a_clone_is_committed_before_it() {
    let (engine, _, [c, d]) = engine_of(RecordSize::from_shift(2).unwrap());
    write(&d, 21..22, 5);
    let mut cloning = std::pin::pin!(engine.clone_range(&c, 0, &d, 20 * BLOCK, 20 * BLOCK));
    let mut writing = std::pin::pin!(d.write(25 * BLOCK, &[6; BLOCK_BYTES]));
    let mut trimming = std::pin::pin!(d.zero(33 * BLOCK, BLOCK));
    {
        let _committer = engine.core.committer.try_lock().unwrap();
        assert!(try_now(&mut cloning).is_none());
        write(&d, 22..23, 5);
        assert!(try_now(&mut writing).is_none(), "the rest of the record is not there yet");
        assert!(try_now(&mut trimming).is_none());
    }
    now(&mut cloning).unwrap();
    now(&mut writing).unwrap();
    now(&mut trimming).unwrap();
    now(engine.sync()).unwrap();
    for (blocks, fill) in [(0..20, 9), (20..25, 1), (25..26, 6), (26..33, 1), (33..34, 0)] {
        holds(&d, blocks, fill);
    }
    holds(&d, 34..40, 1);
    holds(&d, 40..BLOCKS, 9);
    sound(&engine);
}

/// A clone that fails or is dropped does not keep changes waiting.
#[test]
fn dropped_clone_no_longer_blocks_partial_writes() {
    let (engine, faults, [a, b]) = engine_of(RecordSize::BLOCK);
    write(&b, 199..200, 9);
    {
        faults.freeze();
        let mut cloning = std::pin::pin!(engine.clone_range(&a, 0, &b, 0, 100 * BLOCK));
        let _committer = engine.core.committer.try_lock().unwrap();
        assert!(try_now(&mut cloning).is_none());
        assert_eq!(b.state.lock().announced_clones.len(), 1);
        faults.clear();
    }
    assert!(b.state.lock().announced_clones.is_empty());
    now(b.write(50 * BLOCK + 512, &[3; 1024])).unwrap();
    holds_part(&b, 50, 9);
}

/// Regression: a commit applied the tree changes of several clones in the order of the clone
/// requests. The tree requires ascending block order, so the server panicked. The commit now sorts
/// the changes.
#[test]
fn later_of_overlapping_clones_in_one_txg_wins() {
    let (engine, a, b) = engine();
    write(&a, 50..100, 2);
    write(&a, 100..150, 3);
    now(engine.sync()).unwrap();
    let mut cloning = [(50, 100, 40), (100, 20, 30), (0, 90, 20)]
        .map(|blocks: (u64, u64, u64)| {
            let (from, to, count) = blocks;
            engine.clone_range(&a, from * BLOCK, &b, to * BLOCK, count * BLOCK)
        })
        .map(Box::pin);
    let txg = engine.core.open_txg();
    {
        let _committer = engine.core.committer.try_lock().unwrap();
        for clone in &mut cloning {
            assert!(try_now(&mut clone.as_mut()).is_none(), "it is acknowledged when committed");
        }
        assert_eq!(b.state.lock().clones.len(), 3, "none waits for another");
    }
    cloning.into_iter().for_each(|clone| now(clone).unwrap());
    assert_eq!(engine.core.pool.committed_txg(), txg, "all of them were one txg");
    for (blocks, fill) in [(0..20, 9), (20..50, 3), (50..90, 9), (90..110, 1), (110..140, 2)] {
        holds(&b, blocks, fill);
    }
    holds(&b, 140..BLOCKS, 9);
    sound(&engine);
}

/// Compares holes of the source, unaligned leaves and covered records with a plain copy.
#[test]
fn clone_copies_runs_and_holes_across_leaf_boundaries() {
    let (engine, a, b) = engine();
    now(a.zero(60 * BLOCK, 3 * BLOCK)).unwrap();
    now(a.zero(100 * BLOCK, 40 * BLOCK)).unwrap();
    write(&a, 120..121, 4);
    now(engine.sync()).unwrap();
    let mut cloning =
        std::pin::pin!(engine.clone_range(&a, 3 * BLOCK, &b, 50 * BLOCK, 150 * BLOCK));
    {
        let _committer = engine.core.committer.try_lock().unwrap();
        assert!(try_now(&mut cloning).is_none());
        write(&b, 127..130, 7);
        now(b.zero(199 * BLOCK, BLOCK)).unwrap();
    }
    now(&mut cloning).unwrap();
    for block in 0..BLOCKS {
        let source = block.wrapping_sub(47);
        let fill = match block {
            0..50 => 9,
            127..130 => 7,
            199 => 0,
            _ if source == 120 => 4,
            _ if (60..63).contains(&source) || (100..140).contains(&source) => 0,
            _ => 1,
        };
        holds(&b, block..block + 1, fill);
    }
    sound(&engine);
}

/// Regression: a write of some sectors of a block, concurrent with a clone onto that block, filled
/// the other sectors with content from before the clone. The clone was lost in these sectors.
#[test]
fn partial_write_during_a_clone_keeps_the_cloned_rest() {
    let (engine, a, b) = engine();
    let mut cloning = std::pin::pin!(engine.clone_range(&a, 0, &b, 0, 100 * BLOCK));
    let mut writing = std::pin::pin!(b.write(50 * BLOCK + 512, &[3; 1024]));
    {
        let _committer = engine.core.committer.try_lock().unwrap();
        assert!(try_now(&mut cloning).is_none());
        assert!(try_now(&mut writing).is_none(), "the rest of the block is not there yet");
        // The clone does not change a block that was written completely after the request.
        write(&b, 60..61, 4);
        now(b.write(60 * BLOCK + 512, &[3; 1024])).unwrap();
        // The clone does not change a block outside its range.
        now(b.write(100 * BLOCK + 512, &[3; 1024])).unwrap();
    }
    now(&mut cloning).unwrap();
    now(&mut writing).unwrap();
    for (block, rest) in [(50, 1), (60, 4), (100, 9)] {
        holds_part(&b, block, rest);
    }
    now(engine.sync()).unwrap();
    sound(&engine);
}

/// Regression: between write-out and the uberblock, a partial write completed its record with
/// content of the clone. The intent log kept that content, so after a crash that lost the clone the
/// block still had data of the clone.
#[test]
fn partial_write_waits_for_the_uberblock_of_a_clone() {
    let (engine, faults, [a, b]) = engine_of(RecordSize::BLOCK);
    faults.freeze_op(DeviceOp::Flush);
    let mut cloning = std::pin::pin!(engine.clone_range(&a, 0, &b, 0, 100 * BLOCK));
    assert!(try_now(&mut cloning).is_none(), "its commit is under way");
    holds(&b, 50..51, 1);
    let mut writing = std::pin::pin!(b.write(50 * BLOCK + 512, &[3; 1024]));
    assert!(try_now(&mut writing).is_none(), "the rest of the block is not durable yet");
    faults.clear();
    now(&mut cloning).unwrap();
    now(&mut writing).unwrap();
    holds_part(&b, 50, 1);
    now(engine.sync()).unwrap();
    sound(&engine);
}

#[test]
fn clones_beyond_the_blocks_of_one_txg_wait() {
    let (engine, a, b) = engine();
    let others = engine.clone_room.try_acquire_many((1 << 20) - 100).unwrap();
    let mut first = std::pin::pin!(engine.clone_range(&a, 0, &b, 0, 100 * BLOCK));
    let mut second = std::pin::pin!(engine.clone_range(&a, 100 * BLOCK, &b, 100 * BLOCK, BLOCK));
    {
        let _committer = engine.core.committer.try_lock().unwrap();
        assert!(try_now(&mut first).is_none() && try_now(&mut second).is_none());
        let state = b.state.lock();
        assert!(matches!(&state.clones[..], [clone] if clone.range() == (0..100)));
        assert!(state.announced_clones.is_empty(), "the second one has no room");
    }
    now(&mut first).unwrap();
    now(&mut second).unwrap();
    drop(others);
    assert_eq!(engine.clone_room.available_permits(), 1 << 20);
    holds(&b, 0..101, 1);
    holds(&b, 101..BLOCKS, 9);
}
