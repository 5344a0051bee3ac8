//! Server threads.

pub(crate) mod acceptor;
pub(crate) mod message;
pub(crate) mod protocol;
pub(crate) mod serve;
pub(crate) mod worker;
