//! Connections: the connection table, memory budget, fair queue and load balancing.

pub(crate) mod balance;
pub(crate) mod connection_table;
pub(crate) mod fair_queue;
pub(crate) mod memory_budget;
