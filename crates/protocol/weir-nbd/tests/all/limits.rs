//! Tests of the limits of one connection: memory, requests, and the time that the server waits for
//! a client.
//!
//! Tests of the memory limits of all connections are in sessions.rs.
//!
//! Invariants:
//! - each read has a time limit, so that a hanging server fails the test;
//! - each test fails if its limit is removed.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::common::Scratch;
use crate::common::memory::{Memory, MemoryExports};
use crate::common::server::{Client, SIZE, Setup, setup, setup_serving};
use weir_block::Export as _;
use weir_nbd::Nbd;
use weir_nbd::limits::{EXTENTS_MAX, HELD_BYTES_MAX, OWN_BYTES, REQUESTS_MAX};
use weir_net::limits::PEER_HANDSHAKES_MAX;
use weir_net::{Address, Budget, Listener, serve};

/// Holds the requests of the volume until this value is dropped, also if the test fails: otherwise
/// the server could not stop, because it waits for these requests.
struct Held<'a>(&'a Memory);

impl<'a> Held<'a> {
    fn new(volume: &'a Memory) -> Self {
        volume.held.store(true, Ordering::SeqCst);
        Self(volume)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::SeqCst);
    }
}

/// Sends reads to an export whose requests wait. Asserts that the server starts exactly `most` of
/// the reads.
fn assert_begun(setup: &Setup, client: &mut Client, (count, len): (u64, u32), most: usize) {
    let volume = setup.exports.volume("fast");
    let held = Held::new(&volume);
    volume.begun.store(0, Ordering::SeqCst);
    (0..count).for_each(|cookie| client.ask(0, 0, cookie, 0, len));
    let begun = || volume.begun.load(Ordering::SeqCst);
    let start = Instant::now();
    while begun() < most {
        assert!(start.elapsed() < Duration::from_secs(20), "{} requests", begun());
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(begun(), most, "it begins no further one");
    drop(held);
    for _ in 0..count {
        assert_eq!(client.reply().0, 0);
        client.get(len as usize);
    }
}

#[test]
fn requests_in_flight_are_bounded_in_number_and_bytes() {
    let setup = setup("under-way");
    let mut client = setup.client("fast");
    assert_begun(&setup, &mut client, (300, 4096), REQUESTS_MAX);
    assert_begun(&setup, &mut client, (6, 16 << 20), HELD_BYTES_MAX / (16 << 20));
}

/// Encodes an option of the handshake.
fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [b"IHAVEOPT", &kind.to_be_bytes()[..], &len.to_be_bytes(), data].concat()
}

/// Returns the lengths of the extents in a BLOCK_STATUS from `offset` to the end of the export.
fn extents(client: &mut Client, offset: u64) -> Vec<u64> {
    client.ask(0, 7, 1, offset, (SIZE - offset) as u32);
    let head = client.get(20);
    assert_eq!((head[5], head[7]), (1, 5), "the only chunk: extents");
    let len = u32::from_be_bytes(head[16..].try_into().expect("4 bytes"));
    let data = client.get(len as usize);
    let lengths = data[4..].chunks(8).map(|extent| extent[..4].try_into().expect("4 bytes"));
    lengths.map(|len| u32::from_be_bytes(len).into()).collect()
}

#[test]
fn extents_of_one_block_status_are_limited() {
    let setup = setup("extents");
    let volume = setup.exports.volume("fast");
    // Written blocks and holes alternate, with one long hole at the end.
    for block in 0..2500 {
        assert!(volume.try_write(block * 2 * 4096, &[1; 4096]).expect("memory"));
    }
    let mut client = setup.connect();
    client.get(18);
    client.put(b"\0\0\0\x03");
    client.put(&option(8, b""));
    client.get(20);
    let queries = b"\0\0\0\x04fast\0\0\0\x01\0\0\0\x0fbase:allocation";
    client.put(&option(10, queries));
    client.get(20 + 4 + 15 + 20);
    client.put(&option(1, b"fast"));
    client.get(10);
    let first = extents(&mut client, 0);
    assert_eq!(first.len(), EXTENTS_MAX);
    let rest = extents(&mut client, first.iter().sum());
    assert_eq!(first.len() + rest.len(), 5000);
    assert_eq!(first.iter().chain(&rest).sum::<u64>(), SIZE);
}

#[test]
fn client_that_receives_no_reply_bytes_is_dropped() {
    const LIMIT: Duration = Duration::from_millis(200);
    let setup = setup_serving("takes-nothing", 256 << 20, |nbd| nbd.with_send_limit(LIMIT));
    let mut good = setup.client("fast");
    let start = Instant::now();
    let mut stalled = setup.client("fast");
    stalled.ask(0, 0, 1, 0, 32 << 20);
    setup.wait_for_connections(1);
    let took = start.elapsed();
    assert!((LIMIT..LIMIT * 20).contains(&took), "dropped after {took:?}");
    setup.wait_for_memory();
    // The time limit does not apply to a client that has no pending replies.
    good.ask(0, 0, 2, 0, 1 << 20);
    assert_eq!(good.reply(), (0, 2));
    good.get(1 << 20);
}

