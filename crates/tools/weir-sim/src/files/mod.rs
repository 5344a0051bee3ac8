//! Filesystems under power cuts.

mod access;
mod book;
mod client;
mod clones;
mod content;
mod damage;
mod data;
mod expected;
mod names;
mod nfs;
mod operator;
mod pool;
mod reads;
mod recovery;
mod replicas;
mod run;
mod scenario;
mod sent;

pub use nfs::{NfsCounts, NfsScenario, run_nfs};
pub use run::{FileCuts, cut_files, run_files};
pub use scenario::{FilesScenario, LegFault};
