//! Input and output of one connection.

pub(crate) mod busy_poll;
pub(crate) mod input;
pub(crate) mod outgoing;
pub(crate) mod signal;
pub(crate) mod socket;
pub(crate) mod tls;
