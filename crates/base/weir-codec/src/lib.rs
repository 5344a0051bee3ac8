//! Checksums, compression and parity as pure functions.
//!
//! weir-pool decides which block gets which checksum, compression and parity.
//!
//! Invariants: no I/O, and no state between calls except scratch tables that the caller owns; every
//! decoder accepts hostile bytes and returns an error instead of a panic.

pub mod checksum;
pub mod compress;
pub mod parity;
