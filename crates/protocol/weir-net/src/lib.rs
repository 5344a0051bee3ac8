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

mod acceptor;
mod allow;
mod balance;
mod budget;
mod error;
mod export;
mod input;
pub mod limits;
mod linger;
mod listener;
mod outbuf;
mod outgoing;
mod places;
mod server;
mod signal;
mod socket;
mod socket_file;
mod tls;
mod turns;
mod worker;

pub use allow::{AllowList, LiveAllowList};
pub use budget::{AwaitsClient, Budget, Own, Share};
pub use error::ServeError;
pub use export::{Export, ExportError, ExportFuture, Exports, Extent};
pub use input::Input;
pub use linger::{Linger, give_way};
pub use listener::{Address, Clients, Listener, Peer};
pub use outbuf::OutBuf;
pub use outgoing::Outgoing;
pub use places::{PeerKey, Place};
pub use server::{Protocol, ServerHandle, serve};
pub use signal::Signal;
pub use socket::{CutOff, Socket, Watch, shut};
pub use socket_file::{SocketFile, bind as bind_unix};
pub use tls::TlsSocket;
pub use turns::{Turn, Turns};
pub use weir_device::Block;
