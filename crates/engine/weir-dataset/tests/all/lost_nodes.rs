//! Volumes with tree nodes that are unreadable on every leg: the extent of the damage.
//!
//! The simulator tests crashes during these operations; bin/weir tests the shipped binary.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{as_devices, assert_exact, import, now, options, pool_on};
use weir_base::ErrorKind;
use weir_dataset::{DatasetError, Engine, SendSpec, SnapshotId, Volume, VolumeSpec};
use weir_device::MemoryDevice;
use weir_format::Compression;
use weir_pool::DiskAddress;

const MEMORY_BYTES: u64 = 64 << 20;
const BLOCK: usize = 4096;
/// Number of blocks below one leaf.
const LEAF: usize = 128;
/// Number of blocks of a volume: three leaves below one node.
const BLOCKS: usize = 3 * LEAF;

/// A pool on one disk, with a volume `v` to be damaged and an intact volume `other`.
struct Bench {
    disk: Arc<MemoryDevice>,
    engine: Arc<Engine>,
}

fn content(block: usize, seed: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| seed ^ (block as u8).wrapping_mul(31) ^ (at % 251) as u8).collect()
}

impl Bench {
    fn new() -> Self {
        let disk = Arc::new(MemoryDevice::new("disk", 64 << 20));
        let engine = pool_on(&disk, MEMORY_BYTES);
        let bench = Self { disk, engine };
        for name in ["v", "other"] {
            let size_bytes = (BLOCKS * BLOCK) as u64;
            let spec = VolumeSpec { name: name.into(), size_bytes, compression: Compression::Off };
            now(bench.engine.create_volume(&spec)).unwrap();
            (0..BLOCKS).for_each(|block| bench.write(name, block, 1).unwrap());
        }
        now(bench.engine.sync()).unwrap();
        bench
    }

    fn volume(&self, name: &str) -> Arc<Volume> {
        self.engine.volume(name).unwrap()
    }

    fn write(&self, name: &str, block: usize, seed: u8) -> Result<(), DatasetError> {
        now(self.volume(name).write((block * BLOCK) as u64, &content(block, seed)))
    }

    /// Returns the content of a block: `Some(seed)`, or `None` for zeros.
    fn read(&self, name: &str, block: usize) -> Result<Option<u8>, ErrorKind> {
        seed_of(&self.volume(name), block)
    }

    fn reads(&self, name: &str, blocks: std::ops::Range<usize>, seed: u8) {
        for block in blocks {
            assert_eq!(self.read(name, block), Ok(Some(seed)), "{name} block {block}");
        }
    }

    fn is_lost(&self, name: &str, blocks: std::ops::Range<usize>) {
        for block in blocks {
            assert_eq!(self.read(name, block), Err(ErrorKind::Data), "{name} block {block}");
        }
    }

    /// Flips bits of a node in the committed tree of a volume. A second call restores the bits.
    fn flip(&self, name: &str, level: u8, index: u64) {
        self.flip_at(self.node(name, level, index));
    }

    fn node(&self, name: &str, level: u8, index: u64) -> DiskAddress {
        now(self.volume(name).disk_address(level, index)).unwrap().unwrap()
    }

    fn flip_at(&self, DiskAddress { offset, len, .. }: DiskAddress) {
        let at = offset as usize;
        self.disk.corrupt(at..at + len, |byte| *byte = !*byte);
    }

    /// Simulates a kill: all data in memory is lost, including the caches.
    fn kill(&mut self) {
        let disks = as_devices(&[Arc::clone(&self.disk)]);
        let none = Arc::new(MemoryDevice::new("none", 64 << 20));
        drop(std::mem::replace(&mut self.engine, pool_on(&none, MEMORY_BYTES)));
        self.engine = now(Engine::open(disks, import(), &options(MEMORY_BYTES))).unwrap();
    }

    /// Runs scans and recounts until no work is left, and frees destroyed data.
    fn settle(&self) {
        for _ in 0..40 {
            now(self.engine.sync()).unwrap();
        }
        let stop_when_idle = |time: Duration| {
            if !time.is_zero() {
                self.engine.stop();
            }
            std::future::ready(())
        };
        now(self.engine.run_scans(stop_when_idle)).unwrap();
        for _ in 0..6 {
            now(self.engine.sync()).unwrap();
        }
    }

    /// Checks that every counter is exact, and that the pool no longer reports that a counter may
    /// be too high.
    fn is_exact(&self) {
        assert_eq!(self.engine.pool().damaged_since(), None);
        assert_exact(&self.engine);
    }
}

fn seed_of(volume: &Volume, block: usize) -> Result<Option<u8>, ErrorKind> {
    let mut out = vec![0; BLOCK];
    now(volume.read((block * BLOCK) as u64, &mut out)).map_err(|error| error.kind())?;
    if out.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let seed = (0..=u8::MAX).find(|seed| content(block, *seed) == out);
    Ok(Some(seed.expect("a block holds what was written to it")))
}

