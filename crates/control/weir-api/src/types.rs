//! The JSON types of version 1: what goes in and out of every call.
//!
//! Not here: how they travel (HTTP) or print (command line).
//!
//! Invariants:
//! - sizes are bytes, times are milliseconds since 1970 UTC, and the unit ends the field's name;
//! - identities are text: JavaScript cannot hold 64-bit numbers;
//! - an unknown field in a request is an error, so that a typing mistake is never ignored.

use request::names_nothing_else;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Error;

mod advise;
mod bookmark;
mod care;
mod compression;
mod damage;
mod event;
mod export;
mod flush;
mod io;
pub(crate) mod page;
mod pool;
mod property;
mod replication;
pub(crate) mod request;
mod schedule;
mod snapshot;
mod space;
mod stream;
mod target;
mod token;
mod transfer;
mod vdevs;
mod volume;
mod volume_size;

pub use advise::*;
pub use bookmark::*;
pub use care::*;
pub use compression::*;
pub use damage::*;
pub use event::*;
pub use export::*;
pub use flush::*;
pub use io::*;
pub use page::gone;
pub use pool::*;
pub use property::*;
pub use replication::*;
pub use request::{Answer, Outcome, Page, Removed, Request};
pub use schedule::*;
pub use snapshot::*;
pub use space::*;
pub use stream::*;
pub use target::*;
pub use token::*;
pub use transfer::*;
pub use vdevs::*;
pub use volume::*;
pub use volume_size::*;

/// How the memory of the server is split.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryUse {
    /// Resident memory of the process now.
    pub resident_bytes: u64,
    /// What it stays below.
    pub resident_max_bytes: u64,
    /// The parts; `dedupe` is a part of `pools`, and `process` comes on top of `--memory`.
    pub parts: Vec<MemoryPart>,
}

/// One part of the server's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryPart {
    /// `connections`, `pools`, `dedupe` or `process`.
    pub name: String,
    /// Most that it takes.
    pub limit_bytes: u64,
    /// Bytes in use now, as far as they are counted.
    pub used_bytes: u64,
}

/// What the server process is and uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerInfo {
    /// Version of Weir.
    pub version: String,
    /// Process number of the server.
    pub pid: u32,
    /// How long it has run.
    pub uptime_ms: u64,
    /// The memory it may use (`--memory`).
    pub memory_cap_bytes: u64,
    /// The part of that which caches and data not yet written use.
    pub memory_used_bytes: u64,
    /// How `--memory` is split, and what the process takes in all.
    #[serde(default)]
    pub memory: MemoryUse,
    /// Where it serves NBD, as `HOST:PORT` or `unix:PATH`.
    pub nbd_addresses: Vec<String>,
    /// Where it serves iSCSI, as `HOST:PORT,GROUP`.
    #[serde(default)]
    pub iscsi_portals: Vec<String>,
    /// How it reaches the disks: `io_uring`, or `polling` where the kernel refuses that.
    pub io_backend: String,
}

names_nothing_else!(ServerInfo);

/// The server that is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowServer {}

impl Request for ShowServer {
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}
