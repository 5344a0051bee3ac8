//! JSON types of version 1: the requests and responses of all calls.
//!
//! `calls` and `routes` have the transport over HTTP; the command line formats responses for users.
//!
//! Invariants:
//! - sizes are in bytes, times are in milliseconds since 1970 UTC, and a field's name ends with its
//!   unit;
//! - identities are text, because a number in JavaScript cannot represent all 64-bit integers;
//! - an unknown field in a request is an error, so that a misspelled name is never ignored.

use request::names_nothing_else;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Error;

mod advise;
mod bookmark;
mod maintenance;
mod compression;
mod damage;
mod event;
mod export;
mod files;
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

pub use advise::*;
pub use bookmark::*;
pub use compression::*;
pub use damage::*;
pub use event::*;
pub use export::*;
pub use files::*;
pub use flush::*;
pub use io::*;
pub use maintenance::*;
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
pub use volume::size::{check_volume_size, record_size};
pub use volume::*;

/// Memory use of the server, by part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryUse {
    /// Resident memory of the process now.
    pub resident_bytes: u64,
    /// Upper limit of the resident memory.
    pub resident_max_bytes: u64,
    /// Parts of the server's memory. `dedupe` is included in `pools`; `process` is in addition to
    /// `--memory`.
    pub parts: Vec<MemoryPart>,
}

/// One part of the server's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryPart {
    /// Name of the part: `connections`, `pools`, `dedupe` or `process`.
    pub name: String,
    /// Upper limit of this part.
    pub limit_bytes: u64,
    /// Bytes in use now, as far as the server counts them.
    pub used_bytes: u64,
}

/// Version, addresses and memory use of the server process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerInfo {
    /// Version of Weir.
    pub version: String,
    /// Process id of the server.
    pub pid: u32,
    /// Time since the server started.
    pub uptime_ms: u64,
    /// The memory limit (`--memory`).
    pub memory_cap_bytes: u64,
    /// Memory in use for caches and for data not yet written.
    pub memory_used_bytes: u64,
    /// Limits of the parts of `--memory`, and total memory use of the process.
    #[serde(default)]
    pub memory: MemoryUse,
    /// Addresses of the NBD server, as `HOST:PORT` or `unix:PATH`.
    pub nbd_addresses: Vec<String>,
    /// Portals of the iSCSI server, as `HOST:PORT,GROUP`.
    #[serde(default)]
    pub iscsi_portals: Vec<String>,
    /// Addresses of the NFS server, as `HOST:PORT`.
    #[serde(default)]
    pub nfs_addresses: Vec<String>,
    /// Number of failed lookups of groups of NFS users (`manage_gids`) since the start.
    #[serde(default)]
    pub nfs_group_failures: u64,
    /// Disk I/O method: `io_uring`, or `polling` if the kernel refuses `io_uring`.
    pub io_backend: String,
}

names_nothing_else!(ServerInfo);

/// Request to show the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowServer {}

impl Request for ShowServer {
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}