fn snapshot(name: &str) -> SnapshotId {
    SnapshotId::new("v", name)
}

/// Regression: the pool acknowledged a 4 KiB write below an unreadable node. The commit needed the
/// node and closed the pool, and every import replayed the write and was refused.
#[test]
fn write_into_damaged_range_keeps_the_pool_open() {
    for level in [1, 2] {
        let mut bench = Bench::new();
        bench.flip("v", level, 0);
        bench.kill();
        bench.write("v", 5, 2).unwrap();
        now(bench.engine.sync()).unwrap();
        bench.write("v", 6, 3).unwrap();
        now(bench.engine.flush(&bench.volume("v"))).unwrap();
        bench.kill();
        let end = if level == 1 { LEAF } else { BLOCKS };
        assert_eq!((bench.read("v", 5), bench.read("v", 6)), (Ok(Some(2)), Ok(Some(3))));
        bench.is_lost("v", 0..5);
        bench.is_lost("v", 7..end);
        bench.reads("v", end..BLOCKS, 1);
        bench.reads("other", 0..BLOCKS, 1);
        assert_exact(&bench.engine);
        // Overwriting or trimming a block ends its damage.
        now(bench.volume("v").zero(0, (4 * BLOCK) as u64)).unwrap();
        now(bench.engine.sync()).unwrap();
        assert_eq!(bench.read("v", 3), Ok(None));
        bench.is_lost("v", 4..5);
    }
}

/// Regression: each read below an unreadable node counted another checksum error, 129 after one
/// pass.
#[test]
fn lost_node_counts_one_checksum_error_until_a_scrub() {
    let mut bench = Bench::new();
    bench.flip("v", 1, 0);
    bench.kill();
    let errors = |bench: &Bench| bench.engine.pool().status().vdevs[0].legs[0].checksum_errors;
    bench.is_lost("v", 0..LEAF);
    bench.is_lost("v", 0..LEAF);
    assert_eq!(errors(&bench), 1);
    bench.engine.scrub_start().unwrap();
    bench.settle();
    bench.is_lost("v", 0..LEAF);
    assert_eq!(errors(&bench), 2);
}

/// If a leg returns the node again, the blocks below it are readable again. Writes in the meantime
/// only put damage markers next to the new blocks.
#[test]
fn restored_node_restores_the_blocks_that_were_not_overwritten() {
    for level in [1, 2] {
        let mut bench = Bench::new();
        let node = bench.node("v", level, 0);
        bench.flip_at(node);
        bench.kill();
        bench.write("v", 5, 2).unwrap();
        now(bench.engine.sync()).unwrap();
        bench.kill();
        bench.is_lost("v", 0..5);
        bench.flip_at(node);
        bench.reads("v", 0..5, 1);
        bench.reads("v", 5..6, 2);
        bench.reads("v", 6..BLOCKS, 1);
        bench.write("v", 7, 3).unwrap();
        now(bench.engine.sync()).unwrap();
        bench.kill();
        bench.reads("v", 8..BLOCKS, 1);
        bench.settle();
        bench.is_exact();
    }
}

/// Regression: the space below an unreadable node leaked, and every check reported it.
#[test]
fn destroying_a_damaged_volume_frees_its_space() {
    for (level, writes) in [(1, false), (1, true), (2, false), (2, true)] {
        let mut bench = Bench::new();
        let before = bench.engine.pool().space().live_bytes;
        bench.flip("v", level, 0);
        bench.kill();
        if writes {
            bench.write("v", 5, 2).unwrap();
            now(bench.engine.sync()).unwrap();
        }
        now(bench.engine.destroy_volume("v", false)).unwrap();
        bench.settle();
        bench.is_exact();
        let after = bench.engine.pool().space().live_bytes;
        assert!(after < before / 2 + 64 * 1024, "{after} of {before} bytes are left");
        bench.reads("other", 0..BLOCKS, 1);
        bench.kill();
        bench.is_exact();
    }
}

