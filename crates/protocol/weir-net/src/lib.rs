//! What the servers of all block protocols share: the storage as they see it, sockets, threads and
//! buffers.
//!
//! Not here: any protocol (weir-nbd), any storage (the engine hands in [`Exports`]).
//!
//! Place in the flow: a listener's thread accepts, a worker runs the [`Protocol`] on the socket,
//! and that calls an [`Export`].
//!
//! Invariant: nothing a client sends makes this crate panic.

#![deny(clippy::indexing_slicing)]

mod error;
pub mod limits;

// Rooms, lowest first: state comes before operations.
mod connections;
mod listen;
mod io;
mod server;

pub use crate::server::protocol::Protocol;
pub use connections::connection_table::{PeerKey, Place};
pub use connections::fair_queue::{Turn, Turns};
pub use connections::memory_budget::{AwaitsClient, Budget, Own, Share};
pub use error::ServeError;
pub use io::busy_poll::{Linger, give_way};
pub use io::input::Input;
pub use io::outgoing::{Outgoing, SendBuf};
pub use io::signal::Signal;
pub use io::socket::{CutOff, Socket, Watch, shut};
pub use io::tls::TlsSocket;
pub use listen::allow::{AllowList, LiveAllowList};
pub use listen::listener::{Address, Clients, Listener, Peer};
pub use listen::socket_file::{SocketFile, bind as bind_unix};
pub use server::serve::{ServerHandle, serve};
