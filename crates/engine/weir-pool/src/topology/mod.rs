//! Legs and vdevs that join, leave or fail, and the claim of the server that owns the pool.

pub(crate) mod claim;
pub(crate) mod legs;
mod returning;
pub(crate) mod status;
pub(crate) mod unresponsive;
pub(crate) mod vdevs;
