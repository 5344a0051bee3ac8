//! Tests of iSCSI sessions over sockets, one file for each aspect.
//!
//! Unit tests of the login are in src/login, tests with real initiators in bin/weir/tests.
//!
//! Invariant: there is one test binary. Each further binary would compile generic code again and
//! link all crates.

mod common;
mod hostile;
mod limits;
mod logins;
mod moves;
mod sessions;
