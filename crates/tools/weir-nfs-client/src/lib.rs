//! NFS version 3 client library (RFC 1813) for tools that measure and check servers. weir-nfs-wire
//! has the messages, weir-oncrpc the RPC headers.
//!
//! Flow: [`Url`] -> [`Client::mount`] -> [`Connection`], a socket with an [`Exchange`]. [`Client`]
//! runs one call after the other; weir-bench runs many at once on a connection.
//!
//! Invariants:
//! - no data from a server makes this crate panic, wait without a limit, or hold more memory than
//!   `limits` allows;
//! - [`Exchange`] does no I/O, so that fuzzers can run it directly;
//! - a lost connection loses its calls; the client sends a call again only after NFS3ERR_JUKEBOX.

#![deny(clippy::indexing_slicing)]

mod client;
mod connection;
mod error;
mod exchange;
mod handle;
pub mod limits;
mod mount;
mod refusal;
mod small_file;
mod socket;
mod url;

pub use client::{Client, Listed};
pub use connection::Connection;
pub use error::{NfsError, io_error};
pub use exchange::{Body, Buffers, Done, Exchange, Identity, Reply, Request};
pub use handle::Handle;
pub use mount::Mounted;
pub use refusal::Refusal;
pub use socket::SourcePort;
pub use url::{DEFAULT_PORT, Stability, Url};
