//! Hostile clients: each kind runs on its own threads until the soak ends.
//!
//! Not here: callers of the management interface (callers.rs), and checks of the server; the
//! threads of this file ignore errors and check no reply.
//!
//! Invariants:
//! - the clients connect only to the server under test, on loopback and its unix sockets;
//! - each kind has a limited number of connections and pauses between them, so that it uses the
//!   connection slots and the memory of the server but leaves CPU time to the verified load.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect as connect_from, socket};

use super::callers;
use super::server::Doors;

/// Number of connections that request data and never read it.
const GREEDY: usize = 100;
/// Number of read requests that each greedy connection sends: 32 reads of 1 MiB.
const GREEDY_READS: u64 = 32;
/// Number of connections that send nothing: more than the server has connection slots.
const IDLE: usize = 1100;
/// Number of connections that send a part of a message and stop.
const HALF: usize = 64;
/// Number of lists of exports that one connection requests and never reads.
const LISTS: usize = 20;
/// Number of connections that mix reads and writes and read every reply.
const MIXED: usize = 2;
/// Number of reads, and number of writes, that each mixed connection has in flight: 1 MiB each.
const MIXED_DEPTH: u64 = 4;
/// Number of iSCSI discovery sessions without authentication.
const DISCOVERIES: usize = 300;
/// Number of failed CHAP logins in a round, each from an address of its own.
const FAILED_LOGINS: usize = 200;
/// Time for which a client keeps the connections of a round open.
const HOLD: Duration = Duration::from_secs(20);
/// Interval between two new connections of all hostile clients together: 1,000 connections per
/// second. The clients and the server share two cores. At 5,000 connections per second, one kind of
/// client alone does not increase the p99 of the verified load, but all kinds together increase it
/// tenfold.
const PACE: Duration = Duration::from_millis(1);
/// Nice value of the threads of hostile clients: the lowest priority.
const NICE: i32 = 19;
/// Timeout of each call of a hostile client.
const TIMEOUT: Duration = Duration::from_millis(500);

/// All hostile clients of a soak.
pub(super) struct Hostiles {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    connections: Arc<AtomicU64>,
}

/// A connection, or a client program with its pipes, that stays open until the end of a round.
pub(super) type Held = Box<dyn Send>;

/// One kind of hostile client: a function that opens a connection and returns it, to be kept open.
type Kind = fn(&Doors, u64) -> Option<Held>;

/// All kinds of hostile clients, each with its number of connections in a round.
const KINDS: &[(Kind, usize)] = &[
    (nbd_greedy, GREEDY),
    (nbd_idle, IDLE),
    (nbd_mixed, MIXED),
    (nbd_lists, HALF),
    (nbd_half_write, HALF),
    (nbd_half_handshake, HALF),
    (nbd_noise, HALF),
    (iscsi_discovery, DISCOVERIES),
    (iscsi_guess, FAILED_LOGINS),
    (iscsi_noise, HALF),
    (iscsi_silent, IDLE),
    (api_silent, IDLE),
    (api_noise, HALF),
    (callers::half, callers::FEW),
    (callers::guess, callers::FEW),
    (callers::lists, callers::MANY),
    (callers::waits, callers::MANY),
    (callers::refused, callers::FEW),
    (callers::fifo, callers::FEW),
    (callers::stream, callers::FEW),
    (peer_silent, IDLE),
    (peer_noise, HALF),
];

impl Hostiles {
    /// Starts all hostile clients.
    pub(super) fn start(doors: &Doors) -> Self {
        let (stop, connections) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let pace = Arc::new(Pace(Mutex::new(Instant::now())));
        let threads = KINDS.iter().map(|(kind, count)| {
            let (stop, connections) = (Arc::clone(&stop), Arc::clone(&connections));
            let pace = Arc::clone(&pace);
            let doors = doors.clone();
            std::thread::spawn(move || {
                // The lowest priority simulates clients on other machines, which would not use the
                // server's cores. The child processes inherit the priority.
                rustix::process::nice(NICE).ok();
                rounds((*kind, *count), &doors, &pace, &stop, &connections);
            })
        });
        let threads = threads.collect();
        Self { stop, threads, connections }
    }

    /// Returns the number of connections made so far.
    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Hostiles {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// The earliest time at which a client of any kind may open the next connection.
struct Pace(Mutex<Instant>);

impl Pace {
    fn wait(&self) {
        let at = {
            let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let at = Instant::now().max(*next);
            *next = at + PACE;
            at
        };
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
    }
}

/// Repeats rounds until the end of the soak: opens the connections of a round, keeps them open for
/// [`HOLD`], and closes them.
fn rounds(
    (kind, count): (Kind, usize),
    doors: &Doors,
    pace: &Pace,
    stop: &AtomicBool,
    made: &AtomicU64,
) {
    let mut seed = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut held = Vec::with_capacity(count);
        for _ in 0..count {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            seed += 1;
            held.extend(kind(doors, seed));
            made.fetch_add(1, Ordering::Relaxed);
            pace.wait();
        }
        let mut left = HOLD;
        while !left.is_zero() && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(TIMEOUT);
            left = left.saturating_sub(TIMEOUT);
        }
    }
}