/// Snapshot `before` references the unreadable node. The volume and snapshot `after` have damage
/// markers that name the node. Destroying one of the two snapshots does not free the node, because
/// the other snapshot still needs it.
#[test]
fn snapshots_of_a_damaged_volume_can_be_taken_and_destroyed() {
    for first in ["before", "after"] {
        let mut bench = Bench::new();
        now(bench.engine.create_snapshots(&[snapshot("before")])).unwrap();
        let node = bench.node("v", 1, 0);
        bench.flip_at(node);
        bench.kill();
        bench.write("v", 5, 2).unwrap();
        now(bench.engine.create_snapshots(&[snapshot("after")])).unwrap();
        bench.write("v", 6, 3).unwrap();
        now(bench.engine.sync()).unwrap();
        now(bench.engine.destroy_snapshots("v", &[first.into()])).unwrap();
        bench.settle();
        assert_exact(&bench.engine);
        // The dataset that remains can still read the node.
        bench.flip_at(node);
        bench.kill();
        bench.reads("v", 0..5, 1);
        bench.reads("v", 7..BLOCKS, 1);
        let second = if first == "before" { "after" } else { "before" };
        let view = bench.engine.open_snapshot(&snapshot(second)).unwrap();
        assert_eq!(seed_of(&view, 5), Ok(Some(if second == "after" { 2 } else { 1 })));
        assert_eq!(seed_of(&view, 6), Ok(Some(1)));
        drop(view);
        now(bench.engine.destroy_snapshots("v", &[second.into()])).unwrap();
        now(bench.engine.destroy_volume("v", false)).unwrap();
        bench.settle();
        bench.is_exact();
    }
}

#[test]
fn block_status_reports_damage_as_data_and_send_fails() {
    let mut bench = Bench::new();
    now(bench.volume("v").zero(0, (2 * BLOCK) as u64)).unwrap();
    now(bench.engine.create_snapshots(&[snapshot("s")])).unwrap();
    let other = SnapshotId::new("other", "s");
    now(bench.engine.create_snapshots(std::slice::from_ref(&other))).unwrap();
    bench.flip("v", 1, 0);
    bench.kill();
    for written in [false, true] {
        if written {
            bench.write("v", 5, 2).unwrap();
            now(bench.engine.sync()).unwrap();
        }
        let all = (BLOCKS * BLOCK) as u64;
        let extents = now(bench.volume("v").extents(0, all, 16)).unwrap();
        assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), all);
        assert!(extents.iter().all(|extent| !extent.hole), "{extents:?}");
        for (id, is_whole) in [(&snapshot("s"), false), (&other, true)] {
            let spec = SendSpec { snapshot: id.clone(), from: None, resume: None };
            let sending = bench.engine.prepare_send(&spec).unwrap();
            let sent = now(bench.engine.send(&sending, async |_| Ok(())));
            assert_eq!(sent.is_ok(), is_whole, "{id:?}");
            assert_eq!(now(bench.engine.digest(id, 0, 8)).is_ok(), is_whole, "{id:?}");
        }
    }
}

#[test]
fn block_clone_of_a_damaged_range_is_refused() {
    let mut bench = Bench::new();
    bench.flip("v", 1, 0);
    bench.kill();
    let (v, other) = (bench.volume("v"), bench.volume("other"));
    let (leaf, block) = ((LEAF * BLOCK) as u64, BLOCK as u64);
    for written in [false, true] {
        if written {
            bench.write("v", 5, 2).unwrap();
            now(bench.engine.sync()).unwrap();
        }
        let damaged = now(bench.engine.clone_range(&v, 0, &other, 0, leaf));
        assert_eq!(damaged.unwrap_err().kind(), ErrorKind::Data);
        now(bench.engine.clone_range(&v, leaf, &other, leaf, leaf)).unwrap();
    }
    now(bench.engine.clone_range(&v, 5 * block, &other, 0, block)).unwrap();
    bench.reads("other", 1..BLOCKS, 1);
    // The damaged destination range is unreadable; the block clone replaces it.
    now(bench.engine.clone_range(&other, leaf, &v, 0, leaf)).unwrap();
    let mut out = vec![0; BLOCK];
    now(v.read(5 * block, &mut out)).unwrap();
    assert!(out == content(LEAF + 5, 1), "the clone is not what it was made of");
    drop((v, other));
    assert_exact(&bench.engine);
    now(bench.engine.destroy_volume("v", false)).unwrap();
    bench.settle();
    bench.is_exact();
}

#[test]
fn damaged_volume_is_resized_and_rolled_back() {
    let mut bench = Bench::new();
    now(bench.engine.create_snapshots(&[snapshot("s")])).unwrap();
    let node = bench.node("v", 1, 1);
    bench.flip_at(node);
    bench.kill();
    bench.write("v", LEAF + 5, 2).unwrap();
    now(bench.engine.sync()).unwrap();
    now(bench.engine.resize_volume("v", (LEAF * LEAF * 2 * BLOCK) as u64)).unwrap();
    bench.write("v", LEAF + 6, 2).unwrap();
    bench.write("v", LEAF * LEAF, 2).unwrap();
    now(bench.engine.rollback(&snapshot("s"), false)).unwrap();
    bench.settle();
    assert_exact(&bench.engine);
    bench.reads("v", 0..LEAF, 1);
    bench.is_lost("v", LEAF..2 * LEAF);
    bench.flip_at(node);
    bench.kill();
    bench.reads("v", 0..BLOCKS, 1);
    now(bench.engine.destroy_volume("v", true)).unwrap();
    bench.settle();
    bench.is_exact();
}

