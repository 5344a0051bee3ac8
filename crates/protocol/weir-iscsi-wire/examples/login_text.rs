//! Encodes the text of an iSCSI login, frames it as a PDU, and decodes both (RFC 7143, section 6).
//!
//! `cargo run -p weir-iscsi-wire --example login_text`
//!
//! The example `read_capacity` of weir-initiator logs in to a target.
//!
//! Invariant: a PDU is its header of 48 bytes and its data, padded to four bytes.

#![expect(clippy::print_stdout, reason = "the keys are the result")]

use std::error::Error;

use weir_block::OutBuf;
use weir_iscsi_wire::pdu::{self, Digests, Header, opcode};
use weir_iscsi_wire::text;

fn main() -> Result<(), Box<dyn Error>> {
    let mut keys = Vec::new();
    text::put(&mut keys, "InitiatorName", "iqn.2026-01.example:host");
    text::put(&mut keys, "HeaderDigest", "CRC32C,None");
    let mut out = OutBuf::default();
    let header = Header::new(opcode::LOGIN, 0x87);
    pdu::put(&mut out, header, &keys, Digests { header: false, data: false });
    let bytes = out.filled();
    println!("{} bytes of keys in a PDU of {} bytes", keys.len(), bytes.len());
    assert_eq!(bytes.len(), 48 + keys.len().next_multiple_of(4));

    let pairs = text::pairs(&bytes[48..48 + keys.len()])?;
    pairs.iter().for_each(|(key, value)| println!("{key} = {value}"));
    let offered = pairs.iter().find(|(key, _)| *key == "HeaderDigest").expect("it was sent");
    assert_eq!(text::choose(offered.1, &["None", "CRC32C"]), Some("CRC32C"));
    Ok(())
}
