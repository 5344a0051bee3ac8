//! Messages to the threads: new connections, connections that move, the end.
//!
//! Not here: the threads (`worker`), who sends (`acceptor`, `serve`).
//!
//! Invariant: a message that a thread cannot take is dropped with its connection.

use std::mem::Discriminant;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::sync::mpsc;
use weir_base::{LINES_INTERVAL, Sieve};

use crate::connections::balance::Load;
use crate::connections::connection_table::{Place, Places};
use crate::io::socket::UserOf;
use crate::listen::allow::AllowList;
use crate::listen::listener::{Accepted, Peer};

/// Log lines about connections that were lost between threads.
pub(crate) static LOST: Sieve<&str> = Sieve::new(LINES_INTERVAL);

/// What acceptor, handle and other workers tell a worker; `T` is a parked session.
pub(crate) enum Message<T> {
    Connection(Box<Arrival<T>>),
    /// Ends the connections that used what has this name at this moment; clients over TCP only
    /// where the list, if there is one, does not hold their address.
    Disconnect(String, Option<AllowList>, Instant),
    /// A connection that did nothing is to be closed for another.
    GiveWay(Arc<Place>),
    /// So many sessions are to go to another worker, which there is.
    Give {
        to: usize,
        count: usize,
    },
    Stop,
}

/// A connection nobody serves yet, or one that comes from another worker.
pub(crate) struct Arrival<T> {
    pub(crate) socket: Accepted,
    pub(crate) peer: Peer,
    pub(crate) user_of: Option<UserOf>,
    pub(crate) parked: Option<T>,
    pub(crate) place: Arc<Place>,
}

impl<T> Arrival<T> {
    pub(crate) const fn new(socket: Accepted, peer: Peer, place: Arc<Place>) -> Self {
        Self { socket, peer, user_of: None, parked: None, place }
    }
}

/// What all threads of a server know together.
pub(crate) struct Books<E> {
    pub(crate) places: Arc<Places>,
    /// Connections that ended badly, by the kind of their error.
    pub(crate) drops: Arc<Sieve<Discriminant<E>>>,
}

impl<E> Clone for Books<E> {
    fn clone(&self) -> Self {
        Self { places: Arc::clone(&self.places), drops: Arc::clone(&self.drops) }
    }
}

/// A worker, as connections are sent to it.
pub(crate) type Way<T> = (mpsc::UnboundedSender<Message<T>>, Arc<Load>);

/// Sends a connection to a worker; one that is gone closes it.
pub(crate) fn send<T>((sender, load): &Way<T>, arrival: Arrival<T>, places: &Places) {
    load.connections.fetch_add(1, Ordering::Relaxed);
    let place = Arc::clone(&arrival.place);
    if sender.send(Message::Connection(Box::new(arrival))).is_err() {
        load.connections.fetch_sub(1, Ordering::Relaxed);
        places.remove(&place);
    }
}
