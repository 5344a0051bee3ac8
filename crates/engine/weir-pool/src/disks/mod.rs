//! Disks: legs, mirrors and raidz vdevs, their labels, and reads that avoid slow legs.

pub(crate) mod checksum_errors;
pub(crate) mod hedge;
pub(crate) mod labels;
pub(crate) mod layout;
pub(crate) mod leg;
pub(crate) mod leg_state;
pub(crate) mod legs;
pub(crate) mod lineage;
pub(crate) mod owner_guard;
pub(crate) mod owner_slot;
pub(crate) mod raidz;
pub(crate) mod repairs;
pub(crate) mod rows;
pub(crate) mod scan_kind;
pub(crate) mod slowness;
pub(crate) mod vdev;
pub(crate) mod vdevs;
