//! Calls for shares.

mod offer;
pub(crate) mod share_calls;
