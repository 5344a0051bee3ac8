//! Checks of the pool's counters against its trees, and recovery of space that no tree references.

pub(crate) mod check;
pub(crate) mod lost_tables;
pub(crate) mod recount;
