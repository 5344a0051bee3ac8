//! One transaction group of all volumes, the directory of datasets, and replay of the intent log.

pub(crate) mod directory;
pub(crate) mod freeing;
pub(crate) mod partial;
pub(crate) mod replay;
pub(crate) mod txg;
pub(crate) mod write_table;
pub(crate) mod written;
