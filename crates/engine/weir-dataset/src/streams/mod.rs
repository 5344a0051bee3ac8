//! Streams: send, receive, and digests that compare two sides.

pub(crate) mod digest;
pub(crate) mod receive;
pub(crate) mod send;
mod send_objects;
