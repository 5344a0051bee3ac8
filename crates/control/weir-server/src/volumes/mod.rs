//! Calls about volumes: create, change, destroy, properties, advice.

pub(crate) mod advice_calls;
pub(crate) mod kinds;
pub(crate) mod property_calls;
pub(crate) mod volume_calls;
