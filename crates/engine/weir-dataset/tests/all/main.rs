//! Tests of the engine on memory devices; each file covers one function.
//!
//! weir-sim tests crashes at every step; bin/weir/tests tests the shipped binary.
//!
//! Invariant: all tests are in one binary: the engine is generic code, and each test binary would
//! compile it again.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod bookmarks;
mod cleaner;
mod common;
mod copies;
mod creators;
mod damage;
mod engine;
mod legs;
mod limits;
mod loss_paths;
mod lost_nodes;
mod misreads;
mod model;
mod object_damage;
mod object_streams;
mod objects;
mod old_legs;
mod metadata_trees;
mod partial;
mod raidz;
mod raidz_scans;
mod records;
mod references;
mod restored;
mod scans;
mod send;
mod snapshots;
mod unread_trees;
mod vdevs;
