//! Runs of the simulator, one file for each kind of fault.
//!
//! The scenarios are in src.
//!
//! Invariant: all tests are in one binary, because each further binary would compile generic code
//! again and link all crates.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in shared functions too")]

mod destroy;
mod files;
mod full_log;
mod hanging_leg;
mod log_damage;
mod lost_nodes;
mod lost_records;
mod newest_damaged;
mod nfs;
mod objects;
mod old_formats;
mod owned_pool;
mod planted_bugs;
mod receive;
mod timed;
mod two_hosts;
mod unfinished_txgs;
