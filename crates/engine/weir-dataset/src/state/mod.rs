//! The engine and its volumes in RAM: `Engine`, `Volume`, and the types of their fields.

pub(crate) mod engine;
pub(crate) mod pressure;
pub(crate) mod shared;
pub(crate) mod snapshot;
pub(crate) mod taken_by;
pub(crate) mod timer;
pub(crate) mod traffic;
pub(crate) mod volume;
