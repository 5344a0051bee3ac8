//! The command line: one file for each noun.

pub(crate) mod advise;
pub(crate) mod args;
pub(crate) mod base;
pub(crate) mod bookmark;
pub(crate) mod cleaner;
pub(crate) mod damage;
pub(crate) mod events;
pub(crate) mod export;
pub(crate) mod filesystem;
pub(crate) mod iostat;
pub(crate) mod lun;
pub(crate) mod maintenance;
pub(crate) mod overview;
pub(crate) mod pool;
pub(crate) mod property;
pub(crate) mod replicate;
pub(crate) mod schedule;
pub(crate) mod server;
pub(crate) mod snapshot;
pub(crate) mod stream;
pub(crate) mod target;
pub(crate) mod token;
pub(crate) mod transfer;
pub(crate) mod vdev;
pub(crate) mod volume;
