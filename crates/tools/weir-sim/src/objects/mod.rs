//! Datasets with many objects in scenarios: a layer above the engine, its expected state and an
//! actor that uses it.

mod actor;
mod book;
mod content;
mod layer;
mod model;

pub(crate) use actor::ObjectsActor;
pub(crate) use book::{FoundObjects, ObjectsBook, is_of_objects};
pub(crate) use layer::SimLayer;
