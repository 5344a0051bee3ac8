//! The cleaner: moves live blocks out of mostly dead segments.

pub(crate) mod mover;
pub(crate) mod run;
pub(crate) mod status;
