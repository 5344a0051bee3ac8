//! The management interface: JSON types, the calls, an HTTP server and client for them, OpenAPI.
//!
//! The engine is in other crates. The server implements [`Handle`] for each call; [`Client::call`]
//! makes any call over HTTP.
//!
//! Invariants:
//! - every request is checked ([`Request::check`]) before a handler sees it;
//! - every error that leaves here is an [`ApiError`] with a kind, a message and an action;
//! - `/v1` answers keep their meaning; fields may be added, nothing is renamed or removed.

pub mod access;
mod answers;
pub mod caller;
pub mod calls;
pub mod client;
mod connection;
pub mod unix_access;
pub mod error;
pub mod authorization;
mod guard;
pub mod limits;
pub mod listen;
pub mod peer;
pub mod place;
mod routes;
mod server;
mod slots;
pub mod stream;
pub mod tls;
pub mod token;
mod call_queue;
pub mod types;
mod watched;
pub mod wire;

pub use access::Resources;
pub use calls::call::{AuditLine, Call, Handle, Operation, Pending, Run, Work};
pub use calls::table::Control;
pub use client::Client;
pub use error::Error;
pub use listen::Listener;
pub use place::Address;
pub use routes::openapi;
pub use server::serve;
pub use stream::{SendStream, Streams};
pub use types::{Answer, Request};
pub use wire::ApiError;
