//! Acceptor: one thread accepts the connections of all listeners and assigns them to workers.
//!
//! Listening sockets are in `listener`, workers in `worker`. The acceptor assigns a connection to
//! the worker with the fewest connections. One acceptor for all listeners balances unix sockets as
//! well as TCP, which SO_REUSEPORT would not do. Its thread also runs the load balancing
//! (`balance`).
//!
//! Invariants:
//! - a client that is not allowed is disconnected before it gets a slot, and counted in the log;
//! - a new connection gets a free slot, or evicts an inactive connection (`connection_table`), or
//!   is closed immediately and counted in the log;
//! - without free file descriptors, the acceptor pauses before it tries again.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_base::{LINES_INTERVAL, LogLimiter};

use crate::connections::balance::{Balancer, Move};
use crate::connections::connection_table::{Admission, ConnectionTable};
use crate::listen::listener::{Accepted, Incoming, Listener, Peer};
use crate::server::message::{Message, NewConnection, WorkerHandle, send};

/// Pause after a failed accept. Its cause (no free file descriptors) lasts for a while, and without
/// a pause the error would fill the log.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Acceptor thread; the header of this file describes its work.
pub(crate) struct Acceptor<T> {
    /// Name of the protocol.
    name: &'static str,
    listeners: Vec<Listener>,
    stop: UnixStream,
    ways: Arc<[WorkerHandle<T>]>,
    balancer: Option<Balancer>,
    idle_gives_way: bool,
    peer_connections_max: usize,
    table: Arc<ConnectionTable>,
    /// Log rate limiter for refused connections, by reason.
    refusals: LogLimiter<&'static str>,
}

impl<T> Acceptor<T> {
    /// Creates an acceptor that ends when the other end of `stop` is dropped. The first bool of the
    /// pair is true if sessions can move between workers; only then the acceptor balances sessions.
    /// The second bool is true if a new connection can evict an idle session.
    pub(crate) fn new(
        name: &'static str,
        listeners: Vec<Listener>,
        stop: UnixStream,
        ways: Arc<[WorkerHandle<T>]>,
        (moves, idle_gives_way, peer_connections_max): (bool, bool, usize),
        table: Arc<ConnectionTable>,
    ) -> Self {
        let loads = ways.iter().map(|(_, load)| Arc::clone(load));
        let balancer = moves.then(|| Balancer::new(loads));
        let refusals = LogLimiter::new(LINES_INTERVAL);
        Self {
            name,
            listeners,
            stop,
            ways,
            balancer,
            idle_gives_way,
            peer_connections_max,
            table,
            refusals,
        }
    }

    pub(crate) fn run(mut self) {
        loop {
            let rest = self.balancer.as_ref().and_then(Balancer::rest);
            let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN)];
            fds.extend(self.listeners.iter().map(|one| PollFd::new(one, PollFlags::IN)));
            // The time until the next balancing, at most one `BALANCE_SPAN`, always fits into a
            // `Timespec`.
            let limit = rest.and_then(|rest| Timespec::try_from(rest).ok());
            match poll(&mut fds, limit.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "stops accepting: poll failed");
                    return;
                }
            }
            let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
            if ready.next() == Some(true) {
                return;
            }
            for (listener, ready) in self.listeners.iter().zip(ready) {
                if ready {
                    self.accept(listener);
                }
            }
            self.balance();
        }
    }

    /// Orders a move of sessions between workers, if the balancer decides on one.
    fn balance(&mut self) {
        let found = self.balancer.as_mut().and_then(Balancer::look);
        let Some(Move { from, to, count }) = found else { return };
        tracing::debug!(protocol = self.name, from, to, count, "moving sessions to another worker");
        if let Some((sender, _)) = self.ways.get(from) {
            // The message is dropped if the worker has ended; such a worker has no sessions.
            drop(sender.send(Message::Give { to, count }));
        }
    }

    fn accept(&self, listener: &Listener) {
        match listener.accept() {
            Ok(Incoming::Client(accepted, peer)) => self.hand_over(accepted, peer),
            Ok(Incoming::Stranger(peer)) => {
                if let Some(more) = self.refusals.pass("stranger") {
                    let (protocol, peer) = (self.name, peer.ip().to_canonical());
                    let why = "address not allowed";
                    tracing::warn!(protocol, %peer, more, "connection refused: {why}");
                }
            }
            // There is nothing to accept: the client aborted its connection, or no connection was
            // waiting.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::ConnectionAborted
                        | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => {
                if let Some(more) = self.refusals.pass("not accepted") {
                    tracing::warn!(%error, more, "connection not accepted");
                }
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    fn hand_over(&self, accepted: Accepted, peer: Peer) {
        let connections = |(_, load): &WorkerHandle<T>| load.connections.load(Ordering::Relaxed);
        // The counts do not include sessions that are moving between workers. A choice that is
        // wrong by one is harmless.
        let fewest = || {
            let ways = self.ways.iter().enumerate();
            ways.min_by_key(|(_, way)| connections(way)).map_or(0, |(worker, _)| worker)
        };
        let of_peer = (peer.key, self.peer_connections_max);
        match self.table.admit(of_peer, self.idle_gives_way, fewest) {
            Admission::Place(place, leaves) => {
                if let Some(leaves) = leaves
                    && let Some((sender, _)) = self.ways.get(leaves.worker())
                {
                    // The message is dropped if the worker has ended; such a worker has no
                    // connections.
                    drop(sender.send(Message::GiveWay(leaves)));
                }
                let way = self.ways.get(place.worker()).expect("there is a worker");
                send(way, NewConnection::new(accepted, peer, place), &self.table);
            }
            Admission::Full { of_peer, limit } => {
                if let Some(more) = self.refusals.pass("too many") {
                    let (protocol, closed) = (self.name, "connection closed: too many");
                    tracing::warn!(protocol, %peer, limit, of_peer, more, "{closed}");
                }
            }
        }
    }
}
