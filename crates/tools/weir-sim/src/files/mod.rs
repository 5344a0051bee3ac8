//! Filesystems under power cuts.

mod book;
mod client;
mod run;

pub use run::{FileCuts, cut_files};
