//! Targets, sessions, and the throttle for wrong secrets.

pub(crate) mod auth_throttle;
pub(crate) mod denial;
pub(crate) mod session_table;
pub(crate) mod targets;
