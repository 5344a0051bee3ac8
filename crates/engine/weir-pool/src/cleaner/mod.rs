//! The cleaner: empties segments that hold little.

pub(crate) mod mover;
pub(crate) mod run;
pub(crate) mod status;
