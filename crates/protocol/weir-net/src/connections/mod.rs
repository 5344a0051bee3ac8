//! Who is connected, and what each connection may use.

pub(crate) mod balance;
pub(crate) mod connection_table;
pub(crate) mod fair_queue;
pub(crate) mod memory_budget;
