//! Storage benchmark: measures any block or file target and judges whether each number is valid.
//!
//! Not here: the storage engine, which this crate does not depend on; the command line, which is in
//! the binary.
//!
//! Flow: a profile expands to a [`spec::RunSpec`]; a run of it produces a [`result::RunResult`],
//! stored as `result.json`. Tables, charts and comparisons read only that file.
//!
//! Invariant: this crate reports no figure without the verdict on its cell.

pub mod bonnie;
pub mod calibrate;
pub mod clients;
pub mod compare;
pub mod content;
mod coverage;
#[cfg(test)]
mod fixture;
pub mod histogram;
mod judge;
pub mod load;
mod machine_cpu;
mod notes;
pub mod profile;
pub mod queue;
pub mod reference;
pub mod report;
pub mod requirement;
pub mod result;
pub mod run;
pub mod selftest;
pub mod spec;
pub mod standing;
pub mod stats;
pub mod summary;
pub mod target;
pub mod verdict;
pub mod verify;
mod words;
