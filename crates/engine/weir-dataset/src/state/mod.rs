//! The engine and its volumes in RAM: `Engine`, `Volume`, and the types of their fields.

pub(crate) mod block_clone;
pub(crate) mod damage;
pub(crate) mod directory_losses;
pub(crate) mod engine;
pub(crate) mod layer_memory;
pub(crate) mod limits;
pub(crate) mod mark;
pub(crate) mod memory_split;
pub(crate) mod outcome;
pub(crate) mod pressure;
pub(crate) mod properties;
pub(crate) mod replacement;
pub(crate) mod scan_requests;
pub(crate) mod shared;
pub(crate) mod snapshot;
pub(crate) mod taken_by;
pub(crate) mod timer;
pub(crate) mod traffic;
pub(crate) mod volume;
