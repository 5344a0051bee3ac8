//! Fuzzes the uberblock: any bytes, and any content under a right header and checksum.
//!
//! Not here: which uberblock an import takes.
//!
//! Invariants: no panic; what is accepted is written and read back unchanged.

#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_base::{Guid, Txg};
use weir_codec::checksum::xxh3_128;
use weir_format::layout::SLOT_BYTES;
use weir_format::{BootstrapCopy, Opening, Uberblock};

/// Magic and version.
const HEAD_BYTES: usize = 12;
const CHECKSUM_OFFSET: usize = SLOT_BYTES - 16;

fuzz_target!(|data: &[u8]| {
    check(data);
    // Random bytes never have a right checksum: give them one, so that the fields are reached too.
    let mut slot = sample().encode();
    let len = data.len().min(CHECKSUM_OFFSET - HEAD_BYTES);
    slot[HEAD_BYTES..HEAD_BYTES + len].copy_from_slice(&data[..len]);
    let checksum = xxh3_128(&slot[..CHECKSUM_OFFSET]);
    slot[CHECKSUM_OFFSET..].copy_from_slice(&checksum.to_le_bytes());
    check(&slot);
});

fn check(bytes: &[u8]) {
    let Ok(uberblock) = Uberblock::decode(bytes) else { return };
    let again = Uberblock::decode(&uberblock.encode()).expect("an encoded uberblock is valid");
    assert_eq!(again, uberblock);
}

fn sample() -> Uberblock {
    Uberblock {
        pool: Guid(1),
        txg: Txg(1),
        unix_ms: 0,
        log_epoch: 0,
        log_vdev: 0,
        log_batch: 0,
        log_offset: 0,
        bootstrap: vec![BootstrapCopy { vdev: 0, offset: 0 }],
        bootstrap_bytes: 0,
        bootstrap_checksum: 0,
        stale_legs: Vec::new(),
        lineage: vec![Opening { id: Guid(1), first: Txg(1) }],
        unconfirmed_legs: Vec::new(),
    }
}
