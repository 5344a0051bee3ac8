//! Which command runs, and for which nexus.

pub(crate) mod run;
pub(crate) mod target;
