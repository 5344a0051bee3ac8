//! Damage: searches for it, names for it, and recovery of the space that it held.

pub(crate) mod check;
pub(crate) mod find;
pub(crate) mod recount;
