//! Serves a filesystem over NFSv3: a pool on a file, a filesystem, a share. For clients:
//! `mount -t nfs -o vers=3,nolock,port=20490,mountport=20490 127.0.0.1:/tank/home /mnt`
//!
//! Usage: `serve_files FILE ADDRESS [RULE]`, for example `serve_files /tmp/disk 127.0.0.1:20490`.
//!
//! Invariant: the program runs until its standard input ends.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use weir_base::{Guid, RecordSize, SystemClock};
use weir_dataset::{Engine, EngineOptions};
use weir_device::{Device, FileDevice, OpenMode};
use weir_format::files::TimeStamp;
use weir_format::{VdevKind, VdevRole};
use weir_fs::{Filesystem, InodeRef, Layout, NameCase, ROOT};
use weir_net::{Address, Budget, Listener};
use weir_nfs::limits::OWN_BYTES;
use weir_nfs::{HandleKey, Nfs, Rules, Server, Share, ShareId, WatcherSlot};
use weir_pool::{CreateOptions, PlantedBug, VdevSpec};

const NFS_PORT: u16 = 2049;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: serve_files FILE ADDRESS [RULE]".into());
    };
    let rule = arguments.next().unwrap_or_else(|| "127.0.0.1:no_root_squash,insecure".to_owned());
    weir_device::new_runtime()?.block_on(serve(Path::new(&file), &address, &rule))
}

async fn serve(file: &Path, address: &str, rule: &str) -> Result<(), Box<dyn Error>> {
    FileDevice::create_sparse(file, 4 << 30)?;
    let disk: Arc<dyn Device> = Arc::new(FileDevice::open(file, OpenMode::ReadWrite, 0)?);
    let vdevs = [VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks: vec![disk] }];
    let clock = Arc::new(SystemClock::default());
    let options = EngineOptions { memory_bytes: 512 << 20, clock, bug: PlantedBug::None };
    let mut guids = (1..).map(Guid);
    let mut guid = || guids.next().expect("the range has no end");
    let sizes = CreateOptions::default();
    let engine = Engine::create("tank", &vdevs, sizes, &options, &mut guid).await?;
    let committer = Arc::clone(&engine);
    let commits = compio::runtime::spawn(async move { committer.run(compio::time::sleep).await });
    let record_size = RecordSize::from_shift(5).expect("128 KiB");
    let layout = Layout { hash_key: 7, record_size, case: NameCase::Sensitive };
    let files = Filesystem::create(&engine, "home", layout, &[], Box::new(now)).await?;
    let files = Arc::new(files);
    let background = Arc::clone(&files);
    let freeing = compio::runtime::spawn(async move { background.run_background().await });
    let root = InodeRef::from(&files.attributes(ROOT).await?);
    let server = Arc::new(Server::new(9));
    server.shares.set(Share {
        id: ShareId::of("/tank/home", 1, root),
        key: HandleKey::new(files.derived_key("NFS handles")),
        path: "/tank/home".to_owned(),
        files,
        snapshots: None,
        fsid: 1,
        root,
        rules: Rules::new(vec![rule.parse()?])?,
        is_sync: true,
        verifier: [1; 8],
        statistics: Arc::default(),
        watcher: Arc::new(WatcherSlot::default()),
    });
    let nfs = Arc::new(Nfs::new(server, Budget::new(128 << 20, OWN_BYTES)));
    let address = Address::parse(address, NFS_PORT)?;
    let server = weir_net::serve(vec![Listener::bind(&address)?], nfs, 2)?;
    let wait = || std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    compio::runtime::spawn_blocking(wait).await.expect("the thread has no panic")?;
    server.stop();
    drop(freeing);
    engine.stop();
    Ok(commits.await.expect("the committer has no panic")?)
}

fn now() -> TimeStamp {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    TimeStamp { seconds: now.as_secs().cast_signed(), nanos: now.subsec_nanos() }
}
