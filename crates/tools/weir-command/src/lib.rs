//! Commands from the workspace root, processes that end with this one, and the results of fio.
//!
//! xtask and weir-peers share these parts. Neither imports the other, so that a build of xtask
//! contains no benchmark.
//!
//! Not here: the choice of programs (xtask, weir-peers).
//!
//! Invariant: this crate imports no crate of Weir, because every task compiles it first.

pub mod command;
pub mod fio;
pub mod process;
