//! Start-up, the dispatch of calls, and their record.

pub(crate) mod demo;
pub(crate) mod dispatch;
pub(crate) mod options;
pub mod process;
pub(crate) mod recorder;
#[cfg(test)]
pub(crate) mod rights_walk;
pub(crate) mod run;
