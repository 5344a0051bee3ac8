//! Scrub and resilver: when, and how fast.

pub(crate) mod run;
