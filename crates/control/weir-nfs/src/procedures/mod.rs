//! Procedures of NFSv3.

pub(crate) mod at;
mod content;
mod directories;
mod names;
mod properties;

pub(crate) mod dispatch;
