//! The client side of iSCSI: what measures and checks targets speaks to them with this.
//!
//! Not here: the target side (weir-iscsi, whose codec this shares), what is measured (weir-bench).
//!
//! Place in the flow: [`Url`] -> `handshake` with [`login::Login`] -> [`Connection`], a socket with
//! an [`Exchange`]; [`Session`] runs one command after another on it, weir-bench many at once.
//!
//! Invariants:
//! - nothing a target sends makes this crate panic, wait without a limit, or hold more memory than
//!   `limits` says;
//! - [`login::Login`] and [`Exchange`] do no I/O, so that they can be fuzzed as they are;
//! - no secret is ever in a URL, an error or the output of `Debug`.
//!
//! Spec: RFC 7143; error recovery level 0, one connection per session.

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
mod terms;
mod url;

pub use connection::{Connection, WireBytes};
pub use discovery::{Discovered, discover};
pub use error::InitiatorError;
pub use exchange::{Answer, Buffers, Data, Done, Exchange};
pub use facts::{
    BlockLimits, Caching, Capacity, Inquiry, Provisioning, copy_segment_blocks_max, naa_in,
};
pub use options::{Chap, LoginOptions};
pub use sense::{Advice, Sense, Status, advice};
pub use session::{Reply, Session};
pub use terms::Terms;
pub use url::Url;
pub use weir_iscsi_wire::pdu::{Digests, Residual};
pub use weir_iscsi_wire::{Credentials, Secret};

/// What this side calls itself where nothing else is said.
pub const INITIATOR_NAME: &str = "iqn.2026-01.org.weir:initiator";
