//! Checks of the counters against the trees, and what they give back.

pub(crate) mod check;
pub(crate) mod lost_tables;
pub(crate) mod recount;
