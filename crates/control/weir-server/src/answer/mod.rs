//! Conversion of engine values and errors to the types of the API.

pub(crate) mod errors;
pub(crate) mod layout;
pub mod metadata_loss;
pub(crate) mod names;
pub mod pool_status;
