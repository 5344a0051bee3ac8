//! Replication: snapshots of volumes and of datasets with many objects, sent to replicas in the
//! same pool.
//!
//! `objects::replica` selects the snapshots of datasets with many objects.
//!
//! Invariant: a replica of each kind exists at most once.

pub(crate) mod replica;
pub(crate) mod volumes;
