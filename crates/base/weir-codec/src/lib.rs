//! Checksums, compression and parity: pure functions.
//!
//! Not here: which block gets which (weir-pool).
//!
//! Invariants: no I/O, no state between calls but the scratch tables a caller owns; every decoder
//! takes hostile bytes and answers with an error, never a panic.

pub mod checksum;
pub mod compress;
pub mod parity;