/// TLS server without a certificate: every handshake fails.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

#[test]
fn stalled_tls_handshake_times_out_and_frees_its_turn() {
    const LIMIT: Duration = Duration::from_millis(300);
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(NoCertificate));
    let setup = setup_serving("tls-turns", 64 << 20, |nbd| {
        nbd.requiring_tls(Arc::new(config)).with_turn_limit(LIMIT)
    });
    let start = Instant::now();
    // Connect one client more than the number of TLS handshakes that one peer may run at a time.
    let mut clients: Vec<Client> = (0..=PEER_HANDSHAKES_MAX).map(|_| setup.connect()).collect();
    for client in &mut clients {
        client.get(18);
        client.put(b"\0\0\0\x03");
        client.put(&option(5, b""));
        let answer = client.get(20);
        assert_eq!(answer[12..16], [0, 0, 0, 1], "TLS may begin");
    }
    let mut last = clients.pop().expect("the one that waits");
    let slack = Duration::from_millis(50);
    assert!(clients.iter_mut().all(Client::is_closed));
    let took = start.elapsed();
    assert!(took + slack >= LIMIT && took < LIMIT * 10, "{took:?}");
    assert!(last.is_closed());
    let took = start.elapsed();
    assert!(took + slack >= LIMIT * 2 && took < LIMIT * 20, "{took:?}: a turn after the others");
}

/// Environment variable of the child process with the socket path of its server.
const SOCKET: &str = "WEIR_NBD_TEST_SOCKET";

/// Serves an export at a unix socket until standard input ends, with few free file descriptors.
fn serve_with_few_descriptors(socket: &Path) {
    let exports = MemoryExports::default().with("disk", Memory::new(1 << 20));
    let nbd = Nbd::new(Arc::new(exports), Budget::new(1 << 20, OWN_BYTES));
    let listener = Listener::bind(&Address::Unix(socket.to_owned())).expect("a fresh socket");
    let server = serve(vec![listener], Arc::new(nbd), 1).expect("a thread");
    // After the first reply, a worker has opened its file descriptors.
    UnixStream::connect(socket).and_then(|mut one| one.read_exact(&mut [0; 18])).expect("a server");
    let open = std::fs::read_dir("/proc/self/fd").expect("a list").flatten();
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
    let numbers: Vec<u64> = numbers.collect();
    let limit = (0..).filter(|number| !numbers.contains(number)).nth(4);
    let limit = Rlimit { current: limit, ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).expect("fewer descriptors");
    std::fs::write(socket.with_extension("ready"), []).expect("a mark");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("the end of the input");
    server.stop();
}

struct Process(Child);

impl Process {
    /// Returns the time for which all threads ran, plus the time that they waited for a CPU.
    fn runnable(&self) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).expect("threads");
        let times = threads.flatten().flat_map(|thread| {
            let times = std::fs::read_to_string(thread.path().join("schedstat")).expect("times");
            let times: Vec<u64> = times.split(' ').map_while(|time| time.parse().ok()).collect();
            [times[0], times[1]]
        });
        Duration::from_nanos(times.sum())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn server_without_descriptors_rests_and_accepts_once_there_is_one() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        return serve_with_few_descriptors(Path::new(&socket));
    }
    let scratch = Scratch::new("descriptors");
    let socket = scratch.file("nbd.sock");
    let test = "limits::server_without_descriptors_rests_and_accepts_once_there_is_one";
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test])
        .env(SOCKET, &socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn();
    let process = Process(child.expect("this program again"));
    let start = Instant::now();
    while !socket.with_extension("ready").exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "the server does not start");
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut clients: Vec<UnixStream> = (0..12)
        .map(|_| {
            let client = UnixStream::connect(&socket).expect("the system queues connections");
            client.set_read_timeout(Some(Duration::from_millis(500))).expect("a time limit");
            client
        })
        .collect();
    let is_greeted = |mut client: &UnixStream| client.read_exact(&mut [0; 18]).is_ok();
    let greeted = clients.iter().take_while(|client| is_greeted(client)).count();
    assert!((1..clients.len()).contains(&greeted), "{greeted} clients were accepted");
    let (before, start) = (process.runnable(), Instant::now());
    std::thread::sleep(Duration::from_millis(400));
    // A server that retries the accept without a pause would be runnable all the time.
    let (runnable, wall) = (process.runnable().saturating_sub(before), start.elapsed());
    assert!(runnable < wall / 2, "it was to run for {runnable:?} of {wall:?}");
    clients.remove(0);
    assert!(is_greeted(&clients[greeted - 1]), "the next one is accepted");
}
