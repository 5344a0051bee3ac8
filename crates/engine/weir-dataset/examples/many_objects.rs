//! Measures a dataset with many small objects: stored bytes and processor time per object, and the
//! time of an import.
//!
//! For example `many_objects 1000000 256`: a million objects of 1 to 8 KiB with `--memory` of
//! 256 MiB. One line of JSON per stage. The disk is in memory and takes no processor time of a
//! kernel.
//!
//! Invariant: the content of an object is not compressible, and the end of its last block is zeros.

#![expect(clippy::print_stdout, reason = "the figures are the program's output")]

use std::error::Error;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use clap::Parser;
use futures_util::future::{Either, select};
use serde_json::json;
use weir_base::{BLOCK_BYTES, Guid, ObjectId, RecordSize, SystemClock};
use weir_bench::process_cpu_s;
use weir_block::Block;
use weir_dataset::{DatasetError, Engine, EngineOptions, ObjectChange, Volume};
use weir_device::{Device, MemoryDevice};
use weir_format::{ObjectSlot, SegmentClass, VdevKind, VdevRole};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, VdevSpec};

/// Number of the first object.
const FIRST: u64 = 16;
/// Bytes of a slot that the layer above uses, as for the attributes of a file.
const USED_BYTES: usize = 120;
/// Number of objects that a stage reads.
const READS: u64 = 20_000;

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
    let never = |_| std::future::pending::<()>();
    let run = std::pin::pin!(engine.run(never));
    let change = std::pin::pin!(volume.change_objects(changes));
    match now(select(change, run)) {
        Either::Left((done, _)) => done,
        Either::Right((ended, _)) => ended,
    }
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
}

fn main() -> Result<(), Box<dyn Error>> {
    let Args { objects, memory_mebibytes } = Args::parse();
    let disk_bytes = (objects * 8192).next_multiple_of(32 << 20) as usize + (1 << 30);
    let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new("memory", disk_bytes));
    let vdev =
        VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks: vec![Arc::clone(&disk)] };
    let clock = Arc::new(SystemClock::default());
    let memory_bytes = memory_mebibytes << 20;
    let options = EngineOptions { memory_bytes, clock, bug: PlantedBug::None };
    let mut guids = (1..).map(Guid);
    let mut guid = || guids.next().expect("the range has no end");
    let sizes = CreateOptions::default();
    let engine = now(Engine::create("tank", &[vdev], sizes, &options, &mut guid))?;
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
    });
    println!("{line}");
    drop((files, engine));

    let (before, started) = (cpu_us(), Instant::now());
    let engine = now(Engine::open(vec![disk], ImportOptions::new(guid()), &options))?;
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
    });
    println!("{line}");
    Ok(())
}
