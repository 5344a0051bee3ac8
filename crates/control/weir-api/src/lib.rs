//! The management interface: JSON types, the calls, an HTTP server and client for them, OpenAPI.
//!
//! The server implements [`Handle`] for each call over the engine; [`Client::call`] makes any call
//! over HTTP.
//!
//! Invariants:
//! - every request is checked ([`Request::check`]) before a handler gets it;
//! - every error that this crate returns to a user is an [`ApiError`] with kind, message and
//!   action;
//! - answers of `/v1` keep their meaning: fields may be added, but are never renamed or removed.

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
