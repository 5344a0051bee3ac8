//! Tests of calls on a server with a pool in memory.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail their test")]

mod calls;
mod common;
mod connections;
mod groups;
mod moves;
mod names;
mod replay_model;
mod replays;
mod shares;
mod snapshots;
mod watchers;
