//! Sends INQUIRY and READ CAPACITY (16) to a logical unit on a medium in memory, without a
//! transport.
//!
//! `cargo run -p weir-scsi --example inquiry`
//!
//! Invariant: an initiator gets POWER ON before its first other command.

#![expect(clippy::print_stdout, reason = "the answers are the result")]

#[path = "../tests/all/common/medium.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod medium;

use std::error::Error;
use std::sync::Arc;

use medium::MemoryMedium;
use weir_block::OutBuf;
use weir_scsi::reservation::ReservationState;
use weir_scsi::{
    Attribute, Command, Identity, InitiatorPort, Isid, Lun, Nexus, Options, Port, Status, Target,
    Unit,
};

/// Runs a command on logical unit 0. Returns its status and its Data-In.
fn run(nexus: &dyn Nexus, cdb: [u8; 16]) -> (Status, Vec<u8>) {
    let (lun, attribute) = (Lun::new(0), Attribute::Simple);
    let command = Command { lun, cdb: &cdb, data_out: &[], attribute };
    let mut data_in = OutBuf::default();
    let completion = nexus.try_execute(&command, &mut data_in).expect("memory answers at once");
    (completion.status, data_in.filled().to_vec())
}

fn main() -> Result<(), Box<dyn Error>> {
    let text = str::to_owned;
    let (product, revision, serial) = (text("VOLUME"), text("1.0"), text("serial-1"));
    let identity = Identity { product, revision, serial, naa: [0x60; 16] };
    let medium = Arc::new(MemoryMedium::new(8 << 20));
    let unit = Unit::new(medium, identity, Options::default(), ReservationState::default(), None);
    let port = Port { relative: 1, name: text("iqn.2026-01.example:t,t,0x0001"), group: 1 };
    let target = Target::new("iqn.2026-01.example:t", vec![port], None);
    assert!(target.add_lun(0, unit), "the number is free");
    let isid = Isid([0x40, 0, 0, 0, 0, 1]);
    let nexus = target.nexus(InitiatorPort { name: text("iqn.2026-01.example:host"), isid }, 1);

    let (status, inquiry) = run(&nexus, [0x12, 0, 0, 0, 36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    println!("INQUIRY: {status:?}, {}", String::from_utf8_lossy(&inquiry[8..36]));
    println!("TEST UNIT READY: {:?} (POWER ON)", run(&nexus, [0; 16]).0);
    let (status, data) = run(&nexus, [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0]);
    let (last, block) = (u64::from_be_bytes(data[..8].try_into()?), &data[8..12]);
    let block_bytes = u32::from_be_bytes(block.try_into()?);
    println!("READ CAPACITY (16): {status:?}, {} blocks of {block_bytes} bytes", last + 1);
    Ok(())
}
