//! Tools that read disks without a server.

pub(crate) mod check;
pub(crate) mod disks;
pub(crate) mod rescue;
mod rescue_tree;
mod rescue_volume;
