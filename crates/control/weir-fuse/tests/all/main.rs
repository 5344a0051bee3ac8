//! Tests of a mount and an NFS server that share one open filesystem. They need root and
//! `/dev/fuse`.
//!
//! Not here: programs on a mount without NFS (the tests of the program `weir`).
//!
//! Invariants:
//! - a test ends within [`common::LIMIT`], although a call on a broken mount could wait for ever;
//! - no test leaves a mount behind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in shared functions too")]

mod coherence;
mod common;
mod load;
#[expect(dead_code, reason = "only the tests of the program write through mappings")]
#[path = "../../../../../bin/weir/tests/all/common/mapped.rs"]
mod mapped;
