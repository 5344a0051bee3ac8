//! Free TCP ports on loopback, for servers that need a port number when they start.
//!
//! Not here: servers that bind port 0 and report the port that they got.
//!
//! Invariants:
//! - two tests never get the same port, neither in one run nor in concurrent runs on this machine:
//!   each port has a lock file, which the test process keeps locked until it exits;
//! - no port is in the range from which the kernel chooses the ports of clients.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 10_000;
/// Number of ports among which to search. All are below 32,768, from where on Linux chooses the
/// ports of clients.
const COUNT: u16 = 20_000;

/// Lock files of the ports that this process has locked.
static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
static TRIED: AtomicU16 = AtomicU16::new(0);

/// Returns a port on which no process listens, and locks it for this test process.
pub(crate) fn free_port() -> u16 {
    let locks = std::env::temp_dir().join("weir-test-ports");
    fs::create_dir_all(&locks).unwrap();
    // Start the search at another port in each process, so that two processes seldom try the same
    // port.
    let start = (std::process::id() * 16) % u32::from(COUNT);
    for _ in 0..COUNT {
        let next = start + u32::from(TRIED.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + (next % u32::from(COUNT)) as u16;
        let lock = OpenOptions::new().create(true).append(true).open(locks.join(port.to_string()));
        let Ok(lock) = lock else { continue };
        let is_free = || TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if lock.try_lock().is_ok() && is_free() {
            HELD.lock().unwrap().push(lock);
            return port;
        }
    }
    panic!("no free port from {FIRST} on; locks are in {}", locks.display());
}

/// Returns a free port with the loopback address, as `127.0.0.1:PORT`.
pub(crate) fn free_address() -> String {
    format!("{}:{}", Ipv4Addr::LOCALHOST, free_port())
}
