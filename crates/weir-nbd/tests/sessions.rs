//! Whole sessions with a client written byte for byte: errors, limits, and bad manners.
//!
//! Not here: stock clients (real_clients.rs), single messages (unit tests).
//!
//! Invariants:
//! - every read has a time limit, so that a server that hangs fails the test;
//! - after bad manners the server still serves others.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::Scratch;
use common::memory::{Memory, MemoryExports};
use weir_base::ErrorKind;
use weir_nbd::{Nbd, limits};
use weir_serve::limits::DRAIN_LIMIT;
use weir_serve::{Address, Listener, ServerHandle, serve};

const SIZE: u64 = 64 << 20;

struct Setup {
    exports: Arc<MemoryExports>,
    server: ServerHandle<Nbd>,
    _scratch: Scratch,
}

fn setup(name: &str) -> Setup {
    let exports = MemoryExports::default()
        .with("fast", Memory::new(SIZE))
        .with("slow", Memory::new(SIZE).slow());
    let exports = Arc::new(exports);
    let scratch = Scratch::new(name);
    let unix = Address::Unix(scratch.file("nbd.sock"));
    let addresses = [Address::parse("127.0.0.1:0", 0).expect("an address"), unix];
    let listeners = addresses.iter().map(|at| Listener::bind(at).expect("a free port")).collect();
    let server =
        serve(listeners, Arc::new(Nbd(Arc::<MemoryExports>::clone(&exports))), 2).expect("threads");
    Setup { exports, server, _scratch: scratch }
}

impl Setup {
    fn connect(&self) -> Client {
        let Address::Tcp(address) = self.server.addresses()[0] else { panic!("TCP is first") };
        let socket = TcpStream::connect(address).expect("a server");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a time limit");
        Client { socket }
    }

    /// A client in transmission, without structured replies.
    fn client(&self, export: &str) -> Client {
        let mut client = self.connect();
        assert_eq!(client.get(18), b"NBDMAGICIHAVEOPT\0\x03");
        client.put(&[0, 0, 0, 3]);
        client.put(b"IHAVEOPT\0\0\0\x01");
        client.put(&(export.len() as u32).to_be_bytes());
        client.put(export.as_bytes());
        client.get(10);
        client
    }

