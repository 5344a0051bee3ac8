//! NFS version 3: the parts of a server between the messages of clients and weir-fs.
//!
//! weir-oncrpc and weir-nfs-wire have the messages, weir-net the connections. A later change adds
//! the session, which connects them with these parts; until then only tests use this crate.
//!
//! Spec: RFC 1813.
//!
//! Invariant: no input from a client makes this crate panic.

#![deny(clippy::indexing_slicing)]

mod attributes;
mod duplicates;
mod handle;
pub mod limits;
mod procedures;
mod programs;
mod share;
mod status;

pub use attributes::{fattr, set_attributes, wcc};
pub use duplicates::{Begun, CallKey, Duplicates, Running, Waiting};
pub use handle::{Handle, HandleKey, ShareId};
pub use programs::{Client, Mounts, Server};
pub use share::{
    Identity, Refusal, Rights, Rule, RuleError, Rules, Share, Shares, Squash, identify,
};
pub use status::{mount_status, status};
