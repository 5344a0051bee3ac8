//! Calls that send and receive streams.

pub(crate) mod receive_calls;
pub(crate) mod send_calls;
