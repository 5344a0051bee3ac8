//! Sockets: receives requests, sends answers.

pub(crate) mod serve;
