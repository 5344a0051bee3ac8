//! Encodings of SAM, SPC and SBC, and what a transport hands over.

pub(crate) mod copy_list;
pub(crate) mod operation;
pub(crate) mod port;
pub mod sense;
pub(crate) mod transport;
