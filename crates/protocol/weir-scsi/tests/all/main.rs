//! The SCSI target on media in memory, a file for each family of commands.
//!
//! Not here: transports; commands go straight to a nexus.
//!
//! Invariant: one binary: each test binary would build generic code anew and link all crates.

mod commands;
mod common;
mod copies;
mod limits;
mod races;
mod reservations;
mod token_ends;
mod token_races;
mod tokens;
