//! The API over its sockets, and the documents made from it.
//!
//! Not here: the command line (bin/weir/tests).
//!
//! Invariant: one binary: each test binary would build generic code anew and link all crates.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in shared functions too")]

#[path = "support/fake.rs"]
mod fake;

mod access;
mod documents;
mod http;
mod limits;
mod peers;
