//! The trait of a protocol that the threads serve.
//!
//! Not here: the protocols (weir-nbd, weir-iscsi).
//!
//! Invariant: a session runs on one thread at a time.

use std::fmt;

use crate::io::socket::{Socket, Watch};
use crate::listen::listener::Peer;

/// A protocol as the server sees it.
pub trait Protocol: Send + Sync + 'static {
    /// Why a session was dropped.
    type Error: fmt::Display;

    /// A session with nothing under way, on its way to another worker;
    /// [`Infallible`](std::convert::Infallible) where sessions stay where they are.
    type Parked: Send + 'static;

    /// Whether sessions can move.
    const MOVES: bool;

    /// Whether a session that is idle for long gives its place to a new connection when there is
    /// no other: its clients know how to come back.
    const IDLE_GIVES_WAY: bool;

    /// Short and in lower case: threads and log lines carry it.
    fn name(&self) -> &'static str;

    /// Serves one connection, from its beginning or as it was `parked`, until it ends, or is
    /// parked because it [is to move](Watch::is_to_move); runs on a compio runtime.
    ///
    /// # Errors
    /// Why the connection was dropped; `Ok(None)` where it ended in good order.
    fn run<S: Socket>(
        &self,
        socket: S,
        peer: &Peer,
        watch: &Watch,
        parked: Option<Self::Parked>,
    ) -> impl Future<Output = Result<Option<Self::Parked>, Self::Error>>;
}