/// Regression: a snapshot was destroyed while the top node of the volume, which had grown since,
/// was unreadable. The pool freed all blocks that the snapshot and the volume shared.
#[test]
fn snapshot_of_an_unreadable_volume_frees_no_shared_block() {
    let mut bench = Bench::new();
    now(bench.engine.create_snapshots(&[snapshot("s")])).unwrap();
    now(bench.engine.resize_volume("v", (LEAF * LEAF * 2 * BLOCK) as u64)).unwrap();
    bench.write("v", LEAF * LEAF, 2).unwrap();
    now(bench.engine.sync()).unwrap();
    let node = bench.node("v", 3, 0);
    bench.flip_at(node);
    bench.kill();
    now(bench.engine.destroy_snapshots("v", &["s".into()])).unwrap();
    bench.settle();
    (0..8).for_each(|_| now(bench.engine.sync()).unwrap());
    bench.flip_at(node);
    bench.kill();
    bench.reads("v", 0..BLOCKS, 1);
    bench.reads("v", LEAF * LEAF..LEAF * LEAF + 1, 2);
    bench.settle();
    bench.is_exact();
}

/// The lost pointers to shared blocks leave reference counts that are too high.
#[test]
fn references_below_a_lost_node_are_recounted() {
    let mut bench = Bench::new();
    let (v, other) = (bench.volume("v"), bench.volume("other"));
    let all = (BLOCKS * BLOCK) as u64;
    now(bench.engine.clone_range(&other, 0, &v, 0, all)).unwrap();
    drop((v, other));
    bench.flip("v", 1, 0);
    bench.kill();
    now(bench.engine.destroy_volume("v", false)).unwrap();
    bench.settle();
    bench.is_exact();
    bench.reads("other", 0..BLOCKS, 1);
}

/// Regression: damage markers of a lost leaf extended past the end of the volume, where no write
/// could clear them.
#[test]
fn overwriting_a_whole_volume_ends_the_damage_of_its_last_leaf() {
    let mut bench = Bench::new();
    let (blocks, size_bytes) = (40, 40 * BLOCK as u64);
    let spec = VolumeSpec { name: "short".into(), size_bytes, compression: Compression::Off };
    now(bench.engine.create_volume(&spec)).unwrap();
    (0..blocks).for_each(|block| bench.write("short", block, 1).unwrap());
    now(bench.engine.sync()).unwrap();
    bench.flip("short", 1, 0);
    bench.kill();
    bench.write("short", 3, 2).unwrap();
    now(bench.engine.sync()).unwrap();
    bench.kill();
    (0..blocks).for_each(|block| bench.write("short", block, 3).unwrap());
    now(bench.engine.sync()).unwrap();
    bench.settle();
    bench.is_exact();
    assert!(bench.engine.damage().data.is_empty());
    bench.reads("short", 0..blocks, 3);
}

/// Regression: after a volume with an unreadable last leaf grew, reads of its new space failed.
#[test]
fn space_that_a_damaged_volume_gains_reads_as_zeros() {
    for written in [false, true] {
        let mut bench = Bench::new();
        let spec = VolumeSpec {
            name: "short".into(),
            size_bytes: 40 * BLOCK as u64,
            compression: Compression::Off,
        };
        now(bench.engine.create_volume(&spec)).unwrap();
        (0..40).for_each(|block| bench.write("short", block, 1).unwrap());
        now(bench.engine.sync()).unwrap();
        let leaf = bench.node("short", 1, 0);
        bench.flip_at(leaf);
        bench.kill();
        if written {
            bench.write("short", 3, 1).unwrap();
            now(bench.engine.sync()).unwrap();
        }
        now(bench.engine.resize_volume("short", 300 * BLOCK as u64)).unwrap();
        bench.write("short", 60, 2).unwrap();
        now(bench.engine.sync()).unwrap();
        bench.kill();
        bench.is_lost("short", 4..40);
        for block in (40..60).chain(61..300) {
            assert_eq!(bench.read("short", block), Ok(None), "block {block}");
        }
        bench.reads("short", 60..61, 2);
        let listed = bench.engine.damage().data;
        assert!(listed.iter().all(|data| data.offset_bytes + data.len_bytes <= 40 * BLOCK as u64));
        bench.flip_at(leaf);
        bench.kill();
        bench.reads("short", 0..40, 1);
        // A write replaces the markers with the pointers of the leaf.
        bench.write("short", 3, 1).unwrap();
        now(bench.engine.sync()).unwrap();
        bench.settle();
        bench.is_exact();
    }
}
