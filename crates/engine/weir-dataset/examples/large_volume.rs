//! Measures the RAM that a large volume takes: fully written, then overwritten at random.
//!
//! Speeds are not measured: the disk is simulated, so its times mean nothing.
//!
//! For example, `large_volume /var/tmp 16 256 3` writes a volume of 16 GiB with `--memory` of 256
//! MiB and overwrites it three times. The program prints one line of JSON per stage.
//!
//! Invariants:
//! - the program uses the server's engine and stores blocks uncompressed, so the pool has as many
//!   segments, nodes and tables as on a real disk of that size;
//! - the disk's contents are in two files, not in RAM. If a sector only repeats a number, one file
//!   has this number; the other file has all other sectors.

#![expect(clippy::print_stdout, reason = "the figures are the program's output")]

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use clap::Parser;
use futures_util::future::{Either, select};
use serde_json::json;
use weir_base::{BLOCK_BYTES, Guid, SystemClock};
use weir_block::{Arena, IoBuf};
use weir_cache::CacheClass;
use weir_dataset::{DatasetError, Engine, EngineOptions, Volume, VolumeSpec};
use weir_device::{
    Device, DeviceError, DeviceOp, DeviceStats, Durability, Geometry, IoFuture, ReadFuture,
};
use weir_format::{Compression, SegmentClass, VdevKind, VdevRole};
use weir_pool::{CreateOptions, PlantedBug, VdevSpec};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Live data in percent of the pool's capacity, once the volume is written.
const LIVE_PERCENT: u64 = 80;
/// Blocks of each request in the first pass.
const REQUEST_BLOCKS: usize = 256;

/// A large disk that needs little space: most of its sectors repeat one number, and only that
/// number is stored.
struct PatternDisk {
    len_bytes: u64,
    /// For each sector the number that it repeats, or [`Self::RAW`] if it has other content.
    numbers: File,
    /// Sectors with other content, at their offsets; a sparse file.
    raw: File,
    stats: DeviceStats,
}

impl PatternDisk {
    const RAW: u64 = u64::MAX;

    fn new(directory: &Path, len_bytes: u64) -> std::io::Result<Self> {
        let open = |name: &str| {
            let path = directory.join(name);
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
            // Unlink the file now, so that it disappears when the process ends, also after a crash.
            fs::remove_file(path)?;
            Ok::<_, std::io::Error>(file)
        };
        let id = std::process::id();
        let numbers = open(&format!("weir-numbers-{id}"))?;
        numbers.set_len(len_bytes / BLOCK * 8)?;
        let raw = open(&format!("weir-raw-{id}"))?;
        raw.set_len(len_bytes)?;
        Ok(Self { len_bytes, numbers, raw, stats: DeviceStats::default() })
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        let mut numbers = vec![0; out.len() / BLOCK_BYTES * 8];
        self.numbers.read_exact_at(&mut numbers, offset / BLOCK * 8)?;
        let sectors = out.as_chunks_mut::<BLOCK_BYTES>().0.iter_mut();
        for ((sector, number), at) in sectors.zip(numbers.as_chunks::<8>().0).zip(offset / BLOCK..)
        {
            if u64::from_le_bytes(*number) == Self::RAW {
                self.raw.read_exact_at(sector, at * BLOCK)?;
            } else {
                sector.as_chunks_mut::<8>().0.fill(*number);
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, content: &[u8]) -> std::io::Result<()> {
        let mut numbers = Vec::with_capacity(content.len() / BLOCK_BYTES * 8);
        for (sector, at) in content.as_chunks::<BLOCK_BYTES>().0.iter().zip(offset / BLOCK..) {
            let repeats = sector[8..] == sector[..BLOCK_BYTES - 8];
            let first = sector.first_chunk::<8>().expect("a sector is longer");
            if repeats && u64::from_le_bytes(*first) != Self::RAW {
                numbers.extend(first);
            } else {
                self.raw.write_all_at(sector, at * BLOCK)?;
                numbers.extend(Self::RAW.to_le_bytes());
            }
        }
        self.numbers.write_all_at(&numbers, offset / BLOCK * 8)
    }

    fn tell(&self, done: std::io::Result<()>, op: DeviceOp, at: u64) -> Result<(), DeviceError> {
        done.map_err(|source| DeviceError { path: self.path().to_owned(), op, offset: at, source })
    }
}

impl Device for PatternDisk {
    fn path(&self) -> &'static str {
        "pattern"
    }

    fn geometry(&self) -> Geometry {
        Geometry { len_bytes: self.len_bytes, sector_bytes: BLOCK_BYTES as u32 }
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn read_at(&self, offset: u64, mut buf: IoBuf) -> ReadFuture<'_> {
        Box::pin(async move {
            let done = self.read(offset, &mut buf);
            (self.tell(done, DeviceOp::Read, offset), buf)
        })
    }

    fn write_at(
        &self,
        offset: u64,
        data: Arc<IoBuf>,
        range: Range<usize>,
        _durability: Durability,
    ) -> IoFuture<'_, Result<(), DeviceError>> {
        Box::pin(
            async move { self.tell(self.write(offset, &data[range]), DeviceOp::Write, offset) },
        )
    }

    fn flush(&self) -> IoFuture<'_, Result<(), DeviceError>> {
        Box::pin(async { Ok(()) })
    }

    fn discard(&self, _offset: u64, _len_bytes: u64) -> IoFuture<'_, Result<(), DeviceError>> {
        Box::pin(async { Ok(()) })
    }
}