fn held(stream: TcpStream) -> Held {
    Box::new(stream)
}

fn connect(address: &str) -> Option<TcpStream> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(TIMEOUT)).ok()?;
    Some(stream)
}

/// Connects to the export, and negotiates until requests can be sent (NBD proto.md, "Fixed newstyle
/// negotiation").
fn nbd_session(doors: &Doors) -> Option<TcpStream> {
    const OPT_GO: u32 = 7;
    const REPLY_ACK: u32 = 1;
    let mut stream = connect(&doors.nbd)?;
    stream.read_exact(&mut [0; 18]).ok()?;
    let name = doors.export.as_bytes();
    let mut hello = 3_u32.to_be_bytes().to_vec(); // fixed newstyle, no zeroes
    hello.extend(b"IHAVEOPT");
    hello.extend(OPT_GO.to_be_bytes());
    hello.extend((name.len() as u32 + 6).to_be_bytes());
    hello.extend((name.len() as u32).to_be_bytes());
    hello.extend(name);
    hello.extend(0_u16.to_be_bytes());
    stream.write_all(&hello).ok()?;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head).ok()?;
        let field = |at: usize| head.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
        let (kind, len) = (field(12)?, field(16)?);
        stream.read_exact(&mut vec![0; len.min(1 << 16) as usize]).ok()?;
        if kind == REPLY_ACK {
            return Some(stream);
        }
    }
}

/// Requests the list of exports repeatedly and reads no reply.
fn nbd_lists(doors: &Doors, _: u64) -> Option<Held> {
    const OPT_LIST: u32 = 3;
    let mut stream = connect(&doors.nbd)?;
    stream.read_exact(&mut [0; 18]).ok()?;
    let mut options = 3_u32.to_be_bytes().to_vec(); // fixed newstyle, no zeroes
    for _ in 0..LISTS {
        options.extend(b"IHAVEOPT");
        options.extend(OPT_LIST.to_be_bytes());
        options.extend(0_u32.to_be_bytes());
    }
    stream.write_all(&options).ok()?;
    Some(Box::new(stream))
}

/// Sends reads and writes of 1 MiB in the half that the load does not verify, and reads every
/// reply.
fn nbd_mixed(doors: &Doors, _: u64) -> Option<Held> {
    const READ: u16 = 0;
    const WRITE: u16 = 1;
    const REPLY: usize = 16;
    let stream = nbd_session(doors)?;
    let mut replies = stream.try_clone().ok()?;
    let taking = std::thread::spawn(move || {
        let len = MIXED_DEPTH * (REPLY as u64 * 2 + (1 << 20));
        std::io::copy(&mut (&mut replies).take(len), &mut std::io::sink())
    });
    let (mut requests, data) = (&stream, vec![7; 1 << 20]);
    for at in 0..MIXED_DEPTH {
        let offset = doors.unused_offset + (at << 20);
        requests.write_all(&nbd_request(READ, offset, 1 << 20)).ok()?;
        requests.write_all(&nbd_request(WRITE, offset, 1 << 20)).ok()?;
        requests.write_all(&data).ok()?;
    }
    taking.join().ok()?.ok()?;
    Some(Box::new(stream))
}

/// Encodes an NBD request (proto.md, "Request message").
fn nbd_request(kind: u16, offset: u64, len: u32) -> Vec<u8> {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend(0_u16.to_be_bytes());
    request.extend(kind.to_be_bytes());
    request.extend(offset.to_be_bytes()); // any cookie does
    request.extend(offset.to_be_bytes());
    request.extend(len.to_be_bytes());
    request
}

/// Requests 32 MiB and reads no reply.
fn nbd_greedy(doors: &Doors, _: u64) -> Option<Held> {
    let mut stream = nbd_session(doors)?;
    for read in 0..GREEDY_READS {
        stream.write_all(&nbd_request(0, read << 20, 1 << 20)).ok()?;
    }
    Some(Box::new(stream))
}

/// Opens the export and sends no request.
fn nbd_idle(doors: &Doors, _: u64) -> Option<Held> {
    nbd_session(doors).map(held)
}

