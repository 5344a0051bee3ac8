//! Datasets with many objects in scenarios: a layer above the engine, its expected state and an
//! actor that uses it.

pub(crate) mod actor;
pub(crate) mod book;
mod content;
pub(crate) mod layer;
pub(crate) mod lost_nodes;
mod model;
pub(crate) mod readable;
mod replica;
mod sent;
#[cfg(test)]
mod tests;
