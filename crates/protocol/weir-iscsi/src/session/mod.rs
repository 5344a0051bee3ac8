//! Socket side of a connection: receives requests and sends responses.

pub(crate) mod serve;
