//! Server with exports in memory, and a client that sends raw messages.
//!
//! The tests contain the requests that clients send.
//!
//! Invariant: each read has a time limit, so that a hanging server fails the test.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::Scratch;
use crate::common::memory::{Memory, MemoryExports};
use weir_nbd::{Nbd, limits};
use weir_net::{Address, Budget, Listener, ServerHandle, serve};

pub(crate) const SIZE: u64 = 64 << 20;

pub(crate) struct Setup {
    pub(crate) exports: Arc<MemoryExports>,
    pub(crate) server: ServerHandle<Nbd>,
    pub(crate) budget: Arc<Budget>,
    _scratch: Scratch,
}

pub(crate) fn setup(name: &str) -> Setup {
    setup_with(name, 256 << 20)
}

pub(crate) fn setup_with(name: &str, budget_bytes: usize) -> Setup {
    setup_limited(name, budget_bytes, limits::HANDSHAKE_LIMIT)
}

pub(crate) fn setup_limited(name: &str, budget_bytes: usize, handshake_limit: Duration) -> Setup {
    setup_serving(name, budget_bytes, |nbd| nbd.with_handshake_limit(handshake_limit))
}

/// Serves exports with the given limits.
pub(crate) fn setup_serving(
    name: &str,
    budget_bytes: usize,
    limited: impl FnOnce(Nbd) -> Nbd,
) -> Setup {
    let exports = MemoryExports::default()
        .with("fast", Memory::new(SIZE))
        .with("slow", Memory::new(SIZE).slow());
    let exports = Arc::new(exports);
    let scratch = Scratch::new(name);
    let unix = Address::Unix(scratch.file("nbd.sock"));
    let addresses = [Address::parse("127.0.0.1:0", 0).expect("an address"), unix];
    let listeners = addresses.iter().map(|at| Listener::bind(at).expect("a free port")).collect();
    let budget = Budget::new(budget_bytes, limits::OWN_BYTES);
    let nbd = Nbd::new(Arc::<MemoryExports>::clone(&exports), Arc::clone(&budget));
    let server = serve(listeners, Arc::new(limited(nbd)), 2).expect("threads");
    Setup { exports, server, budget, _scratch: scratch }
}

impl Setup {
    pub(crate) fn connect(&self) -> Client {
        let Address::Tcp(address) = self.server.addresses()[0] else { panic!("TCP is first") };
        let socket = TcpStream::connect(address).expect("a server");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a time limit");
        Client { socket }
    }

    /// Connects a client and selects an export, without structured replies.
    pub(crate) fn client(&self, export: &str) -> Client {
        let mut client = self.connect();
        assert_eq!(client.get(18), b"NBDMAGICIHAVEOPT\0\x03");
        client.put(&[0, 0, 0, 3]);
        client.put(b"IHAVEOPT\0\0\0\x01");
        client.put(&(export.len() as u32).to_be_bytes());
        client.put(export.as_bytes());
        client.get(10);
        client
    }

    pub(crate) fn wait_for_connections(&self, count: usize) {
        let start = Instant::now();
        while self.server.connections() != count {
            assert!(start.elapsed() < Duration::from_secs(20), "{}", self.server.connections());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the connections have returned all memory to the budget. A connection keeps some
    /// memory until it ends.
    pub(crate) fn wait_for_memory(&self) {
        let start = Instant::now();
        while self.budget.used_bytes() != 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "{}", self.budget.used_bytes());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub(crate) struct Client {
    pub(crate) socket: TcpStream,
}

impl Client {
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("a connection");
    }

    pub(crate) fn get(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes).expect("an answer");
        bytes
    }

    pub(crate) fn ask(&mut self, flags: u16, kind: u16, cookie: u64, offset: u64, len: u32) {
        self.put(&request(flags, kind, cookie, offset, len));
    }

    /// Returns the error value and the cookie of the next simple reply.
    pub(crate) fn reply(&mut self) -> (u32, u64) {
        let bytes = self.get(16);
        assert_eq!(bytes[..4], [0x67, 0x44, 0x66, 0x98]);
        let cookie = u64::from_be_bytes(bytes[8..].try_into().expect("8 bytes"));
        (u32::from_be_bytes(bytes[4..8].try_into().expect("4 bytes")), cookie)
    }

    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => rest.is_empty(),
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

pub(crate) fn request(flags: u16, kind: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13];
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}
