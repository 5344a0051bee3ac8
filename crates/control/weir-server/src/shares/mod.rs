//! Calls for shares.

mod client_names;
pub(crate) mod incident_events;
mod offer;
pub(crate) mod share_calls;
