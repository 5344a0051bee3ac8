//! What other settings would save.

pub(crate) mod advise;
pub(crate) mod estimate;
