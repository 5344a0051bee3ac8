//! The NBD server side: codec, session and listener, without any storage.
//!
//! Not here: volumes. The engine hands in [`Exports`]; docs/protocols/nbd.md says what clients get.
//!
//! Place in the flow: socket -> `session` (receive, send) -> `request` (decode, check) ->
//! `connection` (run) -> [`Export`] -> `reply` (encode) -> socket.
//!
//! Invariants:
//! - nothing a client sends makes this crate panic, or hold more memory than `limits` says;
//! - `wire`, `negotiate`, `request` and `reply` do no I/O, so that they can be fuzzed as they are.

#![deny(clippy::indexing_slicing)]

mod connection;
mod error;
mod export;
mod input;
pub mod limits;
mod linger;
mod listener;
pub mod negotiate;
mod outgoing;
pub mod reply;
pub mod request;
mod server;
pub mod session;
mod signal;
pub mod wire;

#[cfg(test)]
extern crate self as weir_nbd; // the exports in memory are shared with the tests of the outside
#[cfg(test)]
#[path = "../tests/common/memory.rs"]
#[allow(dead_code, clippy::indexing_slicing, reason = "test code; no test uses all of it")]
mod memory;

pub use error::NbdError;
pub use export::{Export, ExportError, ExportFuture, Exports, Extent, errno};
pub use listener::{Address, DEFAULT_PORT, Listener};
pub use server::{ServerHandle, Worker, serve, split};
pub use weir_device::Block;
