//! Filesystems under power cuts.

mod access;
mod book;
mod client;
mod clones;
mod content;
mod data;
mod expected;
mod operator;
mod pool;
mod reads;
mod recovery;
mod run;
mod scenario;

pub use run::{FileCuts, cut_files, run_files};
pub use scenario::FilesScenario;
