//! Damage: search, names, checks, and recovery of the space that it kept allocated.

pub(crate) mod check;
pub(crate) mod find;
pub(crate) mod named;
pub(crate) mod recount;
