//! Fuzzes the label: any bytes, and any body under a right header and checksum.
//!
//! Not here: which label of a pool wins.
//!
//! Invariants: no panic; what is accepted can be used, and written and read back unchanged.

#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_base::{Guid, Txg};
use weir_codec::checksum::xxh3_128;
use weir_format::Label;

fuzz_target!(|data: &[u8]| {
    check(data);
    // Random bytes never have a right checksum: give them one, so that the body is reached too.
    let mut sealed = head();
    sealed.extend_from_slice(&(data.len() as u32).to_le_bytes());
    sealed.extend_from_slice(&xxh3_128(data).to_le_bytes());
    sealed.extend_from_slice(data);
    check(&sealed);
});

fn check(bytes: &[u8]) {
    let Ok(label) = Label::decode(bytes) else { return };
    for vdev in &label.vdevs {
        assert!(label.vdev_bytes(vdev) <= vdev.disk_bytes * vdev.data_strips() as u64);
    }
    let again = Label::decode(&label.encode()).expect("an encoded label is valid");
    assert_eq!(again, label);
}

/// Magic and version, as the encoder writes them.
fn head() -> Vec<u8> {
    let empty = Label {
        pool: Guid(0),
        name: String::new(),
        disk: Guid(0),
        txg: Txg(0),
        segment_bytes: 0,
        strip_bytes: 0,
        log_bytes: 0,
        vdevs: Vec::new(),
    };
    let mut bytes = empty.encode();
    bytes.truncate(12);
    bytes
}
