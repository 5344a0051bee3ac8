//! What the server offers, who is logged in, and how often a peer may guess a secret.

pub(crate) mod auth_throttle;
pub(crate) mod denial;
pub(crate) mod session_table;
pub(crate) mod targets;
