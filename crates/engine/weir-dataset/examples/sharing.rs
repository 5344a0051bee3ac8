//! Measures the cost and savings of shared blocks on a disk in a file: block clones, dedupe of
//! unique data compared with no dedupe, and dedupe of data that has some duplicates.
//!
//! `cargo xtask bench-services` makes the same measurements through a server.
//!
//! Invariant: ratios compare alternating runs of one process. The results go to stdout as JSON.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

use std::collections::HashSet;
use std::error::Error;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use clap::Parser;
use futures_util::future::{Either, select};
use serde_json::{Value, json};
use weir_base::{BLOCK_BYTES, Guid, SystemClock};
use weir_bench::content::Content;
use weir_bench::spec::ContentSpec;
use weir_codec::checksum::xxh3_128;
use weir_dataset::{Engine, EngineOptions, Volume, VolumeSpec};
use weir_device::{Device, FileDevice, OpenMode, new_runtime};
use weir_format::{Compression, PtrKind, SegmentClass, VdevKind, VdevRole};
use weir_pool::{CreateOptions, PlantedBug, VdevSpec};

type Failure = Box<dyn Error>;

const BLOCK: u64 = BLOCK_BYTES as u64;
const MEMORY_BYTES: u64 = 1 << 30;
const DISK_BYTES: u64 = 24 << 30;
const CLONED_BYTES: u64 = 1 << 30;
/// Blocks that one round of a load writes.
const TURN_BLOCKS: u64 = 96 << 10;
/// Size of the dedupe index while unique data is written: enough for a tenth of this data.
const SMALL_INDEX_BYTES: u64 = 1 << 20;
/// Blocks of one request.
const REQUEST_BLOCKS: usize = 8;

#[derive(Parser)]
struct Args {
    /// Directory for the disk file.
    #[arg(long)]
    dir: PathBuf,
    /// Rounds of each load.
    #[arg(long, default_value_t = 6)]
    rounds: u64,
    /// Measure only block clones.
    #[arg(long)]
    clones: bool,
}

struct Bench {
    engine: Arc<Engine>,
    disk: Arc<FileDevice>,
}

impl Bench {
    async fn new(args: &Args) -> Result<Self, Failure> {
        let path = args.dir.join("sharing.disk");
        FileDevice::create_sparse(&path, DISK_BYTES)?;
        let disk = Arc::new(FileDevice::open(&path, OpenMode::ReadWrite, DISK_BYTES)?);
        let disks = vec![Arc::clone(&disk) as Arc<dyn Device>];
        let vdev = VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks };
        let clock = Arc::new(SystemClock::default());
        let options = EngineOptions { memory_bytes: MEMORY_BYTES, clock, bug: PlantedBug::None };
        let mut guids = 0;
        let mut guid = || {
            guids += 1;
            Guid(guids)
        };
        let sizes = CreateOptions::default();
        let engine = Engine::create("sharing", &[vdev], sizes, &options, &mut guid).await?;
        Ok(Self { engine, disk })
    }

    async fn make(&self, name: &str, size_bytes: u64) -> Result<Arc<Volume>, Failure> {
        let (name, compression) = (name.to_owned(), Compression::Off);
        self.engine
            .create_volume(&VolumeSpec { name: name.clone(), size_bytes, compression })
            .await?;
        Ok(self.engine.volume(&name)?)
    }

    /// Writes blocks in a fixed, scattered order and commits them.
    async fn write(&self, to: &Volume, content: &Content, generation: u32) -> Result<(), Failure> {
        let blocks = to.size_bytes() / BLOCK;
        let mut request = vec![0; REQUEST_BLOCKS * BLOCK_BYTES];
        let together = REQUEST_BLOCKS as u64;
        for at in 0..TURN_BLOCKS / together {
            // The step has no factor in common with the number of requests, so each offset is
            // written once.
            let place = at * 7919 % (blocks / together) * together * BLOCK;
            content.fill(&mut request, place, generation);
            if !to.try_write(place, &request)? {
                to.write(place, &request).await?;
            }
        }
        Box::pin(self.engine.sync()).await?;
        Ok(())
    }
}

