//! NBD server: codec, handshake and sessions. This crate contains no storage.
//!
//! The server implements [`Exports`](weir_block::Exports); sockets are in weir-net.
//! docs/protocols/nbd.md describes the features of the server for clients.
//!
//! Place in the flow: socket -> `session` (receive, send) -> `request` (decode, check) ->
//! `connection` (run) -> [`Export`](weir_block::Export) -> `reply` (encode) -> socket.
//!
//! Invariants:
//! - no input from a client makes this crate panic or exceed the memory bounds in `limits`;
//! - `wire`, `negotiate`, `request` and `reply` do no I/O, so fuzzers call them directly.

#![deny(clippy::indexing_slicing)]

mod connection;
mod errno;
mod error;
pub mod limits;
mod long_write;
pub mod negotiate;
pub mod reply;
pub mod request;
pub mod session;
pub mod wire;

#[cfg(test)]
#[path = "../tests/all/common/memory.rs"]
#[allow(dead_code, clippy::indexing_slicing, reason = "test code; no test uses all of it")]
mod memory;

pub use errno::errno;
pub use error::NbdError;
pub use session::Nbd;

/// Registered TCP port of NBD.
pub const DEFAULT_PORT: u16 = 10809;
