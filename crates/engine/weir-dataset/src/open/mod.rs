//! Pools are created and opened.

pub(crate) mod import;
