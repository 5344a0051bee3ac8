//! Fuzzes the label: any bytes, and any body after a valid header and with a valid checksum.
//!
//! The import of a pool chooses between several labels; this target decodes single labels.
//!
//! Invariants: no panic; an accepted label has a usable geometry and survives encoding and decoding
//! unchanged.

use weir_base::{Guid, Txg};
use weir_format::label::checksum_of;
use weir_format::layout::{FORMAT_VERSION, OLDEST_VERSION};
use weir_format::{Feature, Features, Label, LegConfig, VdevConfig, VdevKind, VdevRole};

use crate::valid::trimmed;

/// Length of the magic number and the version.
const HEAD_BYTES: usize = 12;

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    check(data);
    // Random bytes never have a valid checksum, so add one; then the decoder also reads the body.
    for version in OLDEST_VERSION..=FORMAT_VERSION {
        let mut sealed = head(version);
        sealed.extend_from_slice(&(data.len() as u32).to_le_bytes());
        sealed.extend_from_slice(&checksum_of(version, data).to_le_bytes());
        sealed.extend_from_slice(data);
        check(&sealed);
    }
}

/// Labels of a pool with vdevs of all kinds and roles, and the bodies of these labels.
pub fn seeds() -> Vec<Vec<u8>> {
    let vdev = |kind, role, legs: u64| {
        let leg = |number| LegConfig { guid: Guid(number), path: format!("/dev/{number}") };
        VdevConfig { kind, role, disk_bytes: 1 << 30, legs: (0..legs).map(leg).collect() }
    };
    let small = Label {
        version: FORMAT_VERSION,
        pool: Guid(1),
        name: "tank".to_owned(),
        disk: Guid(0),
        txg: Txg(5),
        segment_bytes: 4 << 20,
        strip_bytes: 64 << 10,
        log_bytes: 16 << 20,
        vdevs: vec![vdev(VdevKind::Disk, VdevRole::Data, 1)],
        features: Features::default(),
    };
    let vdevs = vec![
        vdev(VdevKind::Mirror, VdevRole::Data, 2),
        VdevConfig::REMOVED,
        vdev(VdevKind::Raidz2, VdevRole::Evacuating, 5),
        vdev(VdevKind::Disk, VdevRole::Log, 1),
        vdev(VdevKind::Disk, VdevRole::Spare, 1),
    ];
    let needs = "needs weir 0.7".to_owned();
    let features = Features {
        incompatible: Vec::new(),
        read_only_compatible: vec![Feature { bit: 40, needs }],
    };
    let large = Label { vdevs, features, ..small.clone() };
    let old = Label { version: OLDEST_VERSION, ..small.clone() };
    let bytes = [small, large, old].map(|label| label.encode());
    bytes.iter().flat_map(|bytes| [trimmed(bytes), trimmed(&bytes[HEAD_BYTES + 20..])]).collect()
}

fn check(bytes: &[u8]) {
    let Ok(label) = Label::decode(bytes) else { return };
    for vdev in &label.vdevs {
        assert!(label.vdev_bytes(vdev) <= vdev.disk_bytes * vdev.data_strips() as u64);
    }
    let again = Label::decode(&label.encode()).expect("an encoded label is valid");
    assert_eq!(again, label);
}

/// Returns the magic number and the version, as the encoder writes them.
fn head(version: u32) -> Vec<u8> {
    let empty = Label {
        version,
        pool: Guid(0),
        name: String::new(),
        disk: Guid(0),
        txg: Txg(0),
        segment_bytes: 0,
        strip_bytes: 0,
        log_bytes: 0,
        vdevs: Vec::new(),
        features: Features::default(),
    };
    let mut bytes = empty.encode();
    bytes.truncate(HEAD_BYTES);
    bytes
}
