//! Directories: the comparison and hash of names, and the tree of entries.
//!
//! The blocks of the tree are structures of weir-format.
//!
//! Invariant: an entry keeps its key until it is removed, whatever happens to other entries.

mod check;
mod folding;
mod names;
mod tree;

pub use check::{Checked, check};
pub use folding::fold;
pub use names::{NameHash, SearchName};
pub(crate) use tree::probe_list;
pub use tree::{BlockSource, Blocks, DirectoryError, DirectoryTree, Entry, Probe, TreeChanges};

#[cfg(test)]
mod tests;
