//! Connections: the table of them, their memory, turns and threads.

pub(crate) mod balance;
pub(crate) mod connection_table;
pub(crate) mod fair_queue;
pub(crate) mod memory_budget;