/// Announces a write of 1 MiB in the half that the load does not verify, and sends half of the
/// data.
fn nbd_half_write(doors: &Doors, _: u64) -> Option<Held> {
    let mut stream = nbd_session(doors)?;
    stream.write_all(&nbd_request(1, doors.unused_offset, 1 << 20)).ok()?;
    stream.write_all(&vec![7; 1 << 19]).ok()?;
    Some(Box::new(stream))
}

/// Sends half of a handshake option and stops.
fn nbd_half_handshake(doors: &Doors, _: u64) -> Option<Held> {
    let mut stream = connect(&doors.nbd)?;
    stream.write_all(b"\0\0\0\x03IHAVE").ok()?;
    Some(Box::new(stream))
}

/// Sends random bytes.
fn nbd_noise(doors: &Doors, seed: u64) -> Option<Held> {
    noise(&doors.nbd, seed)
}

/// Sends random bytes to the iSCSI port.
fn iscsi_noise(doors: &Doors, seed: u64) -> Option<Held> {
    noise(&doors.iscsi, seed)
}

fn noise(address: &str, seed: u64) -> Option<Held> {
    let mut stream = connect(address)?;
    // These constants are from Knuth's MMIX generator.
    let mut state = seed;
    let bytes: Vec<u8> = std::iter::repeat_with(|| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(8192)
    .collect();
    stream.write_all(&bytes).ok()?;
    Some(Box::new(stream))
}

/// Connects to the iSCSI port and sends nothing.
fn iscsi_silent(doors: &Doors, _: u64) -> Option<Held> {
    connect(&doors.iscsi).map(held)
}

/// Connects to the management interface and sends nothing.
fn api_silent(doors: &Doors, _: u64) -> Option<Held> {
    connect(&doors.api).map(held)
}

/// Sends random bytes to the TLS port of the management interface.
fn api_noise(doors: &Doors, seed: u64) -> Option<Held> {
    noise(&doors.api, seed)
}

/// Connects to the TLS port of replication and sends nothing.
fn peer_silent(doors: &Doors, _: u64) -> Option<Held> {
    connect(&doors.peers).map(held)
}

/// Sends random bytes to the TLS port of replication.
fn peer_noise(doors: &Doors, seed: u64) -> Option<Held> {
    noise(&doors.peers, seed)
}

/// Answers a CHAP challenge with a wrong secret, from an address of its own (RFC 7143 §12.1.3).
fn iscsi_guess(doors: &Doors, seed: u64) -> Option<Held> {
    let [.., high, low] = seed.to_be_bytes();
    let own = SocketAddrV4::new(Ipv4Addr::new(127, 7, high, low.max(1)), 0);
    let target: SocketAddrV4 = doors.iscsi.parse().ok()?;
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    bind(&socket, &own).ok()?;
    connect_from(&socket, &target).ok()?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(10 * TIMEOUT)).ok()?;
    let names = format!("InitiatorName={}\0TargetName={}\0", doors.initiator, doors.guarded);
    let answer = format!("CHAP_N=soak\0CHAP_R=0x{}\0", "5a".repeat(16));
    let (stay, go_on) = (0x00, 0x81); // in security negotiation; to operational negotiation
    login(&mut stream, seed, stay, &format!("{names}SessionType=Normal\0AuthMethod=CHAP\0"))?;
    login(&mut stream, seed, stay, "CHAP_A=5\0")?;
    login(&mut stream, seed, go_on, &answer)?;
    Some(Box::new(stream))
}

/// Sends a login request and reads the response (RFC 7143 §11.12).
fn login(stream: &mut TcpStream, seed: u64, stages: u8, keys: &str) -> Option<()> {
    let mut login = vec![0; 48];
    login[0] = 0x43; // login request, immediate
    login[1] = stages;
    login[5..8].copy_from_slice(&(keys.len() as u32).to_be_bytes()[1..]);
    login[8] = 0x80; // a random ISID, so that no session replaces another
    login[9..14].copy_from_slice(&seed.to_be_bytes()[3..]);
    login.extend(keys.as_bytes());
    login.resize(login.len().next_multiple_of(4), 0);
    stream.write_all(&login).ok()?;
    let mut header = [0; 48];
    stream.read_exact(&mut header).ok()?;
    let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
    stream.read_exact(&mut vec![0; len.next_multiple_of(4)]).ok()
}

/// Starts a discovery session under the initiator name that the target of the load allows.
fn iscsi_discovery(doors: &Doors, seed: u64) -> Option<Held> {
    let mut stream = connect(&doors.iscsi)?;
    let name = &doors.initiator;
    let keys = format!("InitiatorName={name}\0SessionType=Discovery\0AuthMethod=None\0");
    let to_full_feature_phase = 0x87;
    login(&mut stream, seed, to_full_feature_phase, &keys)?;
    Some(Box::new(stream))
}
