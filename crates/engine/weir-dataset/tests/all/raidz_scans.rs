//! Scans of raidz vdevs in small steps that may end inside a row, with damage close to the end of a
//! step.
//!
//! `scans` tests scans of mirrors; the simulator tests crashes and load during scans.

use std::cell::Cell;
use std::sync::Arc;

use crate::common::{as_devices, import, now, options};
use weir_base::Guid;
use weir_base::limits::SCAN_BLOCKS_BUSY;
use weir_block::IoBuf;
use weir_dataset::{Engine, VolumeSpec};
use weir_device::{Device, DeviceOp, FaultDevice, Faults, MemoryDevice};
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{CreateOptions, ScanState, VdevSpec};

const BLOCK: usize = 4096;
const DISK_BYTES: usize = 64 << 20;
const MEMORY_BYTES: u64 = 64 << 20;
const LEGS: usize = 4;
/// Number of blocks in one row: three data strips of 64 KiB.
const ROW_BLOCKS: usize = 3 * 16;
const BLOCKS: usize = 1024;

/// Returns content in which every block is unique, also among all other data on a disk.
fn content() -> Vec<u8> {
    let mut data: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at % 251) as u8).collect();
    for (number, block) in data.chunks_mut(BLOCK).enumerate() {
        block[..12].copy_from_slice(format!("block {number:06}").as_bytes());
    }
    data
}

/// Finds a block. Returns the index of its disk and the offset on that disk.
fn find(disks: &[Arc<MemoryDevice>], block: &[u8]) -> (usize, usize) {
    for (number, disk) in disks.iter().enumerate() {
        let (done, bytes) = now(disk.read_at(0, IoBuf::zeroed(DISK_BYTES)));
        done.unwrap();
        if let Some(index) = bytes.chunks(BLOCK).position(|stored| stored == block) {
            return (number, index * BLOCK);
        }
    }
    panic!("the block is on no disk");
}

#[test]
fn damage_of_an_earlier_scan_step_does_not_reach_the_parity() {
    let disks: Vec<_> =
        (0..LEGS).map(|n| Arc::new(MemoryDevice::new(format!("disk{n}"), DISK_BYTES))).collect();
    let faults: [Arc<Faults>; LEGS] = std::array::from_fn(|_| Arc::default());
    let legs = disks.iter().zip(&faults).map(|(disk, faults)| {
        let disk = Arc::clone(disk) as Arc<dyn Device>;
        Arc::new(FaultDevice::new(disk, Arc::clone(faults))) as Arc<dyn Device>
    });
    let vdev = VdevSpec { kind: VdevKind::Raidz1, role: VdevRole::Data, disks: legs.collect() };
    let mut next = 0;
    let mut guid = || {
        next += 1;
        Guid(next)
    };
    let (sizes, open) = (CreateOptions::default(), options(MEMORY_BYTES));
    let engine = now(Engine::create("tank", &[vdev], sizes, &open, &mut guid)).unwrap();
    let (size_bytes, compression) = ((BLOCKS * BLOCK) as u64, Compression::Off);
    now(engine.create_volume(&VolumeSpec { name: "v".into(), size_bytes, compression })).unwrap();
    let volume = engine.volume("v").unwrap();
    let data = content();
    now(volume.write(0, &data)).unwrap();
    now(engine.commit()).unwrap();

    // The first scan step in a busy pool ends in the second strip of the second row. The damaged
    // block is before that offset, and the strips from which it is reconstructed are on both sides
    // of the offset.
    let (bad, helper) = (ROW_BLOCKS + 2, ROW_BLOCKS + 16 + 2);
    assert!(bad < SCAN_BLOCKS_BUSY - 1 && SCAN_BLOCKS_BUSY < 2 * ROW_BLOCKS);
    let block = |number: usize| &data[number * BLOCK..(number + 1) * BLOCK];
    let (bad_disk, bad_at) = find(&disks, block(bad));
    let (away, _) = find(&disks, block(helper));
    assert_ne!(bad_disk, away);
    let row_of = |number| find(&disks, block(number)).1 / (16 * BLOCK);
    assert_eq!(row_of(bad), row_of(SCAN_BLOCKS_BUSY), "the step ends in the row of the damage");

    let scrubs = Cell::new(0);
    let met = Cell::new(false);
    engine.scrub_start().unwrap();
    let done = now(engine.run_scans(|_| {
        // After a client read, the next scan step is a small one.
        volume.try_read(0, &mut [0; BLOCK]).unwrap();
        let scan = engine.pool().scan_status().unwrap();
        match (scrubs.get(), scan.state) {
            (0, ScanState::Finished) => {
                assert_eq!((scan.damaged, scan.repaired_bytes), (0, 0));
                // Empty the cache. Otherwise the scrub would restore the block from the cache.
                engine.pool().set_cache_bytes(0);
                disks[bad_disk].corrupt(bad_at..bad_at + BLOCK, |byte| *byte ^= 0x5a);
                faults[away].fail(DeviceOp::Read);
                scrubs.set(1);
                engine.scrub_start().unwrap();
            }
            (1, ScanState::Running) if scan.damaged > 0 && !met.get() => {
                // The scan step that found the damage has ended. Let the disk `away` answer reads
                // again.
                assert_eq!(scan.damaged, 1);
                faults[away].clear();
                met.set(true);
            }
            (1, ScanState::Finished) => engine.stop(),
            _ => {}
        }
        std::future::ready(())
    }));
    done.unwrap();
    let scan = engine.pool().scan_status().unwrap();
    assert!(met.get(), "{scan:?}");
    assert_eq!(scan.damaged, 1, "{scan:?}");
    assert!(scan.repaired_bytes > 0, "{scan:?}");
    drop((engine, volume));

    let opened = Engine::open(as_devices(&disks), import(), &open);
    let volume = now(opened).unwrap().volume("v").unwrap();
    let mut out = vec![0; data.len()];
    now(volume.read(0, &mut out)).unwrap();
    assert!(out == data, "the way to bring the block back was kept");
}
