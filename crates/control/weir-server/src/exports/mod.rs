//! NBD exports and the calls that change them.

pub(crate) mod export_calls;
