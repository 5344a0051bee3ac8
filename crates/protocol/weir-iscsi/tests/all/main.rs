//! Whole iSCSI sessions over sockets, a file for each side of them.
//!
//! Not here: the login as a machine (src/login), real initiators (bin/weir/tests).
//!
//! Invariant: one binary: each test binary would build generic code anew and link all crates.

mod common;
mod hostile;
mod limits;
mod logins;
mod moves;
mod sessions;
