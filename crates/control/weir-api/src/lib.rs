//! The management interface: JSON types, the calls, an HTTP server and client for them, OpenAPI.
//!
//! Not here: the engine. The server speaks to it through [`Control`]; the client implements the
//! same trait over HTTP, so a caller cannot tell the two apart.
//!
//! Invariants:
//! - every request is checked ([`Request::check`]) before [`Control`] sees it;
//! - every error that leaves here is an [`ApiError`] with a kind, a message and an action;
//! - `/v1` answers keep their meaning; fields may be added, nothing is renamed or removed.

pub mod access;
mod answers;
pub mod caller;
pub mod client;
mod connection;
pub mod control;
pub mod door;
pub mod error;
mod gate;
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
mod turns;
pub mod types;
mod watched;
pub mod wire;

pub use client::Client;
pub use control::{Answer, Control};
pub use error::Error;
pub use gate::{Operation, Reach};
pub use listen::Listener;
pub use place::Address;
pub use routes::openapi;
pub use server::serve;
pub use stream::SendStream;
pub use types::Request;
pub use wire::ApiError;
