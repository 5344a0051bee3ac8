//! Disks: legs, mirrors and raidz vdevs, their labels, and reads that avoid a slow leg.

pub(crate) mod checksum_errors;
pub(crate) mod hedge;
pub(crate) mod labels;
pub(crate) mod legs;
pub(crate) mod owner_guard;
pub(crate) mod raidz;
pub(crate) mod repairs;
pub(crate) mod rows;
pub(crate) mod vdev;
