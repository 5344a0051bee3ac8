//! A connection's socket, and how a session on it is watched, moved and stopped.
//!
//! Not here: listening (`listener`), what a session does (each protocol).
//!
//! Invariants:
//! - a stop is seen by the session at its next receive, which is ended by shutting down the reading
//!   side;
//! - a session that is to move and cannot goes on where it is.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use compio::io::{AsyncRead, AsyncWrite};
use compio::net::{TcpStream, UnixStream};
use rustix::net::Shutdown;

use crate::connections::balance::Load;
use crate::connections::connection_table::Place;
use crate::io::signal::Signal;

/// A connected stream socket; clones are the same socket.
pub trait Socket: AsyncRead + AsyncWrite + AsFd + Clone + 'static {
    /// True if bytes go over the socket unencrypted, so that they may be sent on its descriptor.
    const IS_PLAIN: bool = true;

    /// Tells the client that no more comes, where there is a message for that.
    fn say_end(&mut self) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

impl Socket for TcpStream {}

impl Socket for UnixStream {}

/// How the outside sees, moves and stops a session.
pub struct Watch {
    load: Arc<Load>,
    place: Arc<Place>,
    /// The last span in which it had something to do.
    active_in: Cell<Option<u32>>,
    stopping: Cell<bool>,
    /// The worker it is to move to.
    moves_to: Cell<Option<usize>>,
    user_of: RefCell<Option<UserOf>>,
    /// The client's, over TCP.
    address: Option<IpAddr>,
    cut_off: Rc<CutOff>,
}

/// The order to end a session at once.
#[derive(Default)]
pub struct CutOff {
    given: Cell<bool>,
    signal: Signal,
}

impl CutOff {
    /// Returns once the order was given; one task waits.
    pub async fn given(&self) {
        while !self.given.get() {
            self.signal.wait().await;
        }
    }
}

/// What a session uses, and since when.
#[derive(Clone)]
pub(crate) struct UserOf {
    pub(crate) name: String,
    pub(crate) since: Instant,
}

/// Of a session without a server.
impl Default for Watch {
    fn default() -> Self {
        Self::new(&Arc::default(), Place::alone(), None, None)
    }
}

impl Watch {
    /// Of a connection at this place, on a worker that has this load.
    pub(crate) fn new(
        load: &Arc<Load>,
        place: Arc<Place>,
        user_of: Option<UserOf>,
        address: Option<IpAddr>,
    ) -> Self {
        Self {
            load: Arc::clone(load),
            place,
            active_in: Cell::default(),
            stopping: Cell::default(),
            moves_to: Cell::default(),
            user_of: RefCell::new(user_of),
            address,
            cut_off: Rc::default(),
        }
    }

    /// Says that handshake or login is over. Until then the connection may be closed for another.
    pub fn end_handshake(&self) {
        self.place.end_handshake();
    }

    /// The connection's place, to say there what it does.
    pub const fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Says that the session has something to do; only such sessions are moved.
    pub fn has_work(&self) {
        let span = self.load.span();
        if self.active_in.replace(Some(span)) != Some(span) {
            self.load.count_active();
        }
    }

    /// Whether it had something to do in this span of time or the one before.
    pub(crate) fn was_active(&self) -> bool {
        self.active_in.get().is_some_and(|span| self.load.span().wrapping_sub(span) <= 1)
    }

    /// Asks the session to go on on another worker, once nothing of it is under way.
    pub(crate) fn move_to(&self, worker: usize) {
        self.moves_to.set(Some(worker));
    }

    /// Whether the session is to go on elsewhere.
    pub const fn is_to_move(&self) -> bool {
        self.moves_to.get().is_some()
    }

    /// The session cannot move now.
    pub fn stay(&self) {
        self.moves_to.set(None);
    }

    pub(crate) const fn moves_to(&self) -> Option<usize> {
        self.moves_to.get()
    }

    /// Asks the session to take no further request. A receive under way must be ended too, by
    /// shutting down the socket's reading side.
    pub fn stop(&self) {
        self.stopping.set(true);
    }

    /// Whether [`Watch::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Orders the session to end without waiting for memory or for its client. The socket must be
    /// shut down, too.
    pub(crate) fn cut_off(&self) {
        self.cut_off.given.set(true);
        self.cut_off.signal.notify();
    }

    /// The order to end at once.
    pub fn until_cut_off(&self) -> Rc<CutOff> {
        Rc::clone(&self.cut_off)
    }

    /// Says what the session uses (an export, a target), once that is agreed on.
    pub fn set_user_of(&self, name: &str) {
        self.user_of.replace(Some(UserOf { name: name.to_owned(), since: Instant::now() }));
    }

    pub(crate) fn user_of(&self) -> Option<UserOf> {
        self.user_of.borrow().clone()
    }

    pub(crate) const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Whether it uses what has that name.
    pub(crate) fn is_user_of(&self, name: &str) -> bool {
        self.user_of.borrow().as_ref().is_some_and(|of| of.name == name)
    }
}

/// Ends one or both directions of a socket. It fails only where the peer was faster.
pub fn shut(socket: &impl AsFd, how: Shutdown) {
    if let Err(error) = rustix::net::shutdown(socket, how) {
        tracing::trace!(%error, "shutdown of a socket");
    }
}
