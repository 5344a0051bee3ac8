//! Calls for shares.

mod client_names;
mod offer;
pub(crate) mod share_calls;
