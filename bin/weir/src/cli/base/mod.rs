//! Code that all verbs share: output, confirmation and the connection to the server.

pub(crate) mod complete;
pub(crate) mod confirm;
pub(crate) mod examples;
pub(crate) mod grammar;
pub(crate) mod hints;
pub(crate) mod layout;
pub(crate) mod leave;
pub(crate) mod list;
pub(crate) mod output;
pub(crate) mod pool_text;
pub(crate) mod remote;
pub(crate) mod session;
pub(crate) mod sizes;
pub(crate) mod slips;
pub(crate) mod typed;
