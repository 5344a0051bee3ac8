//! Properties: setting, inheritance, and the effect of a change.

pub(crate) mod change;
