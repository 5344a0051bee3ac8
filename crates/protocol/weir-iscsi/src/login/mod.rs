//! The login phase: stages, keys and authentication.

pub(crate) mod authenticate;
pub(crate) mod negotiated;
pub(crate) mod phases;
