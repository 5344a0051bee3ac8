//! Measures storage, any storage, and says of every number whether it can be trusted.
//!
//! Not here: the engine, of which this crate knows nothing; the command line (the binary).
//!
//! A profile becomes a [`spec::RunSpec`]; running it gives a [`result::RunResult`], which is
//! `result.json`; tables, charts and comparisons are made from that file alone.
//!
//! Invariant: no figure leaves this crate for a reader without the verdict of its cell.

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
