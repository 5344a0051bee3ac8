//! NFS version 3: the parts of a server between the messages of clients and weir-fs.
//!
//! weir-oncrpc and weir-nfs-wire have the messages, weir-net the threads and sockets, and
//! weir-server the management of shares.
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
pub mod rpcbind;
mod session;
mod share;
mod status;

pub use attributes::{fattr, set_attributes, wcc};
pub use duplicates::{Begun, CacheOptions, CallKey, Duplicates, Running, Waiting};
pub use handle::{Handle, HandleKey, ShareId};
pub use procedures::paths::find_directory;
pub use programs::{Client, Mounts, Server, put_data};
pub use session::{Nfs, SessionError};
pub use share::{
    CallClass, CallFigures, ClassFigures, ClientFigures, ClientName, Decision, FindGroups,
    FindHosts, FoundHost, Groups, Identity, Incident, IncidentCounts, Incidents, NameState,
    NameWaits, Names, Refusal, Rights, Rule, RuleError, Rules, Share, ShareStatistics, Shares,
    Squash, Watcher, WatcherSlot, identify,
};
pub use status::{mount_status, status};
