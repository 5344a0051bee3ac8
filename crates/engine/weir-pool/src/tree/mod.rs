//! Read side of the block pointer trees.

pub(crate) mod change;
pub(crate) mod data_loss;
pub(crate) mod dataset_diff;
pub(crate) mod dataset_walk;
pub(crate) mod delta;
pub(crate) mod diff;
pub(crate) mod kind;
pub(crate) mod place;
pub(crate) mod live;
pub(crate) mod lost_nodes;
pub(crate) mod metadata_trees;
pub(crate) mod object_table;
pub(crate) mod radix_tree;
pub(crate) mod snapshot_chain;
pub(crate) mod trace;
