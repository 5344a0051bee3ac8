//! Free TCP ports of loopback for servers that must be told their port.
//!
//! Not here: servers that bind port 0 and report the port.
//!
//! Invariants:
//! - two tests never get the same port, in this run or in another one on this machine: each port
//!   has a lock file, which its test process holds to its end;
//! - no port is in the range from which the kernel takes ports for clients.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 10_000;
/// Linux gives clients ports from 32,768 on.
const COUNT: u16 = 20_000;

/// Locks of this process.
static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
static TRIED: AtomicU16 = AtomicU16::new(0);

/// A port that no process listens on and no other test uses.
pub(crate) fn free_port() -> u16 {
    let locks = std::env::temp_dir().join("weir-test-ports");
    fs::create_dir_all(&locks).unwrap();
    // Processes begin at different places, so that they seldom meet.
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

/// Such a port with the address of loopback, as `127.0.0.1:PORT`.
pub(crate) fn free_address() -> String {
    format!("{}:{}", Ipv4Addr::LOCALHOST, free_port())
}
