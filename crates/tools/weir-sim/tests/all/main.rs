//! Runs of the simulator, a file for each kind of trouble.
//!
//! Not here: the scenarios themselves (src).
//!
//! Invariant: one binary: each test binary would build generic code anew and link all crates.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in shared functions too")]

mod full_log;
mod hanging_leg;
mod log_damage;
mod lost_nodes;
mod lost_records;
mod newest_damaged;
mod owned_pool;
mod planted_bugs;
mod receive;
mod timed;
mod two_hosts;
