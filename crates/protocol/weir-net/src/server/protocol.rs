//! Trait of a protocol that the server threads run.
//!
//! The implementations are in `weir-nbd` and `weir-iscsi`.
//!
//! Invariant: a session runs on one thread at a time.

use std::fmt;

use crate::io::socket::{Socket, Watch};
use crate::listen::listener::Peer;

/// Block protocol that the server threads run.
pub trait Protocol: Send + Sync + 'static {
    /// Reason for which a session was dropped.
    type Error: fmt::Display;

    /// Session without running requests that moves to another worker;
    /// [`Infallible`](std::convert::Infallible) if sessions of the protocol cannot move.
    type Parked: Send + 'static;

    /// Whether sessions can move between workers.
    const MOVES: bool;

    /// Whether a new connection can evict a session that has been idle for long, if no slot is
    /// free. The clients of the protocol must then be able to reconnect.
    const IDLE_GIVES_WAY: bool;

    /// Short name in lower case for thread names and log lines.
    fn name(&self) -> &'static str;

    /// Serves one connection from its start, or from its `parked` state, until the connection ends
    /// or the session is parked because it [should move](Watch::is_to_move). Runs on a compio
    /// runtime.
    ///
    /// # Errors
    /// The reason for which the connection was dropped; `Ok(None)` after an orderly end.
    fn run<S: Socket>(
        &self,
        socket: S,
        peer: &Peer,
        watch: &Watch,
        parked: Option<Self::Parked>,
    ) -> impl Future<Output = Result<Option<Self::Parked>, Self::Error>>;
}