/// Polls a future until it completes. Operations of this disk complete at once, so nothing waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
    }
}

/// The pool and its only volume.
struct Bench {
    engine: Arc<Engine>,
    volume: Arc<Volume>,
    blocks: u64,
    next: u64,
}

impl Bench {
    fn new(directory: &Path, blocks: u64, memory_bytes: u64) -> Result<Self, Box<dyn Error>> {
        let disk_bytes = blocks * BLOCK / LIVE_PERCENT * 102;
        let disk = PatternDisk::new(directory, disk_bytes.next_multiple_of(32 << 20) + (1 << 30))?;
        let vdev = VdevSpec {
            kind: VdevKind::Disk,
            role: VdevRole::Data,
            disks: vec![Arc::new(disk) as Arc<dyn Device>],
        };
        let sizes = CreateOptions { log_bytes: Some(64 << 20), ..CreateOptions::default() };
        let clock = Arc::new(SystemClock::default());
        let options = EngineOptions { memory_bytes, clock, bug: PlantedBug::None };
        let mut guids = 0;
        let mut guid = || {
            guids += 1;
            Guid(guids)
        };
        let engine = now(Engine::create("large", &[vdev], sizes, &options, &mut guid))?;
        let size_bytes = blocks * BLOCK;
        let compression = Compression::Off;
        now(engine.create_volume(&VolumeSpec { name: "v".to_owned(), size_bytes, compression }))?;
        let volume = engine.volume("v")?;
        Ok(Self { engine, volume, blocks, next: 1 })
    }

    /// Writes blocks of numbers that were not written before.
    fn write(&mut self, block: u64, request: &mut [u8]) -> Result<(), DatasetError> {
        for page in request.as_chunks_mut::<BLOCK_BYTES>().0 {
            self.next += 1;
            page.as_chunks_mut::<8>().0.fill(self.next.to_le_bytes());
        }
        if self.volume.try_write(block * BLOCK, request)? {
            return Ok(());
        }
        let never = |_| std::future::pending::<()>();
        let run = std::pin::pin!(self.engine.run(never));
        let write = std::pin::pin!(self.volume.write(block * BLOCK, request));
        match now(select(write, run)) {
            Either::Left((done, _)) => done,
            Either::Right((ended, _)) => ended,
        }
    }

    fn fill(&mut self, blocks: Range<u64>) -> Result<(), DatasetError> {
        let mut request = vec![0; REQUEST_BLOCKS * BLOCK_BYTES];
        for block in blocks.step_by(REQUEST_BLOCKS) {
            self.write(block, &mut request)?;
        }
        now(self.engine.sync())
    }

    fn overwrite(&mut self, blocks: u64) -> Result<(), DatasetError> {
        let mut request = vec![0; BLOCK_BYTES];
        let mut random = self.next;
        for _ in 0..blocks {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            self.write((random >> 20) % self.blocks, &mut request)?;
        }
        now(self.engine.sync())
    }

    fn tell(&self, stage: &str) -> Result<(), Box<dyn Error>> {
        let pool = self.engine.pool();
        let tables = pool.table_memory();
        let nodes = pool.cache().stats(CacheClass::Node).bytes;
        let data = pool.cache().stats(CacheClass::Data).bytes;
        let (resident, peak) = resident_bytes()?;
        let moved = pool.written_bytes(SegmentClass::Clean);
        let line = json!({
            "stage": stage,
            "volume_bytes": self.blocks * BLOCK,
            "used_bytes": self.volume.info().used_bytes,
            "resident_bytes": resident,
            "peak_bytes": peak,
            "arena_bytes": Arena::live_bytes(),
            "node_cache_bytes": nodes,
            "data_cache_bytes": data,
            "segments": tables.segments,
            "segment_bytes": tables.segment_bytes,
            "tables": tables.remap_tables,
            "stored_table_bytes": tables.remap_stored_bytes,
            "table_bytes": tables.remap_bytes,
            "list_bytes": tables.remap_list_bytes,
            "moved_bytes": moved,
        });
        println!("{line}");
        Ok(())
    }
}

/// Resident memory of this process: the present value and the maximum so far.
fn resident_bytes() -> Result<(u64, u64), Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.and_then(|number| number.parse::<u64>().ok()).ok_or("no VmRSS in the status")
    };
    Ok((kib("VmRSS:")? << 10, kib("VmHWM:")? << 10))
}

/// Measures the RAM that a large volume takes; prints one line of JSON per stage.
#[derive(Parser)]
struct Args {
    /// Directory for the files of the disk.
    directory: PathBuf,
    /// Size of the volume.
    gibibytes: u64,
    /// Memory budget, as the server's `--memory`.
    memory_mebibytes: u64,
    /// Number of times that the whole volume is overwritten.
    overwrites: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Args { directory, gibibytes, memory_mebibytes, overwrites } = Args::parse();
    let blocks = (gibibytes << 30) / BLOCK;
    let mut bench = Bench::new(&directory, blocks, memory_mebibytes << 20)?;
    bench.tell("empty")?;
    for quarter in 0..4 {
        bench.fill(blocks * quarter / 4..blocks * (quarter + 1) / 4)?;
        bench.tell("written")?;
    }
    for _ in 0..overwrites * 2 {
        bench.overwrite(blocks / 2)?;
        bench.tell("overwritten")?;
    }
    Ok(())
}