    fn wait_for_connections(&self, count: usize) {
        let start = Instant::now();
        while self.server.connections() != count {
            assert!(start.elapsed() < Duration::from_secs(20), "{}", self.server.connections());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Client {
    socket: TcpStream,
}

impl Client {
    fn put(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("a connection");
    }

    fn get(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes).expect("an answer");
        bytes
    }

    fn ask(&mut self, flags: u16, kind: u16, cookie: u64, offset: u64, len: u32) {
        self.put(&request(flags, kind, cookie, offset, len));
    }

    /// Errno and cookie of the next simple reply.
    fn reply(&mut self) -> (u32, u64) {
        let bytes = self.get(16);
        assert_eq!(bytes[..4], [0x67, 0x44, 0x66, 0x98]);
        let cookie = u64::from_be_bytes(bytes[8..].try_into().expect("8 bytes"));
        (u32::from_be_bytes(bytes[4..8].try_into().expect("4 bytes")), cookie)
    }

    fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => rest.is_empty(),
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

fn request(flags: u16, kind: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13];
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

#[test]
fn garbage_is_hung_up_on_and_others_go_on() {
    let setup = setup("garbage");
    let mut good = setup.client("fast");
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 5000], b"\0\0\0\x03SSH-2.0-OpenSSH_9"]
    {
        let mut bad = setup.connect();
        bad.get(18);
        bad.put(garbage);
        assert!(bad.is_closed());
    }
    let mut bad = setup.client("fast");
    bad.put(&[b'x'; 28]);
    assert!(bad.is_closed());
    let mut bad = setup.client("fast");
    bad.ask(0, 1, 1, 0, (64 << 20) + 512);
    assert!(bad.is_closed(), "a write too long to drain");
    good.ask(0, 0, 9, 0, 512);
    assert_eq!(good.reply(), (0, 9));
    assert_eq!(good.get(512), [0; 512]);
}

#[test]
fn a_half_open_connection_goes_away() {
    let setup = setup("half-open");
    let start = Instant::now();
    let mut silent = setup.connect();
    silent.get(18);
    let mut partial = setup.connect();
    partial.get(18);
    partial.put(b"\0\0\0\x03IHAVE");
    assert!(silent.is_closed() && partial.is_closed());
    let waited = start.elapsed();
    assert!(waited + Duration::from_secs(1) >= limits::HANDSHAKE_LIMIT, "{waited:?}");
    setup.wait_for_connections(0);
}

#[test]
fn refused_requests_leave_the_connection_in_step() {
    let setup = setup("refused");
    let mut client = setup.client("fast");
    let payload = vec![1; 1000];
    client.put(&[request(0, 1, 1, 0, 1000), payload].concat());
    assert_eq!(client.reply(), (22, 1), "unaligned");
    client.put(&[request(0, 1, 2, SIZE - 512, 1024), vec![2; 1024]].concat());
    assert_eq!(client.reply(), (28, 2), "write beyond the end");
    client.ask(0, 0, 3, SIZE, 512);
    assert_eq!(client.reply(), (22, 3), "read beyond the end");
    client.ask(0, 77, 4, 0, 0);
    assert_eq!(client.reply(), (22, 4), "unknown command");
    client.put(&request(0, 1, 5, 0, (32 << 20) + 512));
    client.put(&vec![3; (32 << 20) + 512]);
    assert_eq!(client.reply(), (22, 5), "oversized write, drained");
    client.ask(2 | 16, 6, 6, 0, 4096);
    assert_eq!(client.reply(), (95, 6), "NO_HOLE is not fast here");
    for kind in [0, 1, 4, 5, 6] {
        client.ask(0, kind, 7, 0, 0);
        assert_eq!(client.reply(), (0, 7), "length 0, command {kind}");
    }
    client.ask(0, 0, 8, 0, 4096);
    assert_eq!(client.reply(), (0, 8));
    assert_eq!(client.get(4096), vec![0; 4096], "none of the refused writes was run");
}

#[test]
fn errors_of_the_storage_reach_the_client() {
    let setup = setup("errors");
    for export in ["fast", "slow"] {
        let mut client = setup.client(export);
        for (kind, errno) in
            [(ErrorKind::NoSpace, 28), (ErrorKind::Data, 5), (ErrorKind::ReadOnly, 1)]
        {
            *setup.exports.volume(export).failure.write() = Some(kind);
            for command in [0, 3, 4, 5, 6] {
                client.ask(0, command, 1, 0, if command == 3 { 0 } else { 4096 });
                assert_eq!(client.reply(), (errno, 1), "{kind:?}, command {command}");
            }
            client.put(&[request(1, 1, 2, 0, 4096), vec![1; 4096]].concat());
            assert_eq!(client.reply(), (errno, 2), "{kind:?}");
        }
        *setup.exports.volume(export).failure.write() = None;
        client.ask(0, 3, 3, 0, 0);
        assert_eq!(client.reply(), (0, 3));
    }
}

#[test]
fn fua_flushes_before_the_reply() {
    let setup = setup("fua");
    for export in ["fast", "slow"] {
        let mut client = setup.client(export);
        for round in 1..=9 {
            client.put(&[request(1, 1, round, 4096, 4096), vec![1; 4096]].concat());
            assert_eq!(client.reply(), (0, round));
            let flushes = setup.exports.volume(export).flushes.load(Ordering::SeqCst);
            assert_eq!(flushes, round, "one flush for each write");
        }
        client.ask(1, 6, 10, 0, 4096);
        assert_eq!(client.reply(), (0, 10));
        client.ask(0, 6, 11, 0, 4096);
        assert_eq!(client.reply(), (0, 11));
        assert_eq!(setup.exports.volume(export).flushes.load(Ordering::SeqCst), 10);
    }
}

#[test]
fn many_requests_at_once_are_all_answered() {
    let setup = setup("many");
    for export in ["fast", "slow"] {
        let mut client = setup.client(export);
        let mut reader = Client { socket: client.socket.try_clone().unwrap() };
        // 96 MiB of replies and more than REQUESTS_MAX requests: every limit is reached.
        let (count, len) = (1536_u64, 64 << 10);
        let mut batch = Vec::new();
        for cookie in 0..count {
            batch.extend(request(0, 0, cookie, cookie % 512 * 4096, len));
        }
        let sender = std::thread::spawn(move || {
            client.put(&batch);
            client.ask(0, 2, 0, 0, 0);
            client
        });
        std::thread::sleep(Duration::from_millis(100));
        let mut seen = vec![false; count as usize];
        for _ in 0..count {
            let (errno, cookie) = reader.reply();
            assert_eq!(errno, 0);
            assert!(!std::mem::replace(&mut seen[cookie as usize], true), "answered twice");
            reader.get(len as usize);
        }
        assert!(reader.is_closed(), "DISC closes once all is answered");
        drop(sender.join().unwrap());
    }
    setup.wait_for_connections(0);
}

#[test]
fn a_largest_write_and_read_go_through() {
    let setup = setup("largest");
    for export in ["fast", "slow"] {
        let mut client = setup.client(export);
        let len = 32 << 20;
        let data: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
        for round in 0..3 {
            client.put(&request(0, 1, round, 0, len));
            client.put(&data);
            assert_eq!(client.reply(), (0, round));
        }
        client.ask(0, 0, 9, 0, len);
        assert_eq!(client.reply(), (0, 9));
        assert!(client.get(len as usize) == data);
    }
}

#[test]
fn a_client_that_vanishes_or_takes_nothing_harms_nobody() {
    let setup = setup("vanish");
    for _ in 0..20 {
        let mut client = setup.client("slow");
        for cookie in 0..50 {
            client.ask(0, 0, cookie, 0, 1 << 20);
        }
    }
    let mut lazy = setup.client("slow");
    for cookie in 0..200 {
        lazy.ask(0, 0, cookie, 0, 1 << 20);
    }
    setup.wait_for_connections(1);
    let mut client = setup.client("slow");
    client.ask(0, 0, 1, 0, 4096);
    assert_eq!(client.reply(), (0, 1));
    let start = Instant::now();
    setup.server.stop();
    assert!(start.elapsed() < DRAIN_LIMIT + Duration::from_secs(5), "the lazy one is cut");
}

#[test]
fn stop_answers_what_is_under_way() {
    let setup = setup("stopping");
    let mut client = setup.client("slow");
    for cookie in 0..32 {
        client.put(&[request(1, 1, cookie, cookie * 4096, 4096), vec![7; 4096]].concat());
    }
    // Answered once: the server has received what was sent with it.
    client.reply();
    std::thread::sleep(Duration::from_millis(50));
    setup.server.stop();
    for _ in 1..32 {
        assert_eq!(client.reply().0, 0);
    }
    assert!(client.is_closed());
    assert_eq!(setup.exports.volume("slow").flushes.load(Ordering::SeqCst), 32);
}

#[test]
fn an_export_can_be_taken_from_its_clients() {
    let setup = setup("disconnect");
    let (mut fast, mut slow) = (setup.client("fast"), setup.client("slow"));
    for client in [&mut fast, &mut slow] {
        client.ask(0, 5, 1, 0, 4096);
        assert_eq!(client.reply(), (0, 1));
    }
    setup.server.disconnect("slow");
    assert!(slow.is_closed());
    fast.ask(0, 5, 2, 0, 4096);
    assert_eq!(fast.reply(), (0, 2));
    setup.wait_for_connections(1);
}

#[test]
fn a_panic_of_the_storage_ends_one_connection() {
    let setup = setup("panic");
    let mut good = setup.client("fast");
    for export in ["fast", "slow"] {
        let mut bad = setup.client(export);
        setup.exports.volume(export).panics.store(true, Ordering::SeqCst);
        bad.ask(0, 0, 1, 0, 4096);
        assert!(bad.is_closed(), "{export}");
        setup.exports.volume(export).panics.store(false, Ordering::SeqCst);
    }
    good.ask(0, 5, 2, 0, 4096);
    assert_eq!(good.reply(), (0, 2));
    setup.wait_for_connections(1);
}
