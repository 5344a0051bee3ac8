//! State of a logical unit: reservations, attentions, locks, tokens, nexuses.

pub(crate) mod attention;
pub(crate) mod itl_nexus;
pub(crate) mod logical_unit;
pub(crate) mod lost;
pub(crate) mod range_lock;
pub mod reservation;
pub(crate) mod rod_tokens;
