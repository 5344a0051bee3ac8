//! Tests of NBD sessions over sockets, with raw messages and with real clients.
//!
//! Tests of the shipped binary are in bin/weir/tests.
//!
//! Invariant: the crate has only one test binary, because each further binary would compile generic
//! code again and link all crates.

mod common;
mod limits;
mod real_clients;
mod sessions;
