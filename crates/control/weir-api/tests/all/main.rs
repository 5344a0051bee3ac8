//! Tests of the API over its sockets, and of the documents generated from it.
//!
//! The command line has its tests in bin/weir/tests.
//!
//! Invariant: all tests are in one binary, because each further test binary would compile generic
//! code again and link all crates.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in shared functions too")]

#[path = "support/fake.rs"]
mod fake;

mod access;
mod documents;
mod http;
mod limits;
mod peers;
