//! Procedures of NFSv3.

pub(crate) mod at;
mod content;
mod directories;
mod names;
pub(crate) mod paths;
mod properties;
mod snapshots;
pub(crate) mod view;

pub(crate) mod dispatch;
