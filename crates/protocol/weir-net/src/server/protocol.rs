//! Trait of a protocol that the server threads run.
//!
//! The implementations are in `weir-nbd` and `weir-iscsi`.
//!
//! Invariant: a session runs on one thread at a time.

use std::fmt;

use crate::io::socket::{Socket, Watch};
use crate::limits::PEER_CONNECTIONS_MAX;
use crate::listen::listener::Peer;

/// Block protocol that the server threads run.
pub trait Protocol: Send + Sync + 'static {
    /// Reason for which a session was dropped.
    type Error: fmt::Display;

    /// State of a session that moves to another worker; such a session runs no requests.
    /// [`Infallible`](std::convert::Infallible) if sessions of the protocol cannot move.
    type Parked: Send + 'static;

    /// True if sessions can move between workers.
    const MOVES: bool;

    /// True if, while no slot is free, a new connection can evict a session that has long been
    /// idle. The clients of the protocol must then be able to reconnect.
    const IDLE_GIVES_WAY: bool;

    /// Maximum number of connections of one server from one address or one local user.
    const PEER_CONNECTIONS_MAX: usize = PEER_CONNECTIONS_MAX;

    /// Short name in lower case for thread names and log lines.
    fn name(&self) -> &'static str;

    /// Serves one connection, from its start or from the `parked` state of its session. Returns
    /// when the connection ends, or when the session is parked because it [should
    /// move](Watch::is_to_move). Runs on a compio runtime.
    ///
    /// # Errors
    /// The reason for which the connection was dropped. After an orderly end it returns `Ok(None)`.
    fn run<S: Socket>(
        &self,
        socket: S,
        peer: &Peer,
        watch: &Watch,
        parked: Option<Self::Parked>,
    ) -> impl Future<Output = Result<Option<Self::Parked>, Self::Error>>;
}
