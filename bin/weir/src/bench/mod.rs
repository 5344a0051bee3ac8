//! `weir bench`: measures storage with weir-bench.

pub(crate) mod agents;
pub(crate) mod answer;
pub(crate) mod folder;
pub(crate) mod measure;
pub(crate) mod own;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod results;
pub(crate) mod run;
pub(crate) mod show;
pub(crate) mod text;
pub(crate) mod trust;
