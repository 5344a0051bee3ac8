//! Encodings of SAM, SPC and SBC, and the interface to a transport.

pub(crate) mod command;
pub(crate) mod copy_list;
pub(crate) mod operation;
pub(crate) mod port;
pub(crate) mod refusal;
pub mod sense;
pub(crate) mod transport;
