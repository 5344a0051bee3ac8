//! Creates a pool on a mirror of two disks in memory, crashes, and imports the pool: the flushed
//! block survives, the unflushed block is lost.
//!
//! `cargo run -p weir-dataset --example crash_and_reopen`
//!
//! Invariant: the first engine never commits after the writes.

#![expect(clippy::print_stdout, reason = "the outcome is the result")]

use std::error::Error;
use std::sync::Arc;

use weir_base::{BLOCK_BYTES, Guid, SystemClock};
use weir_dataset::{Engine, EngineOptions, VolumeSpec};
use weir_device::{Device, MemoryDevice};
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, VdevSpec};

fn main() -> Result<(), Box<dyn Error>> {
    weir_device::new_runtime()?.block_on(crash_and_reopen())
}

async fn crash_and_reopen() -> Result<(), Box<dyn Error>> {
    let disk = |path| Arc::new(MemoryDevice::new(path, 64 << 20)) as Arc<dyn Device>;
    let disks = vec![disk("left"), disk("right")];
    let clock = Arc::new(SystemClock::default());
    let options = EngineOptions { memory_bytes: 64 << 20, clock, bug: PlantedBug::None };
    let mut guids = (1..).map(Guid);
    let mut guid = || guids.next().expect("the range has no end");
    let vdev = VdevSpec { kind: VdevKind::Mirror, role: VdevRole::Data, disks: disks.clone() };
    let sizes = CreateOptions::default();
    let engine = Engine::create("tank", &[vdev], sizes, &options, &mut guid).await?;
    let (name, compression) = ("vol".to_owned(), Compression::Lz4);
    engine.create_volume(&VolumeSpec { name, size_bytes: 16 << 20, compression }).await?;

    let volume = engine.volume("vol")?;
    volume.write(0, &[1; BLOCK_BYTES]).await?;
    engine.flush(&volume).await?;
    volume.write(BLOCK_BYTES as u64, &[2; BLOCK_BYTES]).await?;
    // As in a crash: the memory of the engine is gone, the disks stay.
    drop((volume, engine));

    let engine = Engine::open(disks, ImportOptions::new(guid()), &options).await?;
    let mut blocks = [0xff; 2 * BLOCK_BYTES];
    engine.volume("vol")?.read(0, &mut blocks).await?;
    let (flushed, unflushed) = blocks.split_at(BLOCK_BYTES);
    println!("flushed block: bytes of {}; unflushed block: bytes of {}", flushed[0], unflushed[0]);
    Ok(())
}
