//! Clients rewrite lost content to volumes with dedupe: the pool stores a new block.
//!
//! weir-pool tests the dedupe index; `references` tests the sharing of good blocks.

use std::sync::Arc;

use weir_base::ZstdLevel;
use weir_base::{BLOCK_BYTES, ErrorKind};
use weir_block::IoBuf;
use weir_dataset::{Engine, EngineOptions, Volume, VolumeSpec};
use weir_device::{Device, MemoryDevice};
use weir_format::{Compression, VdevKind};
use weir_pool::PlantedBug;

use crate::common::{as_devices, import, now, options, pool_of, run_scans};

const MEMORY_BYTES: u64 = 16 << 20;
const DISK_BYTES: usize = 64 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;
const BLOCKS: u64 = 24;
/// Index of the lost block.
const LOST: u64 = 7;

struct Pool {
    disks: Vec<Arc<MemoryDevice>>,
    engine: Arc<Engine>,
}

/// Returns words in an order that no other block has. Each zstd level compresses the words
/// differently.
fn content(number: u64) -> Vec<u8> {
    let mut state = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let word = (state >> 58) * 0x0101_0307;
        format!("{word:x} ").into_bytes()
    });
    let mut data = format!("{number:08} ").into_bytes();
    data.extend(words.take(BLOCK_BYTES / 2).flatten());
    data.truncate(BLOCK_BYTES);
    data
}

impl Pool {
    /// Creates a pool with volumes `a`, which has all blocks, and `b`, both with dedupe.
    fn new(kind: VdevKind, disks: usize, compression: Compression, bug: PlantedBug) -> Self {
        let disks: Vec<_> = (0..disks)
            .map(|n| Arc::new(MemoryDevice::new(format!("disk{n}"), DISK_BYTES)))
            .collect();
        let engine =
            pool_of(kind, as_devices(&disks), &EngineOptions { bug, ..options(MEMORY_BYTES) });
        for name in ["a", "b"] {
            let spec = VolumeSpec { name: name.into(), size_bytes: BLOCKS * BLOCK, compression };
            now(engine.create_volume(&spec)).unwrap();
            now(engine.set_dedupe(name, true)).unwrap();
        }
        let pool = Self { disks, engine };
        (0..BLOCKS).for_each(|number| pool.write("a", number));
        now(pool.engine.sync()).unwrap();
        pool
    }

    fn volume(&self, name: &str) -> Arc<Volume> {
        self.engine.volume(name).unwrap()
    }

    fn write(&self, name: &str, number: u64) {
        now(self.volume(name).write(number * BLOCK, &content(number))).unwrap();
    }

    fn reads(&self, name: &str, number: u64) -> bool {
        let mut out = vec![0; BLOCK_BYTES];
        match now(self.volume(name).read(number * BLOCK, &mut out)) {
            Ok(()) => out == content(number),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Data, "{error}");
                false
            }
        }
    }

    /// Damages the stored bytes of the lost block on every disk of a mirror.
    fn damage(&self) {
        let place = now(self.volume("a").disk_address(0, LOST)).unwrap().unwrap();
        self.damage_at(place.offset as usize);
    }

    /// Like [`Self::damage`], on raidz and including parity. The block must be stored uncompressed.
    fn damage_row(&self) {
        let wanted = content(LOST);
        let of_disk = |disk: &Arc<MemoryDevice>| {
            let (done, image) = now(disk.read_at(0, IoBuf::zeroed(DISK_BYTES)));
            done.unwrap();
            let is_lost = |at: &usize| image[*at..*at + 64] == wanted[..64];
            (0..DISK_BYTES - 64).step_by(64).find(is_lost)
        };
        self.damage_at(self.disks.iter().find_map(of_disk).expect("it is stored as it is"));
    }

    fn damage_at(&self, at: usize) {
        for disk in &self.disks {
            disk.corrupt(at..at + 64, |byte| *byte ^= 0x55);
        }
    }

    /// Runs a complete scrub. The engine stops afterwards, and its cache is kept.
    fn scrub(&self) {
        self.engine.scrub_start().unwrap();
        run_scans(&self.engine);
    }

    fn listed(&self) -> usize {
        self.engine.damage().data.len()
    }

    fn reopen(&mut self) {
        now(self.engine.sync()).unwrap();
        let disks = as_devices(&self.disks);
        self.engine = now(Engine::open(disks, import(), &options(MEMORY_BYTES))).unwrap();
    }
}

