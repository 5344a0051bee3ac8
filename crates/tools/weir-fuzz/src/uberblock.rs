//! Fuzzes the uberblock: any bytes, and any contents with a valid header and checksum.
//!
//! The import of a pool chooses between several uberblocks; this target decodes single uberblocks.
//!
//! Invariants: no panic; an accepted uberblock survives encoding and decoding unchanged.

use weir_base::{Guid, Txg};
use weir_codec::checksum::xxh3_128;
use weir_format::layout::{FORMAT_VERSION, OLDEST_VERSION, SLOT_BYTES};
use weir_format::{BootstrapCopy, ImportEpoch, StaleLeg, Uberblock};

use crate::valid::trimmed;

/// Length of the magic number and the version.
const HEAD_BYTES: usize = 12;
const CHECKSUM_OFFSET: usize = SLOT_BYTES - 16;

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    check(data);
    // Random bytes never have a valid checksum, so add one; then the decoder also reads the fields.
    let mut slot = sample().encode();
    let len = data.len().min(CHECKSUM_OFFSET - HEAD_BYTES);
    slot[HEAD_BYTES..HEAD_BYTES + len].copy_from_slice(&data[..len]);
    let checksum = xxh3_128(&slot[..CHECKSUM_OFFSET]);
    slot[CHECKSUM_OFFSET..].copy_from_slice(&checksum.to_le_bytes());
    check(&slot);
}

/// Uberblocks with and without lists of legs, and the contents of these uberblocks.
pub fn seeds() -> Vec<Vec<u8>> {
    let leg = |number| StaleLeg { guid: Guid(number), after: Txg(number) };
    let import_epoch = |number| ImportEpoch { id: Guid(number), first: Txg(number) };
    let large = Uberblock {
        txg: Txg(9),
        log_offset: 4096,
        bootstrap: vec![BootstrapCopy { vdev: 1, offset: 1 << 20 }; 3],
        bootstrap_bytes: 4096,
        stale_legs: vec![leg(1), leg(2)],
        lineage: vec![import_epoch(1), import_epoch(2)],
        unconfirmed_legs: vec![leg(3)],
        ..sample()
    };
    let old = Uberblock { version: OLDEST_VERSION, ..sample() };
    let slots = [sample(), large, old].map(|uberblock| uberblock.encode());
    let parts =
        |slot: &[u8; SLOT_BYTES]| [slot.to_vec(), trimmed(&slot[HEAD_BYTES..CHECKSUM_OFFSET])];
    slots.iter().flat_map(parts).collect()
}

fn check(bytes: &[u8]) {
    let Ok(uberblock) = Uberblock::decode(bytes) else { return };
    let again = Uberblock::decode(&uberblock.encode()).expect("an encoded uberblock is valid");
    assert_eq!(again, uberblock);
}

fn sample() -> Uberblock {
    Uberblock {
        version: FORMAT_VERSION,
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
        lineage: vec![ImportEpoch { id: Guid(1), first: Txg(1) }],
        unconfirmed_legs: Vec::new(),
    }
}
