//! Measures a dataset with many small objects: stored bytes, processor time and memory per object,
//! and the time of an import; or the cost of the cleaner.
//!
//! For example, `many_objects 1000000 256` creates a million objects of 1 to 8 KiB with `--memory`
//! of 256 MiB. `many_objects 200000 256 --full 80` measures the cleaner: objects of one block (with
//! `--volume`, blocks of a volume) fill a disk to 80 %, and each is overwritten once on average.
//! The program prints one line of JSON per stage. The disk is in memory, so its operations take no
//! processor time of a kernel.
//!
//! Invariant: the content of an object is not compressible, and the end of its last block is zeros.

#![expect(clippy::print_stdout, reason = "the figures are the program's output")]

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use clap::Parser;
use futures_util::future::{Either, select};
use serde_json::json;
use weir_base::{BLOCK_BYTES, Compression, Guid, ObjectId, RecordSize, SystemClock};
use weir_bench::process_cpu_s;
use weir_block::Block;
use weir_dataset::{
    DatasetError, Engine, EngineOptions, LogOrder, ObjectChange, ObjectRecord, SyncOf, Volume,
    VolumeSpec,
};
use weir_device::{Device, MemoryDevice};
use weir_format::log::OBJECT_TYPE_MIN;
use weir_format::{ObjectSlot, SegmentClass, VdevKind, VdevRole};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, VdevSpec};

/// Number of the first object.
const FIRST: u64 = 16;
/// Bytes of a slot that the layer above uses, as for the attributes of a file.
const USED_BYTES: usize = 120;
/// Number of objects that are created and synced one by one.
const SYNCS: u64 = 5_000;
/// Number of objects that a stage reads.
const READS: u64 = 20_000;

/// Polls a future until it completes. Operations of the memory disk complete at once, so no future
/// waits for a device.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
    }
}

/// SplitMix64.
fn random(seed: u64) -> u64 {
    let z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Bytes of an object: 1 to 8 KiB.
fn bytes_of(object: u64) -> usize {
    1024 + (random(object) % (7 * 1024 + 1)) as usize
}

/// Changes that create an object.
fn creation(object: u64) -> Vec<ObjectChange> {
    let (id, size) = (ObjectId(object), RecordSize::BLOCK);
    let mut body = Box::new([0; ObjectSlot::BODY_BYTES]);
    for (at, word) in body[..USED_BYTES].chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&random(object + at as u64).to_le_bytes());
    }
    let mut changes = vec![ObjectChange::SetSlot { object: id, size, body }];
    let bytes = bytes_of(object);
    for record in 0..bytes.div_ceil(BLOCK_BYTES) {
        let mut block = [0; BLOCK_BYTES];
        let used = (bytes - record * BLOCK_BYTES).min(BLOCK_BYTES);
        for (at, word) in block[..used].chunks_mut(8).enumerate() {
            let seed = object << 20 | (record << 10 | at) as u64;
            word.copy_from_slice(&random(seed).to_le_bytes()[..word.len()]);
        }
        let (record, blocks) = (record as u64, vec![Block::copy_of(&block)]);
        changes.push(ObjectChange::Write { object: id, size, record, blocks });
    }
    changes
}

fn change(
    engine: &Engine,
    volume: &Volume,
    changes: Vec<ObjectChange>,
) -> Result<(), DatasetError> {
    committing(engine, volume.change_objects(changes))
}

/// Runs a change while the engine commits on request.
fn committing(
    engine: &Engine,
    change: impl Future<Output = Result<(), DatasetError>>,
) -> Result<(), DatasetError> {
    let never = |_| std::future::pending::<()>();
    let run = std::pin::pin!(engine.run(never));
    match now(select(std::pin::pin!(change), run)) {
        Either::Left((done, _)) => done,
        Either::Right((ended, _)) => ended,
    }
}

/// A block that does not compress.
fn noise(seed: u64) -> Block {
    let mut block = [0; BLOCK_BYTES];
    for (at, word) in block.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&random(seed << 10 | at as u64).to_le_bytes());
    }
    Block::copy_of(&block)
}

