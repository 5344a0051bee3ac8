//! Logs in to an iSCSI target and prints the name and the capacity of a logical unit.
//!
//! `cargo run -p weir-initiator --example read_capacity -- URL`, for example with the URL
//! iscsi://127.0.0.1/iqn.2026-01.org.weir:vms/0; `weir target show vms` prints the portals.
//!
//! To run many commands at once, use `Connection`, as weir-bench does.
//!
//! Invariant: the example writes nothing to the logical unit.

#![expect(clippy::print_stdout, reason = "the capacity is the result")]

use std::error::Error;

use weir_initiator::{LoginOptions, Session, Url};

fn main() -> Result<(), Box<dyn Error>> {
    let text = std::env::args().nth(1).ok_or("usage: read_capacity iscsi://HOST/TARGET/LUN")?;
    let url = Url::parse(&text)?;
    let mut session = Session::login(&url, &LoginOptions::of(&url)?)?;
    let [vendor, product, revision] = session.inquiry()?.names;
    let capacity = session.read_capacity()?;
    println!("{vendor} {product} {revision}: {} bytes", capacity.bytes());
    println!("{} blocks of {} bytes", capacity.blocks, capacity.block_bytes);
    Ok(session.logout()?)
}
