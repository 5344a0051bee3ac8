//! Scans and reads while one leg returns flipped bits, like a bad cable or controller. The bits on
//! the disk itself are correct.
//!
//! `scans`, `raidz_scans` and `damage` test disks that store wrong bytes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weir_base::BLOCK_BYTES;
use weir_block::IoBuf;
use weir_dataset::{Engine, EngineOptions, VolumeSpec};
use weir_device::{
    Device, DeviceError, DeviceStats, Durability, Geometry, IoFuture, MemoryDevice, ReadFuture,
};
use weir_format::{Compression, VdevKind};
use weir_pool::{PlantedBug, ScanStatus};

use crate::common::{as_devices, import, now, options, pool_of, run_scans};

const MEMORY_BYTES: u64 = 16 << 20;
const DISK_BYTES: usize = 64 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;
const BLOCKS: u64 = 300;
/// Average number of bytes read for each flipped bit.
const BYTES_PER_FLIP: u64 = 8192;

/// A disk that returns flipped bits on reads while `on` is set; its stored bits do not change.
struct Misreading {
    behind: Arc<MemoryDevice>,
    on: Arc<AtomicBool>,
    state: AtomicU64,
}

impl Misreading {
    fn draw(&self) -> u64 {
        let next = |state: u64| state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let old = self.state.load(Ordering::Relaxed);
        self.state.store(next(old), Ordering::Relaxed);
        next(old) >> 20
    }
}

impl Device for Misreading {
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
        Box::pin(async move {
            let (done, mut buf) = self.behind.read_at(offset, buf).await;
            if self.on.load(Ordering::Relaxed) {
                let len = buf.len() as u64;
                for _ in 0..(len + self.draw() % BYTES_PER_FLIP) / BYTES_PER_FLIP {
                    let at = self.draw() % len;
                    buf[at as usize] ^= 1 << (self.draw() % 8);
                }
            }
            (done, buf)
        })
    }

    fn write_at(
        &self,
        offset: u64,
        data: Arc<IoBuf>,
        range: Range<usize>,
        durability: Durability,
    ) -> IoFuture<'_, Result<(), DeviceError>> {
        self.behind.write_at(offset, data, range, durability)
    }

    fn flush(&self) -> IoFuture<'_, Result<(), DeviceError>> {
        self.behind.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> IoFuture<'_, Result<(), DeviceError>> {
        self.behind.discard(offset, len_bytes)
    }
}

/// Returns content whose compressed size is not a multiple of a sector, so that blocks share
/// sectors.
fn content(number: u64, round: u64) -> Vec<u8> {
    let mut state = (number + 1000 * round).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    let random = 200 + (number * 333 % 3000) as usize;
    let mut data: Vec<u8> = noise.take(random).collect();
    data.resize(BLOCK_BYTES, number as u8);
    data
}

fn scrub(engine: &Engine) -> ScanStatus {
    engine.scrub_start().unwrap();
    run_scans(engine);
    engine.pool().scan_status().unwrap()
}

/// Scrubs and reads while one leg misreads. Returns true if good copies on that leg's disk were
/// destroyed.
fn loses(kind: VdevKind, legs: usize, seed: u64, bug: PlantedBug) -> bool {
    let disks: Vec<_> =
        (0..legs).map(|n| Arc::new(MemoryDevice::new(format!("disk{n}"), DISK_BYTES))).collect();
    let on = Arc::new(AtomicBool::new(false));
    let how = EngineOptions { bug, ..options(MEMORY_BYTES) };
    let with_cable = || {
        let mut devices = as_devices(&disks);
        let (behind, on) = (Arc::clone(&disks[0]), Arc::clone(&on));
        devices[0] = Arc::new(Misreading { behind, on, state: AtomicU64::new(seed) });
        devices
    };
    let engine = pool_of(kind, with_cable(), &how);
    let spec =
        VolumeSpec { name: "v".into(), size_bytes: BLOCKS * BLOCK, compression: Compression::Lz4 };
    now(engine.create_volume(&spec)).unwrap();
    let volume = engine.volume("v").unwrap();
    // The second round leaves dead blocks between live blocks.
    for round in [1, 2] {
        for number in (0..BLOCKS).filter(|number| round == 1 || number % 3 > 0) {
            now(volume.write(number * BLOCK, &content(number, round))).unwrap();
        }
        now(engine.sync()).unwrap();
    }
    drop((engine, volume));

    let engine = now(Engine::open(with_cable(), import(), &how)).unwrap();
    let volume = engine.volume("v").unwrap();
    let read_all = || {
        for number in 0..BLOCKS {
            let mut out = vec![0; BLOCK_BYTES];
            let read = now(volume.read(number * BLOCK, &mut out));
            read.unwrap_or_else(|error| panic!("block {number}: {error}"));
            let round = if number % 3 > 0 { 2 } else { 1 };
            assert!(out == content(number, round), "block {number}");
        }
    };
    on.store(true, Ordering::Relaxed);
    read_all();
    let scan = scrub(&engine);
    assert_eq!(scan.damaged, 0, "{scan:?}");
    drop((engine, volume));
    on.store(false, Ordering::Relaxed);

    // The cable is repaired. This scrub repairs copies that were destroyed during the misreads.
    let engine = now(Engine::open(with_cable(), import(), &options(MEMORY_BYTES))).unwrap();
    let scan = scrub(&engine);
    assert_eq!(scan.damaged, 0, "{scan:?}");
    scan.repaired_bytes > 0
}

// Regression: a scrub repaired blocks on a leg that returned wrong bits, and wrote back
// neighbouring blocks as that leg had returned them. Good copies on the leg became bad.
#[test]
fn scrub_of_a_leg_that_misreads_destroys_no_copies() {
    for (kind, legs) in
        [(VdevKind::Mirror, 2), (VdevKind::Mirror, 3), (VdevKind::Raidz1, 3), (VdevKind::Raidz2, 5)]
    {
        for seed in 1..=3 {
            assert!(!loses(kind, legs, seed, PlantedBug::None), "{kind:?} of {legs}, seed {seed}");
        }
    }
}

#[test]
fn repair_that_writes_unverified_neighbours_is_detected() {
    let bug = PlantedBug::NeighboursUnverified;
    for (kind, legs) in [(VdevKind::Mirror, 2), (VdevKind::Raidz1, 3)] {
        assert!((1..=3).any(|seed| loses(kind, legs, seed, bug)), "{kind:?}");
    }
}
