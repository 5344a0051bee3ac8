//! Block reads: translate, verify, decompress.

pub(crate) mod records;
pub(crate) mod tables;
