//! Creates a raidz1 pool on three disks in memory, and imports it without one of them.
//!
//! `cargo run -p weir-pool --example import_degraded`
//!
//! Not here: volumes in the pool (weir-dataset).
//!
//! Invariant: the pool runs while not more legs are missing than the vdev has parity strips.

#![expect(clippy::print_stdout, reason = "the outcome is the result")]

use std::error::Error;
use std::sync::Arc;

use weir_base::{Guid, SystemClock};
use weir_device::{Device, MemoryDevice};
use weir_format::{VdevKind, VdevRole};
use weir_pool::{
    CreateOptions, ImportOptions, LegState, PlantedBug, PoolOptions, VdevSpec, create, discover,
    import,
};

fn main() -> Result<(), Box<dyn Error>> {
    weir_device::new_runtime()?.block_on(import_degraded())
}

async fn import_degraded() -> Result<(), Box<dyn Error>> {
    let disk = |number| Arc::new(MemoryDevice::new(format!("disk{number}"), 64 << 20));
    let mut disks: Vec<Arc<dyn Device>> = (0..3).map(|number| disk(number) as _).collect();
    let clock = Arc::new(SystemClock::default());
    let options = PoolOptions { cache_bytes: 16 << 20, clock, bug: PlantedBug::None };
    let mut guids = (1..).map(Guid);
    let mut guid = || guids.next().expect("the range has no end");
    let vdev = VdevSpec { kind: VdevKind::Raidz1, role: VdevRole::Data, disks: disks.clone() };
    drop(create("tank", &[vdev], CreateOptions::default(), &options, &mut guid).await?);

    for disk in &disks {
        let found = discover(&**disk).await??;
        println!("{}: pool {}, {:?}", disk.path(), found.label.name, found.txg);
    }
    disks.remove(1);
    let imported = import(disks, ImportOptions::new(guid()), &options).await?;
    let status = imported.pool.status();
    for leg in &status.vdevs[0].legs {
        println!("{}: {:?}", leg.path, leg.state);
    }
    assert_eq!(status.vdevs[0].legs[1].state, LegState::Missing);
    Ok(())
}
