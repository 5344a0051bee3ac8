//! Calls about NBD exports.

pub(crate) mod export_calls;
