//! Properties: set, inherited, and what a change of them does.

pub(crate) mod change;
