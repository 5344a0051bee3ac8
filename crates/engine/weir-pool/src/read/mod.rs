//! Reads of blocks: translate, verify, decompress.

pub(crate) mod records;
pub(crate) mod tables;
