//! Creation and import of pools.

pub(crate) mod import;
