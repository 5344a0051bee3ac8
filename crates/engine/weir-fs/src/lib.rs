//! Filesystems: directories and files on the objects of a dataset.
//!
//! The engine (weir-dataset) stores the objects, and weir-format has the structures in them. The
//! protocols and the mount are in other crates.
//!
//! Invariant: every structure that was read from disk is checked before it is used.

#![deny(clippy::indexing_slicing)]

pub mod directory;
