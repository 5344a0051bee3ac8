//! Computes the changes of one operation on a filesystem.

pub(crate) mod apply;
pub(crate) mod charge;
pub(crate) mod data;
pub(crate) mod entries;
pub(crate) mod node;
pub(crate) mod reads;
pub(crate) mod usage;
pub(crate) mod xattrs;
