//! One tree of a dataset with its changes that no transaction group has committed.

pub(crate) mod block_map;
pub(crate) mod dirty;
pub(crate) mod leaves;
pub(crate) mod range_set;
pub(crate) mod record;
