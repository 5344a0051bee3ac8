//! Properties: set, inherit, and the effects of a change.

pub(crate) mod change;
