//! iSCSI initiator library (RFC 7143, error recovery level 0, one connection per session), for
//! tools that measure and check targets. weir-iscsi is the target; both crates use the codec of
//! weir-iscsi-wire.
//!
//! Flow: [`Url`] -> `handshake` with [`login::Login`] -> [`Connection`], a socket with an
//! [`Exchange`]. [`Session`] runs one command after the other; weir-bench runs many at once.
//!
//! Invariants:
//! - no data from a target makes this crate panic, wait without a limit, or hold more memory than
//!   `limits` allows;
//! - [`login::Login`] and [`Exchange`] do no I/O, so that fuzzers can run them directly;
//! - no URL, error or `Debug` output contains a secret.

#![deny(clippy::indexing_slicing)]

pub mod cdb;
mod connection;
mod discovery;
mod error;
mod exchange;
mod facts;
mod handshake;
pub mod limits;
pub mod login;
mod options;
mod sense;
mod session;
mod negotiated;
mod url;

pub use connection::{Connection, WireBytes};
pub use discovery::{Discovered, discover};
pub use error::InitiatorError;
pub use exchange::{Answer, Buffers, Data, Done, Exchange};
pub use facts::{
    BlockLimits, Caching, Capacity, Inquiry, Provisioning, copy_segment_blocks_max, naa_in,
};
pub use negotiated::Negotiated;
pub use options::{Chap, LoginOptions};
pub use sense::{Advice, Sense, Status, advice};
pub use session::{Reply, Session};
pub use url::Url;
pub use weir_iscsi_wire::pdu::{Digests, Residual};
pub use weir_iscsi_wire::{Credentials, Secret};

/// Initiator name that is used if the user gives none.
pub const INITIATOR_NAME: &str = "iqn.2026-01.org.weir:initiator";
