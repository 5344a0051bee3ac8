//! Scrub and resilver: when they run, and how fast.

pub(crate) mod run;
