//! Connections of clients, on the threads of weir-net.

mod connection;
mod error;
mod serve;

pub use error::SessionError;
pub use serve::Nfs;
