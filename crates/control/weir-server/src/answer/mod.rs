//! Engine values and errors as answers of the API.

pub(crate) mod errors;
pub mod metadata_loss;
pub(crate) mod names;
pub mod pool_status;
