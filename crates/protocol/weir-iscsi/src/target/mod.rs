//! Targets, the session table, and the throttle for CHAP responses.

pub(crate) mod auth_throttle;
pub(crate) mod denial;
pub(crate) mod session_table;
pub(crate) mod targets;
