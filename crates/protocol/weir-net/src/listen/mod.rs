//! Listening addresses, and the clients that may connect to them.

pub(crate) mod allow;
pub(crate) mod listener;
pub(crate) mod socket_file;
