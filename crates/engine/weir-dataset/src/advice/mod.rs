//! Advice: estimates of the space that other settings would save.

pub(crate) mod advise;
pub(crate) mod estimate;
