//! Damage: found, named, and what it kept given back.

pub(crate) mod find;
pub(crate) mod recount;
