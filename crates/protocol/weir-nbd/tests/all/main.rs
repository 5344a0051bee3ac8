//! Whole NBD sessions over sockets: byte for byte, and real clients.
//!
//! Not here: the shipped binary (bin/weir/tests).
//!
//! Invariant: one binary: each test binary would build generic code anew and link all crates.

mod common;
mod limits;
mod real_clients;
mod sessions;