/// Returns a compression level that scrubs do not try, so that no scrub can restore content from
/// the cache.
fn highest() -> Compression {
    Compression::Zstd(ZstdLevel::MAX)
}

/// Loses a block. Then writes its content to the volume with the lost block and to another volume,
/// each with a flush and a commit. Returns true if both volumes return the content after a restart.
fn restored(bug: PlantedBug) -> bool {
    let mut pool = Pool::new(VdevKind::Disk, 1, highest(), bug);
    pool.damage();
    pool.scrub();
    assert_eq!(pool.listed(), 1);
    for name in ["a", "b"] {
        pool.write(name, LOST);
        now(pool.engine.flush(&pool.volume(name))).unwrap();
    }
    now(pool.engine.sync()).unwrap();
    assert_eq!(pool.listed(), 0, "it was overwritten");
    pool.reopen();
    let is_whole = ["a", "b"].iter().all(|name| pool.reads(name, LOST));
    assert!((0..BLOCKS).filter(|number| *number != LOST).all(|number| pool.reads("a", number)));
    assert_eq!(now(pool.engine.check_references()).unwrap(), Vec::new());
    assert_eq!(now(pool.engine.check_live_bytes()).unwrap(), Vec::new());
    is_whole
}

// Regression: a scrub listed a lost block, and the owner of the volume overwrote the block with the
// same content from a backup. Dedupe found that content in the cache and referenced the lost block
// again. The damage list was empty, and after a restart the block was lost again in every volume
// with that content.
#[test]
fn restored_block_is_not_shared_with_its_lost_copy() {
    assert!(restored(PlantedBug::None));
}

#[test]
fn stale_dedupe_index_entry_of_a_lost_block_is_detected() {
    assert!(!restored(PlantedBug::HintOutlivesDamage));
}

#[test]
fn scrub_restores_lost_blocks_from_the_cache() {
    let of = |kind, disks, compression| {
        let mut pool = Pool::new(kind, disks, compression, PlantedBug::None);
        if kind == VdevKind::Raidz1 {
            pool.damage_row();
        } else {
            pool.damage();
        }
        pool.scrub();
        let scan = pool.engine.pool().scan_status().unwrap();
        assert_eq!((scan.damaged, scan.unrepaired), (0, 0), "{kind:?} {compression:?}");
        assert!(scan.repaired_bytes > 0, "{kind:?} {compression:?}");
        assert_eq!(pool.listed(), 0, "{kind:?} {compression:?}");
        pool.reopen();
        assert!((0..BLOCKS).all(|number| pool.reads("a", number)), "{kind:?} {compression:?}");
        let scan = now(pool.engine.verify(|_| ())).unwrap();
        assert_eq!((scan.damaged, scan.repaired_bytes), (0, 0), "{kind:?} {compression:?}");
    };
    let zstd = Compression::Zstd(ZstdLevel::DEFAULT);
    for compression in [Compression::Off, Compression::Lz4, zstd] {
        of(VdevKind::Disk, 1, compression);
        of(VdevKind::Mirror, 2, compression);
    }
    of(VdevKind::Raidz1, 3, Compression::Off);
}

/// After a restart the cache is empty, so the damage list keeps the lost block.
#[test]
fn lost_block_that_is_not_cached_stays_on_the_list() {
    let mut pool = Pool::new(VdevKind::Disk, 1, Compression::Lz4, PlantedBug::None);
    pool.damage();
    pool.reopen();
    pool.scrub();
    assert_eq!(pool.listed(), 1);
    pool.write("b", LOST);
    now(pool.engine.sync()).unwrap();
    assert_eq!(pool.listed(), 1, "only the other volume has it");
    pool.reopen();
    assert!(pool.reads("b", LOST) && !pool.reads("a", LOST));
}
