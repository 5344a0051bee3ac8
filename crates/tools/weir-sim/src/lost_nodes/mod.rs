//! Scenario of lost tree nodes, for volumes and for datasets with many objects.
//!
//! `lost_records` loses records of a volume.
//!
//! Invariant: a damaged block or node affects only the content below it.

pub(crate) mod run;
pub(crate) mod volumes;
