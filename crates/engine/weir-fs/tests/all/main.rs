//! Tests of filesystems on pools in memory.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail their test")]

mod common;
mod lists;
mod metadata;
mod model;
mod name_case;
mod operations;
mod quotas;
mod read_errors;
mod readable;
mod snapshots;
mod threads;
mod unnamed;
mod users;
mod xattrs;
