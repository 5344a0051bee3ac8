//! Serves one disk in memory over iSCSI, to test initiators and to measure the cost of the protocol
//! without storage.
//!
//! The disk is not persistent: its contents are lost when the program ends.
//!
//! Usage: `memory ADDRESS [MEBIBYTES [slow [USER SECRET]]]`, for example
//! `memory 127.0.0.1:3260 1024`.
//!
//! Invariant: the program runs until its standard input ends.

#[path = "../tests/all/common/memory.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod memory;

use std::sync::Arc;

use memory::{Disk, MemoryTargets};
use weir_iscsi::limits::OWN;
use weir_iscsi::{Authentication, Iscsi};
use weir_iscsi_wire::{Credentials, DEFAULT_PORT, Secret};
use weir_net::{Address, Budget, Listener, serve};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = Address::parse(&arguments.next().unwrap_or_default(), DEFAULT_PORT)?;
    let mebibytes: usize = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(256);
    let mut disk = Disk::new(mebibytes << 20);
    if arguments.next().is_some_and(|word| word == "slow") {
        disk = disk.slow();
    }
    let targets = MemoryTargets::new(disk);
    if let (Some(name), Some(secret)) = (arguments.next(), arguments.next()) {
        let initiator = Credentials { name, secret: Secret::new(secret.into_bytes()) };
        *targets.authentication.lock() = Authentication::Chap { initiator, target: None };
    }
    let listener = Listener::bind(&address)?;
    if let Address::Tcp(address) = listener.address()? {
        targets.set_portals(&[address]);
    }
    let server =
        serve(vec![listener], Arc::new(Iscsi::new(targets, Budget::new(256 << 20, OWN))), 1)?;
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line)? > 0 {
        line.clear();
    }
    server.stop();
    Ok(())
}
