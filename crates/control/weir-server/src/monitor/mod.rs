//! Monitoring of pools: events for changes, and unresponsive disks.

pub(crate) mod call_timeout;
pub(crate) mod pool_monitor;
pub(crate) mod unresponsive;
