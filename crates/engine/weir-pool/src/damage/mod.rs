//! Checks of the counters against the trees, and recovery of leaked space.

pub(crate) mod check;
pub(crate) mod lost_tables;
pub(crate) mod recount;
