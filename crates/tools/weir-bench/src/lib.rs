//! Storage benchmark: measures any block or file target, and judges whether each figure is valid.
//!
//! This crate does not depend on the storage engine. The command line is in the binary.
//!
//! Flow: a profile expands to a [`spec::RunSpec`]; running the spec gives a [`result::RunResult`],
//! which is stored as `result.json`. Tables, charts and comparisons read only this file.
//!
//! Invariant: this crate reports no figure without the verdict on the cell of the figure.

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

pub use machine_cpu::process_cpu_s;
