//! Messages to workers: new connections, moving connections, shutdown.
//!
//! The workers are in `worker`, the senders in `acceptor` and `serve`.
//!
//! Invariant: a message that a thread cannot receive is dropped with its connection.

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

/// Log rate limiter for connections lost between threads.
pub(crate) static LOST: Sieve<&str> = Sieve::new(LINES_INTERVAL);

/// Message to a worker from the acceptor, the handle or another worker; `T` is a parked session.
pub(crate) enum Message<T> {
    Connection(Box<Arrival<T>>),
    /// Ends the connections that used the export or target of this name at this time. With a list,
    /// TCP clients whose address is on it and all clients of unix sockets stay connected.
    Disconnect(String, Option<AllowList>, Instant),
    /// Closes an inactive connection to free its slot for a new connection.
    GiveWay(Arc<Place>),
    /// Moves `count` sessions to another worker, which exists.
    Give {
        to: usize,
        count: usize,
    },
    Stop,
}

/// Connection that the worker takes over: a new connection, or a session from another worker.
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

/// State shared by all threads of a server.
pub(crate) struct Books<E> {
    pub(crate) places: Arc<Places>,
    /// Log rate limiter for connections that ended with an error, by kind of error.
    pub(crate) drops: Arc<Sieve<Discriminant<E>>>,
}

impl<E> Clone for Books<E> {
    fn clone(&self) -> Self {
        Self { places: Arc::clone(&self.places), drops: Arc::clone(&self.drops) }
    }
}

/// Handle of a worker: its message channel and its load.
pub(crate) type Way<T> = (mpsc::UnboundedSender<Message<T>>, Arc<Load>);

/// Sends a connection to a worker; closes it if the worker has ended.
pub(crate) fn send<T>((sender, load): &Way<T>, arrival: Arrival<T>, places: &Places) {
    load.connections.fetch_add(1, Ordering::Relaxed);
    let place = Arc::clone(&arrival.place);
    if sender.send(Message::Connection(Box::new(arrival))).is_err() {
        load.connections.fetch_sub(1, Ordering::Relaxed);
        places.remove(&place);
    }
}
