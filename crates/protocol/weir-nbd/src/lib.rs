//! The NBD server side: codec and session, without any storage.
//!
//! Not here: volumes (the engine hands in [`Exports`](weir_block::Exports)), sockets (weir-net);
//! docs/protocols/nbd.md says what clients get.
//!
//! Place in the flow: socket -> `session` (receive, send) -> `request` (decode, check) ->
//! `connection` (run) -> [`Export`](weir_block::Export) -> `reply` (encode) -> socket.
//!
//! Invariants:
//! - nothing a client sends makes this crate panic, or hold more memory than `limits` says;
//! - `wire`, `negotiate`, `request` and `reply` do no I/O, so that they can be fuzzed as they are.

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

/// The port NBD is registered under.
pub const DEFAULT_PORT: u16 = 10809;