/// Overwrites blocks of objects or of a volume at random, on a disk that they fill to `percent`.
/// Prints the bytes that the cleaner moved.
fn measure_cleaner(args: &Args, percent: u64) -> Result<(), Box<dyn Error>> {
    let count = args.objects;
    // Each object has a block, a compressed slot and its part of the nodes.
    let live = count * 4160;
    let disk_bytes = (live * 100 / percent).next_multiple_of(32 << 20) as usize + (96 << 20);
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new("memory", disk_bytes));
    let engine = args.create_pool(disk, &mut (1..).map(Guid))?;
    if args.volume {
        let size = VolumeSpec {
            name: "data".to_owned(),
            size_bytes: (count + FIRST) * BLOCK_BYTES as u64,
            compression: Compression::Lz4,
        };
        now(engine.create_volume(&size))?;
    } else {
        now(engine.create_object_dataset("data", [0; 40], &[]))?;
    }
    let data = engine.volume("data")?;
    let write = |number: u64, seed: u64| {
        let block = noise(seed);
        if args.volume {
            committing(&engine, data.write(number * BLOCK_BYTES as u64, &block[..]))
        } else {
            let (object, size) = (ObjectId(number), RecordSize::BLOCK);
            let mut body = Box::new([0; ObjectSlot::BODY_BYTES]);
            body[..8].copy_from_slice(&seed.to_le_bytes());
            let slot = ObjectChange::SetSlot { object, size, body };
            let write = ObjectChange::Write { object, size, record: 0, blocks: vec![block] };
            change(&engine, &data, vec![slot, write])
        }
    };
    for number in FIRST..FIRST + count {
        write(number, number)?;
    }
    now(engine.sync())?;
    let pool = engine.pool();
    let full = pool.space();
    let moved = |class| pool.written_bytes(class);
    let (before, cleaned, stored) =
        (cpu_us(), moved(SegmentClass::Clean), moved(SegmentClass::Data));
    for step in 0..count {
        write(FIRST + random(step + count) % count, step + (1 << 40))?;
    }
    now(engine.sync())?;
    let line = json!({
        "stage": "overwritten",
        "of": if args.volume { "volume" } else { "objects" },
        "live_bytes": full.live_bytes,
        "total_bytes": full.total_bytes,
        "cpu_ns_per_overwrite": (cpu_us() - before) * 1000 / count,
        "data_bytes_per_overwrite": (moved(SegmentClass::Data) - stored) / count,
        "cleaned_bytes_per_overwrite": (moved(SegmentClass::Clean) - cleaned) / count,
    });
    println!("{line}");
    Ok(())
}

/// Creates objects with log records, and syncs each of them.
fn measure_syncs(engine: &Engine, files: &Volume, first: u64) -> Result<(), DatasetError> {
    let before = cpu_us();
    for object in first..first + SYNCS {
        let record = ObjectRecord {
            object: ObjectId(object),
            kind: OBJECT_TYPE_MIN,
            order: LogOrder::Namespace { names: vec![ObjectId(object)], ends: Vec::new() },
            payload: vec![7; USED_BYTES],
            blocks: vec![noise(object)],
            frees: false,
        };
        let changes = creation(object);
        committing(engine, files.change_logged_objects(changes, record))?;
        committing(engine, engine.sync_objects(files, SyncOf::Object(ObjectId(object))))?;
    }
    let line = json!({
        "stage": "created and synced",
        "cpu_ns_per_object": (cpu_us() - before) * 1000 / SYNCS,
    });
    println!("{line}");
    now(engine.sync())
}

/// Resident memory of this process without the disk, which is its largest mapping.
fn resident_bytes() -> Result<u64, Box<dyn Error>> {
    let maps = fs::read_to_string("/proc/self/smaps")?;
    let sizes = maps.lines().filter_map(|line| line.strip_prefix("Rss:"));
    let sizes = sizes.map(|line| line.trim().trim_end_matches(" kB").parse::<u64>());
    let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
    let disk = sizes.iter().max().ok_or("no mapping in smaps")?;
    Ok((sizes.iter().sum::<u64>() - disk) << 10)
}

