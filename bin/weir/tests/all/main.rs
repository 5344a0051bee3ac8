//! End-to-end tests of the shipped program with real clients, SIGKILL and failing disks. Each area
//! has a file.
//!
//! Not here: the engine on disks in memory (weir-dataset), crashes at every step (weir-sim).
//!
//! Invariant: there is one test binary, because each further binary would link all crates of the
//! program again.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in shared functions too")]

mod access;
mod bad_clients;
mod bad_input;
mod bench;
mod bench_files;
mod bench_iscsi;
mod check;
mod cli;
mod common;
mod crash;
mod damage;
mod dead_disks;
mod demo;
mod embedding;
mod examples;
mod failing_disks;
mod files_model;
mod flush_check;
mod forecasts;
mod forged_filesystems;
mod full;
mod guide;
mod healing;
mod iscsi;
mod iscsi_kernel;
mod iscsi_tokens;
mod liars;
mod lies;
mod lifecycle;
mod lost_nodes;
mod memory;
mod mount_copies;
mod mount_rights;
mod mounts;
mod name_case;
mod nbd_access;
mod old_disks;
mod properties;
mod raidz;
mod records;
mod refusals;
mod replace;
mod replicate;
mod replicate_faults;
mod rescue;
mod rescue_tree;
mod scans;
mod selftest;
mod send;
mod sending;
mod shape;
mod shares;
mod shares_kernel;
mod shares_trouble;
mod snapshot_directory;
mod snapshots;
mod steady;
mod stuck_disks;
mod unauthenticated;
mod two_servers;
mod words;
