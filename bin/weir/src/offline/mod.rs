//! Tools that work on disks without a server.

pub(crate) mod check;
pub(crate) mod disks;
pub(crate) mod rescue;
