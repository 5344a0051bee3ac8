//! Disks of sample and forged pools, the options of their engines, and data for them.
//!
//! Invariant: the disks of a sample never change; forged bytes overlay them.

use std::sync::Arc;

use weir_base::{Guid, SystemClock};
use weir_block::IoBuf;
use weir_dataset::EngineOptions;
use weir_device::{Device, Durability, MemoryDevice, Overlay};
use weir_pool::{ImportOptions, PlantedBug};

use crate::bench::now;
use crate::images::{IMAGE_BYTES, Image};
use crate::rng::Rng;

const BLOCK: u64 = 4096;
pub(crate) const SECTOR: u64 = 4096;
/// Memory in bytes for caches and dirty tables of the sample and of the exercises.
pub(crate) const MEMORY_BYTES: u64 = 2 << 20;

/// Disks of a pool: the unchanged disks of a sample, overlaid with the forged bytes.
#[derive(Clone)]
pub struct Disks {
    pub(crate) sample: Vec<Arc<dyn Device>>,
    pub(crate) forged: Vec<(usize, u64, Vec<u8>)>,
}

impl Disks {
    /// Disks of a pool in an older format.
    pub fn of_images(images: &[Image]) -> Self {
        let disk = |image: &Image| {
            let disk = MemoryDevice::new(image.name, IMAGE_BYTES);
            image.parts(|at, bytes| {
                let mut buf = IoBuf::zeroed(bytes.len());
                buf.copy_from_slice(bytes);
                let write = disk.write_at(at, Arc::new(buf), 0..bytes.len(), Durability::Cached);
                now(write).expect("a disk in memory");
            });
            Arc::new(disk) as Arc<dyn Device>
        };
        Self { sample: images.iter().map(disk).collect(), forged: Vec::new() }
    }

    pub(crate) fn read(&self, disk: usize, at: u64, len: usize) -> Vec<u8> {
        let end = at + len as u64;
        let start = at - at % SECTOR;
        let whole = (end.next_multiple_of(SECTOR) - start) as usize;
        let (done, buf) = now(self.sample[disk].read_at(start, IoBuf::zeroed(whole)));
        done.expect("a disk in memory");
        let mut bytes = buf[(at - start) as usize..][..len].to_vec();
        for (_, from, forged) in self.forged.iter().filter(|(of, ..)| *of == disk) {
            let (first, last) = (at.max(*from), end.min(from + forged.len() as u64));
            if first < last {
                let part = &forged[(first - from) as usize..(last - from) as usize];
                bytes[(first - at) as usize..(last - at) as usize].copy_from_slice(part);
            }
        }
        bytes
    }

    pub(crate) fn write(&mut self, disk: usize, at: u64, bytes: &[u8]) {
        let start = at - at % SECTOR;
        let end = (at + bytes.len() as u64).next_multiple_of(SECTOR);
        let mut whole = self.read(disk, start, (end - start) as usize);
        whole[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
        self.forged.push((disk, start, whole));
    }

    /// Returns devices with the contents of these disks; writes to the devices do not change
    /// `self`.
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        let device = |(n, disk): (usize, &Arc<dyn Device>)| {
            let overlay = Overlay::new(Arc::clone(disk));
            for (_, at, bytes) in self.forged.iter().filter(|(of, ..)| *of == n) {
                let mut buf = IoBuf::zeroed(bytes.len());
                buf.copy_from_slice(bytes);
                let write =
                    overlay.write_at(*at, Arc::new(buf), 0..bytes.len(), Durability::Cached);
                now(write).expect("an overlay");
            }
            Arc::new(overlay) as Arc<dyn Device>
        };
        self.sample.iter().enumerate().map(device).collect()
    }
}

pub(crate) fn options() -> EngineOptions {
    let clock = Arc::new(SystemClock::default());
    EngineOptions { memory_bytes: MEMORY_BYTES, clock, bug: PlantedBug::None }
}

pub(crate) fn import(force: bool) -> ImportOptions {
    ImportOptions { force, waits_for_all: true, ..ImportOptions::new(Guid(0x1234_5678)) }
}

pub(crate) fn noise(seed: u64, blocks: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..blocks * BLOCK / 8).flat_map(|_| rng.number().to_le_bytes()).collect()
}
