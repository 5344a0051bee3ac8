//! In-memory parts of a dataset: its uncommitted changes, its records and its cached leaf nodes.

pub(crate) mod block_map;
pub(crate) mod dirty;
pub(crate) mod leaves;
pub(crate) mod log_bytes;
pub(crate) mod log_queue;
pub(crate) mod object;
pub(crate) mod object_log;
pub(crate) mod object_set;
pub(crate) mod range_set;
pub(crate) mod record;