fn content(dedupe_pct: f64, unit_bytes: u32, seed: u64, total_bytes: u64) -> Content {
    let spec = ContentSpec { compress: 1.0, dedupe_pct, unit_bytes, seed };
    Content::new(&spec, BLOCK_BYTES as u32, total_bytes)
}

/// Resident memory of this process.
fn resident_bytes() -> Result<u64, Failure> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let resident: u64 = statm.split(' ').nth(1).ok_or("no resident memory")?.parse()?;
    Ok(resident * 4096)
}

/// Processor time of this process, which does not depend on other loads of the machine.
fn processor_seconds() -> Result<f64, Failure> {
    let schedstat = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds: u64 = schedstat.split(' ').next().ok_or("no times")?.parse()?;
    Ok(nanoseconds as f64 / 1e9)
}

/// Duration and processor time, in seconds.
#[derive(Clone, Copy)]
struct Spent {
    clock: f64,
    processor: f64,
}

/// Measures the duration and processor time of `work`.
async fn timed(work: impl Future<Output = Result<(), Failure>>) -> Result<Spent, Failure> {
    let (begun, processor) = (Instant::now(), processor_seconds()?);
    work.await?;
    let clock = begun.elapsed().as_secs_f64();
    Ok(Spent { clock, processor: processor_seconds()? - processor })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn clones(bench: &Bench, args: &Args) -> Result<Value, Failure> {
    let source = bench.make("source", CLONED_BYTES).await?;
    let data = content(0.0, 4096, 1, CLONED_BYTES);
    let mut request = vec![0; 1 << 20];
    for at in (0..CLONED_BYTES).step_by(request.len()) {
        data.fill(&mut request, at, 0);
        source.write(at, &request).await?;
    }
    bench.engine.sync().await?;
    let copy = bench.make("copy", CLONED_BYTES).await?;
    let pool = bench.engine.pool();
    // Counters of read bytes (data, nodes, total), then counters of written bytes.
    let moved = || {
        let stats = bench.disk.stats();
        let (read, written) = (&stats.read_bytes, &stats.written_bytes);
        [
            pool.read_bytes(PtrKind::Data),
            pool.read_bytes(PtrKind::Node),
            read.load(Ordering::Relaxed),
            pool.written_bytes(SegmentClass::Data),
            pool.written_bytes(SegmentClass::Meta),
            written.load(Ordering::Relaxed),
        ]
    };
    let (mut times, mut processor) = (Vec::new(), Vec::new());
    let mut most = [0; 6];
    for _ in 0..args.rounds {
        // Clone into an empty volume in each round.
        copy.zero(0, CLONED_BYTES).await?;
        bench.engine.sync().await?;
        let before = moved();
        let clone =
            async { Ok(bench.engine.clone_range(&source, 0, &copy, 0, CLONED_BYTES).await?) };
        let spent = timed(Box::pin(clone)).await?;
        times.push(spent.clock * 1e3);
        processor.push(spent.processor * 1e3);
        for ((most, after), before) in most.iter_mut().zip(moved()).zip(before) {
            *most = (after - before).max(*most);
        }
    }
    let saved = pool.space().saved_bytes;
    let [data_read, nodes_read, read, data_written, nodes_written, written] = most;
    for volume in ["copy", "source"] {
        bench.engine.destroy_volume(volume, true).await?;
    }
    Ok(json!({
        "clone_1gib_ms": median(times.clone()),
        "clone_1gib_ms_all": times,
        "clone_1gib_processor_ms": median(processor),
        "data_read_bytes": data_read,
        "nodes_read_bytes": nodes_read,
        "disk_read_bytes": read,
        "data_written_bytes": data_written,
        "nodes_written_bytes": nodes_written,
        "disk_written_bytes": written,
        "saved_bytes": saved,
    }))
}

async fn unique(bench: &Bench, args: &Args) -> Result<Value, Failure> {
    let size = 2 * TURN_BLOCKS * BLOCK;
    let (off, on) = (bench.make("off", size).await?, bench.make("on", size).await?);
    bench.engine.set_dedupe("on", true).await?;
    bench.engine.set_dedupe_memory(SMALL_INDEX_BYTES);
    let (mut ratios, mut processor, mut resident) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..args.rounds as u32 {
        let (plain, looked) = (content(0.0, 4096, 2, size), content(0.0, 4096, 3, size));
        // Alternate the order of the two loads from round to round.
        let (plain, looked) = (bench.write(&off, &plain, round), bench.write(&on, &looked, round));
        let (plain, looked) = if round % 2 == 0 {
            let plain = timed(plain).await?;
            (plain, timed(looked).await?)
        } else {
            let looked = timed(looked).await?;
            (timed(plain).await?, looked)
        };
        ratios.push(plain.clock / looked.clock);
        processor.push(plain.processor / looked.processor);
        resident.push(resident_bytes()?);
    }
    let index = bench.engine.pool().hint_figures();
    for volume in ["off", "on"] {
        bench.engine.destroy_volume(volume, true).await?;
    }
    Ok(json!({
        "rate_on_by_off": median(ratios.clone()),
        "rate_on_by_off_all": ratios,
        "blocks_per_processor_second_on_by_off": median(processor),
        "index_slots": index.slots,
        "index_bytes": index.bytes,
        "blocks_by_slots": (args.rounds * TURN_BLOCKS) as f64 / index.slots as f64,
        "resident_bytes": resident,
    }))
}

async fn duplicates(bench: &Bench) -> Result<Value, Failure> {
    let size = TURN_BLOCKS * BLOCK;
    bench.engine.set_dedupe_memory(64 << 20);
    let mut found = Vec::new();
    for unit in [4096, 8192, 16_384, 32_768] {
        let volume = bench.make("dup", size).await?;
        bench.engine.set_dedupe("dup", true).await?;
        let data = content(40.0, unit, u64::from(unit), size);
        let mut known = HashSet::new();
        let mut block = [0; BLOCK_BYTES];
        for at in (0..size).step_by(BLOCK_BYTES) {
            data.fill(&mut block, at, 0);
            known.insert(xxh3_128(&block));
        }
        let duplicates = TURN_BLOCKS - known.len() as u64;
        let before = bench.engine.pool().hint_figures().hits;
        let mut request = vec![0; 64 << 10];
        for at in (0..size).step_by(request.len()) {
            data.fill(&mut request, at, 0);
            volume.write(at, &request).await?;
        }
        bench.engine.sync().await?;
        let hits = bench.engine.pool().hint_figures().hits - before;
        found.push(json!({
            "unit_bytes": unit,
            "duplicates_of_blocks": duplicates as f64 / TURN_BLOCKS as f64,
            "found_of_duplicates": hits as f64 / duplicates as f64,
        }));
        drop(volume);
        bench.engine.destroy_volume("dup", true).await?;
    }
    Ok(Value::Array(found))
}

async fn measure(bench: &Bench, args: &Args) -> Result<(), Failure> {
    let clones = Box::pin(clones(bench, args)).await?;
    if args.clones {
        println!("{}", serde_json::to_string_pretty(&clones)?);
        return Ok(());
    }
    let unique = Box::pin(unique(bench, args)).await?;
    let duplicates = duplicates(bench).await?;
    let wrong = bench.engine.check_references().await?;
    assert!(wrong.is_empty(), "{wrong:?}");
    let all = json!({ "clone": clones, "unique": unique, "duplicates": duplicates });
    println!("{}", serde_json::to_string_pretty(&all)?);
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args = Args::parse();
    new_runtime()?.block_on(async {
        let bench = Bench::new(&args).await?;
        // This task commits when much data is dirty or another task waits for a commit.
        let commits = pin!(bench.engine.run(|_| std::future::pending::<()>()));
        match select(Box::pin(measure(&bench, &args)), commits).await {
            Either::Left((done, _)) => done,
            Either::Right((ended, _)) => Err(format!("the engine ended: {ended:?}").into()),
        }
    })
}
