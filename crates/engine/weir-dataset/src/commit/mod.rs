//! Txg commit of all volumes, the dataset directory, and replay of the intent log.

pub(crate) mod directory;
pub(crate) mod freeing;
pub(crate) mod partial;
pub(crate) mod replay_objects;
pub(crate) mod replay;
pub(crate) mod txg;
pub(crate) mod write_objects;
pub(crate) mod write_table;
pub(crate) mod written;
