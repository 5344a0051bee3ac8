//! Servers of block protocols: listeners, sockets, worker threads, connection limits and buffers.
//!
//! The protocols are in `weir-nbd` and `weir-iscsi`. The engine implements the storage behind the
//! `Export` trait.
//!
//! Place in the flow: the acceptor thread accepts a connection, a worker runs the [`Protocol`] on
//! the connection's socket, and the protocol calls an `Export`.
//!
//! Invariant: no input from a client makes this crate panic.

#![deny(clippy::indexing_slicing)]

mod error;
pub mod limits;

// Modules, lowest layer first: state comes before operations.
mod connections;
mod listen;
mod io;
mod server;

pub use crate::server::protocol::Protocol;
pub use connections::connection_table::{PeerKey, Place};
pub use connections::fair_queue::{FairQueue, QueuePermit};
pub use connections::memory_budget::{AwaitsClient, Budget, MemoryGrant, Own};
pub use error::ServeError;
pub use io::busy_poll::{BusyPoll, yield_now};
pub use io::input::Input;
pub use io::outgoing::{Outgoing, SendBuf};
pub use io::signal::Signal;
pub use io::socket::{CutOff, Socket, Watch, shut};
pub use io::tls::TlsSocket;
pub use listen::allow::{AllowList, LiveAllowList, Network};
pub use listen::listener::{Address, Clients, Listener, Peer};
pub use listen::socket_file::{SocketFile, bind as bind_unix};
pub use server::serve::{ServerHandle, serve};
