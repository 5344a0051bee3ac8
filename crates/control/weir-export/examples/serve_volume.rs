//! Serves a volume of a new pool over NBD until standard input ends: `serve_volume FILE SOCKET`,
//! then `qemu-io -f raw nbd+unix:///vol?socket=SOCKET`.
//!
//! Invariant: the pool is committed once more before the program ends.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use weir_base::{Guid, SystemClock};
use weir_dataset::{Engine, EngineOptions, VolumeSpec};
use weir_device::{Device, FileDevice, OpenMode};
use weir_export::Registry;
use weir_format::{Compression, VdevKind, VdevRole};
use weir_nbd::{DEFAULT_PORT, Nbd, limits::OWN_BYTES};
use weir_pool::{CreateOptions, PlantedBug, VdevSpec};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(socket)) = (arguments.next(), arguments.next()) else {
        return Err("usage: serve_volume FILE SOCKET".into());
    };
    weir_device::new_runtime()?.block_on(serve(Path::new(&file), &socket))
}

async fn serve(file: &Path, socket: &str) -> Result<(), Box<dyn Error>> {
    FileDevice::create_sparse(file, 1 << 30)?;
    let disk: Arc<dyn Device> = Arc::new(FileDevice::open(file, OpenMode::ReadWrite, 0)?);
    let vdevs = [VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks: vec![disk] }];
    let clock = Arc::new(SystemClock::default());
    let options = EngineOptions { memory_bytes: 256 << 20, clock, bug: PlantedBug::None };
    let mut guids = (1..).map(Guid);
    let mut guid = || guids.next().expect("the range has no end");
    let sizes = CreateOptions::default();
    let engine = Engine::create("tank", &vdevs, sizes, &options, &mut guid).await?;
    let committer = Arc::clone(&engine);
    let commits = compio::runtime::spawn(async move { committer.run(compio::time::sleep).await });
    let (name, compression) = ("vol".to_owned(), Compression::Lz4);
    engine.create_volume(&VolumeSpec { name, size_bytes: 512 << 20, compression }).await?;
    let exports = Arc::new(Registry::default());
    exports.offer("vol", Arc::clone(&engine), engine.volume("vol")?, false, None);
    let address = weir_net::Address::parse(&format!("unix:{socket}"), DEFAULT_PORT)?;
    let protocol = Arc::new(Nbd::new(exports, weir_net::Budget::new(32 << 20, OWN_BYTES)));
    let server = weir_net::serve(vec![weir_net::Listener::bind(&address)?], protocol, 1)?;
    let wait = || std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    compio::runtime::spawn_blocking(wait).await.expect("the thread has no panic")?;
    server.stop();
    engine.stop();
    Ok(commits.await.expect("the committer has no panic")?)
}
