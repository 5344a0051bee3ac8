//! Pools under watch: events, and disks that do not answer.

pub(crate) mod patience;
pub(crate) mod pool_monitor;
pub(crate) mod unresponsive;