/// Processor time of this process in microseconds.
fn cpu_us() -> u64 {
    let (user, system) = process_cpu_s();
    Duration::from_secs_f64(user + system).as_micros() as u64
}

/// Measures a dataset with many small objects; prints one line of JSON per stage.
#[derive(Parser)]
struct Args {
    /// Number of objects.
    objects: u64,
    /// Memory budget, as the server's `--memory`.
    memory_mebibytes: u64,
    /// Measure the cleaner, on a disk that is full to this percentage.
    #[arg(long)]
    full: Option<u64>,
    /// Overwrite the blocks of a volume instead of objects.
    #[arg(long, requires = "full")]
    volume: bool,
}

impl Args {
    fn options(&self) -> EngineOptions {
        let clock = Arc::new(SystemClock::default());
        let memory_bytes = self.memory_mebibytes << 20;
        EngineOptions { memory_bytes, clock, bug: PlantedBug::None }
    }

    fn create_pool(
        &self,
        disk: Arc<dyn Device>,
        guids: &mut impl Iterator<Item = Guid>,
    ) -> Result<Arc<Engine>, DatasetError> {
        let vdev = VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks: vec![disk] };
        let mut guid = || guids.next().expect("the range has no end");
        let sizes = CreateOptions::default();
        now(Engine::create("tank", &[vdev], sizes, &self.options(), &mut guid))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(percent) = args.full {
        return measure_cleaner(&args, percent);
    }
    let objects = args.objects;
    let disk_bytes = (objects * 8192).next_multiple_of(32 << 20) as usize + (1 << 30);
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new("memory", disk_bytes));
    let mut guids = (1..).map(Guid);
    let engine = args.create_pool(Arc::clone(&disk), &mut guids)?;
    now(engine.create_object_dataset("files", [0; 40], &[]))?;
    let files = engine.volume("files")?;
    let (before, live_before) = (cpu_us(), engine.pool().space().live_bytes);
    let mut content_us = 0;
    for object in FIRST..FIRST + objects {
        let started = Instant::now();
        let changes = creation(object);
        content_us += started.elapsed().as_micros() as u64;
        change(&engine, &files, changes)?;
    }
    now(engine.sync())?;
    let content: u64 = (FIRST..FIRST + objects).map(|object| bytes_of(object) as u64).sum();
    let pool = engine.pool();
    let written = [SegmentClass::Data, SegmentClass::Meta, SegmentClass::Root, SegmentClass::Clean]
        .map(|class| pool.written_bytes(class));
    let line = json!({
        "stage": "created",
        "objects": objects,
        "content_bytes_per_object": content / objects,
        "live_bytes_per_object": (pool.space().live_bytes - live_before) / objects,
        "written_bytes_per_object": written.iter().sum::<u64>() / objects,
        "cpu_ns_per_object": (cpu_us() - before - content_us) * 1000 / objects,
        "resident_bytes": resident_bytes()?,
    });
    println!("{line}");
    measure_syncs(&engine, &files, FIRST + objects)?;
    drop((files, engine));

    let (before, started) = (cpu_us(), Instant::now());
    let how = ImportOptions::new(guids.next().expect("the range has no end"));
    let engine = now(Engine::open(vec![disk], how, &args.options()))?;
    let line = json!({
        "stage": "imported",
        "ms": started.elapsed().as_millis() as u64,
        "cpu_ms": (cpu_us() - before) / 1000,
    });
    println!("{line}");
    let files = engine.volume("files")?;
    let (before, reads) = (cpu_us(), READS.min(objects));
    for read in 0..reads {
        let object = ObjectId(FIRST + random(read) % objects);
        let slot = now(files.object_slot(object))?.ok_or("an object is missing")?;
        let blocks = now(files.read_object(object, slot.0, 0))?.ok_or("a record is missing")?;
        assert_eq!(blocks.len(), 1);
    }
    let line = json!({
        "stage": "read at random",
        "cpu_ns_per_object": (cpu_us() - before) * 1000 / reads,
        "resident_bytes": resident_bytes()?,
    });
    println!("{line}");
    Ok(())
}
