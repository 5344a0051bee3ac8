//! Tests of the SCSI target on volumes in memory, one file for each family of commands.
//!
//! The tests use no transport; commands go directly to a nexus.
//!
//! Invariant: there is one test binary. Each further binary would compile generic code again and
//! link all crates.

mod commands;
mod common;
mod copies;
mod limits;
mod many_units;
mod races;
mod reservations;
mod token_ends;
mod token_races;
mod tokens;
