//! Serves one volume in memory over NBD, to test clients and to measure the cost of the protocol
//! without storage.
//!
//! The volume is not persistent: its contents are lost when the program ends.
//!
//! Usage: `memory ADDRESS [MEBIBYTES [slow]]`, for example `memory unix:/tmp/nbd.sock 1024`.
//!
//! Invariant: the program runs until its standard input ends.

#[path = "../tests/all/common/memory.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod memory;

use std::sync::Arc;

use memory::{Memory, MemoryExports};
use weir_nbd::limits::OWN_BYTES;
use weir_nbd::{DEFAULT_PORT, Nbd};
use weir_net::{Address, Budget, Listener, serve};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = Address::parse(&arguments.next().unwrap_or_default(), DEFAULT_PORT)?;
    let mebibytes: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(256);
    let mut volume = Memory::new(mebibytes << 20);
    if arguments.next().is_some() {
        volume = volume.slow();
    }
    let exports = Arc::new(MemoryExports::default().with("memory", volume));
    let nbd = Nbd::new(exports, Budget::new(256 << 20, OWN_BYTES));
    let server = serve(vec![Listener::bind(&address)?], Arc::new(nbd), 1)?;
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line)? > 0 {
        line.clear();
    }
    server.stop();
    Ok(())
}
