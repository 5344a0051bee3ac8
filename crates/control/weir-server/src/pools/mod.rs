//! Calls about pools, their disks and their maintenance.

pub(crate) mod last_scan;
pub(crate) mod leaving;
pub(crate) mod leg_calls;
pub(crate) mod maintenance_calls;
pub(crate) mod pool_calls;
mod reopening;
pub(crate) mod vdev_calls;
