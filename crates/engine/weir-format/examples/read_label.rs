//! Encodes the label of a disk, decodes it, and decodes it again with one wrong byte: the checksum
//! finds the damage.
//!
//! `cargo run -p weir-format --example read_label`
//!
//! Invariant: a decoded label is equal to the encoded one.

#![expect(clippy::print_stdout, reason = "the outcome is the result")]

use std::error::Error;

use weir_base::{Guid, Txg};
use weir_format::layout::FORMAT_VERSION;
use weir_format::{Features, FormatError, Label, LegConfig, VdevConfig, VdevKind, VdevRole};

fn main() -> Result<(), Box<dyn Error>> {
    let legs = vec![LegConfig { guid: Guid(3), path: "/dev/sdc".to_owned() }];
    let (kind, role) = (VdevKind::Disk, VdevRole::Data);
    let vdevs = vec![VdevConfig { kind, role, disk_bytes: 4 << 30, legs }];
    let label = Label {
        version: FORMAT_VERSION,
        pool: Guid(1),
        name: "tank".to_owned(),
        disk: Guid(3),
        txg: Txg(42),
        segment_bytes: 32 << 20,
        strip_bytes: 64 << 10,
        log_bytes: 64 << 20,
        vdevs,
        features: Features::default(),
    };
    let mut copy = label.encode();
    let decoded = Label::decode(&copy)?;
    assert_eq!(decoded, label);
    let (vdev, leg) = decoded.place().ok_or("the disk is no leg of its pool")?;
    println!("pool {}, vdev {vdev}, leg {leg}, {:?}", decoded.name, decoded.txg);

    copy[100] ^= 1;
    let damaged = Label::decode(&copy).expect_err("the checksum finds the damage");
    assert!(matches!(damaged, FormatError::Checksum { .. }));
    println!("one bit changed: {damaged}");
    Ok(())
}
