//! weir-pool's steps for legs and vdevs, with the commits between them.

pub(crate) mod legs;
pub(crate) mod vdevs;
