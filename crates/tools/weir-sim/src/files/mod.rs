//! Filesystems under power cuts.

mod book;
mod run;

pub use run::{FileCuts, cut_files};
