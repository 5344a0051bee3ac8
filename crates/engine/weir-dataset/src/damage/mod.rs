//! Damage: search, names, checks, and recovery of space that damage kept allocated.

pub(crate) mod check;
pub(crate) mod find;
pub(crate) mod named;
pub(crate) mod recount;
