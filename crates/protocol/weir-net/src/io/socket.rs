//! Socket of a connection, and [`Watch`], with which a worker observes, moves and stops a session.
//!
//! Listening sockets are in `listener`, sessions in the crate of each protocol.
//!
//! Invariants:
//! - a session notices a stop at its next receive, and shutting down the socket's reading side ends
//!   a running receive;
//! - a session that cannot move continues on its worker.

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

/// Connected stream socket; clones share the connection.
pub trait Socket: AsyncRead + AsyncWrite + AsFd + Clone + 'static {
    /// True if the connection is not encrypted, so that the server may bypass this type and send
    /// bytes on the file descriptor.
    const IS_PLAIN: bool = true;

    /// Sends the end-of-data message of the transport to the client, if the transport has such a
    /// message (close_notify of TLS).
    fn say_end(&mut self) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

impl Socket for TcpStream {}

impl Socket for UnixStream {}

/// Watch of a session: lets the worker observe, move and stop the session.
pub struct Watch {
    load: Arc<Load>,
    place: Arc<Place>,
    /// Last span (`BALANCE_SPAN`) in which the session had a request.
    active_in: Cell<Option<u32>>,
    stopping: Cell<bool>,
    /// Worker to which the session must move; `None` if the session stays.
    moves_to: Cell<Option<usize>>,
    user_of: RefCell<Option<UserOf>>,
    /// IP address of the client; `None` for a unix socket.
    address: Option<IpAddr>,
    cut_off: Rc<CutOff>,
}

/// Order of the worker to a session to end immediately.
#[derive(Default)]
pub struct CutOff {
    given: Cell<bool>,
    signal: Signal,
}

impl CutOff {
    /// Waits until the worker gives the order. Only one task may wait.
    pub async fn given(&self) {
        while !self.given.get() {
            self.signal.wait().await;
        }
    }
}

/// Export or target that a session uses, and the time at which the session began to use it.
#[derive(Clone)]
pub(crate) struct UserOf {
    pub(crate) name: String,
    pub(crate) since: Instant,
}

/// Creates the watch of a session that runs without a server.
impl Default for Watch {
    fn default() -> Self {
        Self::new(&Arc::default(), Place::alone(), None, None)
    }
}

impl Watch {
    /// Creates the watch of a connection with the slot `place`, on the worker whose load is `load`.
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

    /// Records the end of the handshake or login. Until then, a new connection can evict this
    /// connection.
    pub fn end_handshake(&self) {
        self.place.end_handshake();
    }

    /// Slot of the connection. The session records its activity in this slot.
    pub const fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Records that the session has a request. The balancer moves only sessions that have requests.
    pub fn has_work(&self) {
        let span = self.load.span();
        if self.active_in.replace(Some(span)) != Some(span) {
            self.load.count_active();
        }
    }

    /// True if the session had a request in the current or previous span.
    pub(crate) fn was_active(&self) -> bool {
        self.active_in.get().is_some_and(|span| self.load.span().wrapping_sub(span) <= 1)
    }

    /// Asks the session to move to another worker once the session runs no request.
    pub(crate) fn move_to(&self, worker: usize) {
        self.moves_to.set(Some(worker));
    }

    /// True if the session should move to another worker.
    pub const fn is_to_move(&self) -> bool {
        self.moves_to.get().is_some()
    }

    /// Cancels the requested move, because the session cannot move now.
    pub fn stay(&self) {
        self.moves_to.set(None);
    }

    pub(crate) const fn moves_to(&self) -> Option<usize> {
        self.moves_to.get()
    }

    /// Asks the session to accept no more requests. The caller must also end a receive in progress,
    /// by shutting down the reading side of the socket.
    pub fn stop(&self) {
        self.stopping.set(true);
    }

    /// True if [`Watch::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Orders the session to end immediately, even if it waits for memory or for its client. The
    /// caller must also shut down the socket.
    pub(crate) fn cut_off(&self) {
        self.cut_off.given.set(true);
        self.cut_off.signal.notify();
    }

    /// Returns the order for which a task of the session waits ([`CutOff::given`]).
    pub fn until_cut_off(&self) -> Rc<CutOff> {
        Rc::clone(&self.cut_off)
    }

    /// Records the export or target that the session uses, after negotiation.
    pub fn set_user_of(&self, name: &str) {
        self.user_of.replace(Some(UserOf { name: name.to_owned(), since: Instant::now() }));
    }

    pub(crate) fn user_of(&self) -> Option<UserOf> {
        self.user_of.borrow().clone()
    }

    pub(crate) const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// True if the session uses the export or target with this name.
    pub(crate) fn is_user_of(&self, name: &str) -> bool {
        self.user_of.borrow().as_ref().is_some_and(|of| of.name == name)
    }
}

/// Shuts down one or both directions of a socket. An error is only logged, because a shutdown fails
/// only if the client has already closed the connection.
pub fn shut(socket: &impl AsFd, how: Shutdown) {
    if let Err(error) = rustix::net::shutdown(socket, how) {
        tracing::trace!(%error, "shutdown of a socket");
    }
}
