//! Directories: the hash of names, and the tree of entries.
//!
//! The blocks of the tree are structures of weir-format.
//!
//! Invariant: an entry keeps its key until it is removed, whatever happens to other entries.

mod check;
mod hash;
mod tree;

pub use check::{Checked, check};
pub use hash::NameHash;
pub use tree::{
    BlockSource, Blocks, DirectoryError, DirectoryTree, Entry, Probe, TreeChanges, block_count,
};

#[cfg(test)]
mod tests;
