//! Messages to workers: new connections, sessions that move, disconnects and shutdown.
//!
//! The workers are in `worker`; the senders are in `acceptor` and `serve`.
//!
//! Invariant: if a worker cannot receive a message, the message is dropped with its connection.

use std::mem::Discriminant;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::sync::mpsc;
use weir_base::{LINES_INTERVAL, LogLimiter};

use crate::connections::balance::Load;
use crate::connections::connection_table::{ConnectionTable, Place};
use crate::io::socket::UserOf;
use crate::listen::allow::AllowList;
use crate::listen::listener::{Accepted, Peer};

/// Log rate limiter for connections that were lost on their way from one thread to another.
pub(crate) static LOST: LogLimiter<&str> = LogLimiter::new(LINES_INTERVAL);

/// Message to a worker from the acceptor, the server handle or another worker. `T` is the state of
/// a parked session.
pub(crate) enum Message<T> {
    Connection(Box<NewConnection<T>>),
    /// Ends the connections that were using the export or target of this name at the given time. If
    /// there is an allow list, TCP clients whose address is on it and all clients of unix sockets
    /// stay connected.
    Disconnect(String, Option<AllowList>, Instant),
    /// Closes an inactive connection to free its slot for a new connection.
    GiveWay(Arc<Place>),
    /// Moves `count` sessions to worker `to`, which exists.
    Give {
        to: usize,
        count: usize,
    },
    Stop,
}

/// Connection that the worker takes over: a new connection, or the session of another worker.
pub(crate) struct NewConnection<T> {
    pub(crate) socket: Accepted,
    pub(crate) peer: Peer,
    pub(crate) user_of: Option<UserOf>,
    pub(crate) parked: Option<T>,
    pub(crate) place: Arc<Place>,
}

impl<T> NewConnection<T> {
    pub(crate) const fn new(socket: Accepted, peer: Peer, place: Arc<Place>) -> Self {
        Self { socket, peer, user_of: None, parked: None, place }
    }
}

/// State that all threads of a server share.
pub(crate) struct ServerState<E> {
    pub(crate) table: Arc<ConnectionTable>,
    /// Log rate limiter for connections that ended with an error, by the kind of error.
    pub(crate) drops: Arc<LogLimiter<Discriminant<E>>>,
}

impl<E> Clone for ServerState<E> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table), drops: Arc::clone(&self.drops) }
    }
}

/// Handle of a worker: its message channel, and the worker's load.
pub(crate) type WorkerHandle<T> = (mpsc::UnboundedSender<Message<T>>, Arc<Load>);

/// Sends a connection to a worker; closes the connection if the worker has ended.
pub(crate) fn send<T>(
    (sender, load): &WorkerHandle<T>,
    arrival: NewConnection<T>,
    table: &ConnectionTable,
) {
    load.connections.fetch_add(1, Ordering::Relaxed);
    let place = Arc::clone(&arrival.place);
    if sender.send(Message::Connection(Box::new(arrival))).is_err() {
        load.connections.fetch_sub(1, Ordering::Relaxed);
        table.remove(&place);
    }
}
