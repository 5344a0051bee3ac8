//! Opens a file as a disk, writes a block, flushes it and reads it. Then prints the time of a
//! durable write, and whether that time is plausible for the medium.
//!
//! `cargo run -p weir-device --example durable_write`
//!
//! Invariant: the block is on stable media before the example reads it.

#![expect(clippy::print_stdout, reason = "the measurement is the result")]

use std::error::Error;
use std::sync::Arc;

use weir_base::SystemClock;
use weir_block::IoBuf;
use weir_device::{
    Device, Durability, FLUSH_PROBE_BYTES, FileDevice, FlushVerdict, Medium, OpenMode,
    probe_flushes,
};

fn main() -> Result<(), Box<dyn Error>> {
    weir_device::new_runtime()?.block_on(durable_write())
}

async fn durable_write() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("disk");
    FileDevice::create_sparse(&path, 1 << 20)?;
    let disk: Arc<dyn Device> = Arc::new(FileDevice::open(&path, OpenMode::ReadWrite, 1 << 20)?);

    let mut data = IoBuf::zeroed(4096);
    data.fill(0x5a);
    disk.write_at(0, Arc::new(data), 0..4096, Durability::Cached).await?;
    disk.flush().await?;
    let (read, data) = disk.read_at(0, IoBuf::for_read(4096)).await;
    read?;
    assert!(data.iter().all(|byte| *byte == 0x5a));

    // The probe overwrites the block after the block of this example.
    let (clock, offset) = (SystemClock::default(), FLUSH_PROBE_BYTES as u64);
    let noise = |bytes: &mut [u8]| bytes.fill(0xc3);
    let probed = probe_flushes(&[Arc::clone(&disk)], offset, &clock, &noise).await?;
    let (figures, medium) = (probed[0], Medium::of(&path));
    let verdict = FlushVerdict::of(&figures, &medium);
    println!("{medium}: a durable write takes {:?}, {verdict:?}", figures.durable());
    Ok(())
}
