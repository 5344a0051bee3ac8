//! A connection's socket, and how a session on it is watched and stopped.
//!
//! Not here: listening (`listener`), what a session does (each protocol).
//!
//! Invariant: a stop is seen by the session at its next receive, which is ended by shutting down
//! the reading side.

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;

use compio::io::{AsyncRead, AsyncWrite};
use rustix::net::Shutdown;

/// A connected stream socket; clones are the same socket.
pub trait Socket: AsyncRead + AsyncWrite + AsFd + Clone + 'static {}

impl<T: AsyncRead + AsyncWrite + AsFd + Clone + 'static> Socket for T {}

/// How the outside sees and stops a session.
#[derive(Debug, Default)]
pub struct Watch {
    stopping: Cell<bool>,
    user_of: RefCell<Option<String>>,
}

impl Watch {
    /// Asks the session to take no further request. A receive under way must be ended too, by
    /// shutting down the socket's reading side.
    pub fn stop(&self) {
        self.stopping.set(true);
    }

    /// Whether [`Watch::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// What the session uses (an export, a target), once that is agreed on.
    pub fn user_of(&self) -> Option<String> {
        self.user_of.borrow().clone()
    }

    /// Says what the session uses from now on.
    pub fn set_user_of(&self, name: &str) {
        self.user_of.replace(Some(name.to_owned()));
    }
}

/// Ends one or both directions of a socket. It fails only where the peer was faster.
pub fn shut(socket: &impl AsFd, how: Shutdown) {
    if let Err(error) = rustix::net::shutdown(socket, how) {
        tracing::trace!(%error, "shutdown of a socket");
    }
}
