//! The threads.

pub(crate) mod acceptor;
pub(crate) mod serve;
pub(crate) mod worker;
