//! Serves a filesystem in memory over NFSv3, with one thread for each connection:
//! `cargo run -p weir-nfs --example serve_memory -- 127.0.0.1:20490`
//!
//! Invariant: the example shares all code below the connections with the server.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use weir_base::{Guid, RecordSize, SystemClock};
use weir_block::OutBuf;
use weir_dataset::{Engine, EngineOptions};
use weir_device::{Device, MemoryDevice};
use weir_format::files::TimeStamp;
use weir_format::{VdevKind, VdevRole};
use weir_fs::{Filesystem, InodeRef, Layout, NameCase, ROOT};
use weir_nfs::{HandleKey, Rules, Server, Share, ShareId};
use weir_oncrpc::record::{Framed, frame};
use weir_pool::{CreateOptions, PlantedBug, VdevSpec};

const DISK_BYTES: usize = 4 << 30;
const RECORD_BYTES_MAX: usize = (1 << 20) + (64 << 10);

fn main() {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:20490".to_owned());
    let rule = std::env::args().nth(2).unwrap_or_else(|| "*:no_root_squash,insecure".to_owned());
    let listener = TcpListener::bind(&address).expect("the address is free");
    let (engine, server) = server(&rule);
    eprintln!("/tank/home on {address}");
    for connection in listener.incoming() {
        let (engine, server) = (Arc::clone(&engine), Arc::clone(&server));
        let connection = connection.expect("a connection");
        std::thread::spawn(move || serve(&engine, &server, connection));
    }
}

fn server(rule: &str) -> (Arc<Engine>, Arc<Server>) {
    let disk = Arc::new(MemoryDevice::new("memory", DISK_BYTES));
    let disks: Vec<Arc<dyn Device>> = vec![disk];
    let vdevs = [VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks }];
    let clock = Arc::new(SystemClock::default());
    let options = EngineOptions { memory_bytes: 1 << 30, clock, bug: PlantedBug::None };
    let mut guids = (1..).map(Guid);
    let mut guid = || guids.next().expect("endless");
    let create = CreateOptions::default();
    let engine = Engine::create("tank", &vdevs, create, &options, &mut guid);
    let engine = poll(engine, || {}).expect("a pool");
    let layout = Layout {
        hash_key: 7,
        record_size: RecordSize::from_shift(5).expect("128 KiB"),
        case: NameCase::Sensitive,
    };
    let files = Filesystem::create(&engine, "home", layout, &[], Box::new(now));
    let files = run(&engine, files).expect("a filesystem");
    let root = run(&engine, files.attributes(ROOT)).expect("a root");
    let root = InodeRef::from(&root);
    let server = Server::new(HandleKey::new(7), 9);
    server.shares.set(Share {
        id: ShareId::of("/tank/home", 1, root),
        path: "/tank/home".to_owned(),
        files: Arc::new(files),
        fsid: 1,
        root,
        rules: Rules::new(vec![rule.parse().expect("a rule")]).expect("one rule"),
        is_sync: true,
        verifier: [1; 8],
    });
    (engine, Arc::new(server))
}

fn now() -> TimeStamp {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    TimeStamp { seconds: now.as_secs().cast_signed(), nanos: now.subsec_nanos() }
}

/// Polls a future to completion. Commits while the future waits.
fn run<T>(engine: &Engine, future: impl Future<Output = T>) -> T {
    poll(future, || poll(engine.sync(), std::thread::yield_now).expect("a commit"))
}

fn poll<T>(future: impl Future<Output = T>, mut wait: impl FnMut()) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        for _ in 0..1000 {
            if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
                return done;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
        wait();
    }
}

fn serve(engine: &Engine, server: &Server, mut connection: TcpStream) {
    let client = server.connect(connection.peer_addr().expect("a TCP socket"));
    let mut input = Vec::new();
    let mut part = vec![0; 256 << 10];
    let mut out = OutBuf::default();
    loop {
        let used = match frame(&mut input, RECORD_BYTES_MAX) {
            Ok(Framed::Record { record, used }) => {
                if !run(engine, server.answer(&client, record, &mut out)) {
                    return;
                }
                if connection.write_all(out.filled()).is_err() {
                    return;
                }
                out.truncate(0);
                used
            }
            Ok(_) => {
                match connection.read(&mut part) {
                    Ok(bytes @ 1..) => input.extend_from_slice(part.get(..bytes).unwrap_or(&[])),
                    _ => return,
                }
                continue;
            }
            Err(error) => return eprintln!("{error}"),
        };
        input.drain(..used);
    }
}
