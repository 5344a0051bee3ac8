//! Server: one acceptor thread, and worker threads with one compio runtime each.
//!
//! The acceptor is in `acceptor`, workers are in `worker`, sessions in each [`Protocol`].
//!
//! Invariant: after [`ServerHandle::stop`] has returned, no request is running.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::mpsc;
use weir_base::{LINES_INTERVAL, LogLimiter};

use crate::error::ServeError;
use crate::listen::allow::AllowList;
use crate::listen::listener::{Address, Listener};
use crate::server::acceptor::Acceptor;
use crate::server::message::{Message, ServerState, WorkerHandle};
use crate::server::protocol::Protocol;
use crate::server::worker::Worker;

/// Handle of a running server.
pub struct ServerHandle<P: Protocol> {
    addresses: Vec<Address>,
    ways: Arc<[WorkerHandle<P::Parked>]>,
    /// Our end of the socket pair that stops the acceptor: dropping it wakes and ends the acceptor.
    stop_acceptor: Option<std::os::unix::net::UnixStream>,
    acceptor: Option<JoinHandle<()>>,
    threads: Vec<JoinHandle<()>>,
}

/// Starts a server for `protocol` on `listeners` with `threads` worker threads.
///
/// # Errors
/// A thread or its runtime could not be started. No thread of the server is left running.
pub fn serve<P: Protocol>(
    listeners: Vec<Listener>,
    protocol: Arc<P>,
    threads: usize,
) -> Result<ServerHandle<P>, ServeError> {
    let thread_error = |source| ServeError::Thread { source };
    let addresses: io::Result<Vec<_>> = listeners.iter().map(Listener::address).collect();
    let addresses = addresses.map_err(thread_error)?;
    let (stop_acceptor, stop) = std::os::unix::net::UnixStream::pair().map_err(thread_error)?;
    let name = protocol.name();
    let channels = (0..threads.max(1)).map(|_| mpsc::unbounded_channel());
    let (senders, receivers): (Vec<_>, Vec<_>) = channels.unzip();
    let ways: Arc<[WorkerHandle<_>]> =
        senders.into_iter().map(|sender| (sender, Arc::default())).collect();
    let drops = Arc::new(LogLimiter::new(LINES_INTERVAL));
    let state = ServerState { table: Arc::default(), drops };
    let traits = (P::MOVES, P::IDLE_GIVES_WAY, P::PEER_CONNECTIONS_MAX);
    let acceptor =
        Acceptor::new(name, listeners, stop, Arc::clone(&ways), traits, Arc::clone(&state.table));
    let thread = std::thread::Builder::new().name(format!("{name}-accept"));
    let acceptor = thread.spawn(move || acceptor.run()).map_err(thread_error)?;
    let mut handle = ServerHandle {
        addresses,
        ways,
        stop_acceptor: Some(stop_acceptor),
        acceptor: Some(acceptor),
        threads: Vec::new(),
    };
    let ways = Arc::clone(&handle.ways);
    let parts = receivers.into_iter().zip(&*ways).zip(vec![protocol; ways.len()]);
    for (index, ((receiver, (_, load)), protocol)) in parts.enumerate() {
        let (ways, state) = (Arc::clone(&ways), state.clone());
        let worker = Worker::new(receiver, (index, Arc::clone(load)), ways, protocol, state);
        // A runtime can be used only by the thread that created it, so the new thread creates it
        // and reports whether that succeeded.
        let (report, started) = std::sync::mpsc::channel();
        let body = move || match weir_device::new_runtime() {
            Ok(runtime) => {
                tracing::debug!(protocol = name, driver = ?runtime.driver_type(), "thread runs");
                drop(report.send(Ok(())));
                runtime.block_on(worker.run());
            }
            Err(error) => drop(report.send(Err(error))),
        };
        let thread = std::thread::Builder::new().name(format!("{name}-{index}")).spawn(body);
        handle.threads.push(thread.map_err(thread_error)?);
        let report = started.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        report.map_err(thread_error)?;
    }
    Ok(handle)
}

impl<P: Protocol> ServerHandle<P> {
    /// Addresses on which the server listens.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Number of connections that the server has now.
    pub fn connections(&self) -> usize {
        self.connections_of_workers().into_iter().sum()
    }

    /// Number of connections that each worker has now.
    pub fn connections_of_workers(&self) -> Vec<usize> {
        self.ways.iter().map(|(_, load)| load.connections.load(Ordering::Relaxed)).collect()
    }

    /// Ends every connection that uses the export or target `name` ([`Watch::set_user_of`]), after
    /// the server has answered the requests that are running on it.
    pub fn disconnect(&self, name: &str) {
        self.disconnect_others(name, None);
    }

    /// Like [`Self::disconnect`], but clients with an address in `kept` and clients of unix sockets
    /// stay connected.
    pub fn disconnect_all_but(&self, name: &str, kept: &AllowList) {
        self.disconnect_others(name, Some(kept));
    }

    fn disconnect_others(&self, name: &str, kept: Option<&AllowList>) {
        let now = Instant::now();
        for (sender, _) in &*self.ways {
            // The message is dropped if the worker has ended; such a worker has no connections.
            drop(sender.send(Message::Disconnect(name.to_owned(), kept.cloned(), now)));
        }
    }

    /// Moves `count` active sessions from worker `from` to worker `to`, both counted from 0.
    /// Returns without waiting for the moves. The server moves sessions in the same way when a
    /// worker lacks CPU time.
    pub fn move_sessions(&self, from: usize, to: usize, count: usize) {
        if let (Some((sender, _)), Some(_)) = (self.ways.get(from), self.ways.get(to)) {
            drop(sender.send(Message::Give { to, count }));
        }
    }

    /// Stops accepting connections, finishes running requests, closes all connections, and waits
    /// until the threads have ended.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        drop(self.stop_acceptor.take());
        if let Some(acceptor) = self.acceptor.take()
            && acceptor.join().is_err()
        {
            tracing::error!("an acceptor panicked");
        }
        for (sender, _) in &*self.ways {
            drop(sender.send(Message::Stop));
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a serving thread panicked");
            }
        }
    }
}

impl<P: Protocol> Drop for ServerHandle<P> {
    fn drop(&mut self) {
        self.shut_down();
    }
}
