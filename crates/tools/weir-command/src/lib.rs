//! Runs commands from the workspace root, starts processes that end with this process, and parses
//! the results of fio.
//!
//! xtask and weir-peers share this crate. Neither of them imports the other, so that a build of
//! xtask contains no benchmark.
//!
//! xtask and weir-peers choose the programs to run.
//!
//! Invariant: this crate imports no other crate of Weir, because every task compiles this crate
//! first.

pub mod command;
pub mod fio;
pub mod process;
