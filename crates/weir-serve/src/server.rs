//! The server: one thread accepts, workers serve, one compio runtime each.
//!
//! Not here: what a session does ([`Protocol`]).
//!
//! A connection stays on the worker that has the fewest when it comes. One acceptor for all
//! listeners balances unix sockets as well as TCP, which SO_REUSEPORT would not.
//!
//! Invariants:
//! - at most [`CONNECTIONS_MAX`] connections; more are closed at once, and said so in the log;
//! - after [`ServerHandle::stop`] returned, no request is under way.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io};

use compio::net::{TcpStream, UnixStream};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::Shutdown;
use tokio::sync::mpsc;

use crate::error::ServeError;
use crate::limits::{CONNECTIONS_MAX, DRAIN_LIMIT, DROPS_TOLD_INTERVAL, DROPS_TOLD_MAX};
use crate::listener::{Accepted, Address, Listener, Peer};
use crate::sieve::Sieve;
use crate::signal::Signal;
use crate::socket::{Socket, Watch, shut};

/// After a failed accept (no descriptors left) the next try waits: the cause will not be gone at
/// once, and the log must not fill.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the acceptor and the handle tell a worker.
enum Message {
    Connection(Accepted, Peer),
    Disconnect(String),
    Stop,
}

/// A protocol as the server sees it.
pub trait Protocol: Send + Sync + 'static {
    /// Why a session was dropped.
    type Error: fmt::Display;

    /// Short and in lower case: threads and log lines carry it.
    fn name(&self) -> &'static str;

    /// Serves one connection until it ends; runs on a compio runtime.
    ///
    /// # Errors
    /// Why the connection was dropped; `Ok` where it ended in good order.
    fn run<S: Socket>(
        &self,
        socket: S,
        peer: &Peer,
        watch: &Watch,
    ) -> impl Future<Output = Result<(), Self::Error>>;
}

/// A running server.
pub struct ServerHandle {
    addresses: Vec<Address>,
    loads: Vec<Arc<AtomicUsize>>,
    senders: Vec<mpsc::UnboundedSender<Message>>,
    /// Dropping it wakes the acceptor, which then ends.
    stop_acceptor: Option<std::os::unix::net::UnixStream>,
    acceptor: Option<JoinHandle<()>>,
    threads: Vec<JoinHandle<()>>,
}

/// One worker's share of a server, to be run on a runtime of the caller's.
pub struct Worker<P> {
    receiver: mpsc::UnboundedReceiver<Message>,
    protocol: Arc<P>,
    load: Arc<AtomicUsize>,
    drops: Arc<Sieve>,
}

/// Starts to serve `protocol` on `listeners` with `threads` threads of its own.
///
/// # Errors
/// A thread or its runtime could not be started; nothing is left running.
pub fn serve<P: Protocol>(
    listeners: Vec<Listener>,
    protocol: Arc<P>,
    threads: usize,
) -> Result<ServerHandle, ServeError> {
    let thread_error = |source| ServeError::Thread { source };
    let name = protocol.name();
    let (mut handle, workers) = split(listeners, protocol, threads)?;
    for (index, worker) in workers.into_iter().enumerate() {
        // A runtime belongs to the thread that made it, so the thread reports how that went.
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

/// As [`serve`], but the caller runs the workers, each on a thread with a compio runtime.
/// Connections wait for their worker until it runs.
///
/// # Errors
/// The acceptor's thread could not be started.
pub fn split<P: Protocol>(
    listeners: Vec<Listener>,
    protocol: Arc<P>,
    workers: usize,
) -> Result<(ServerHandle, Vec<Worker<P>>), ServeError> {
    let thread_error = |source| ServeError::Thread { source };
    let addresses: io::Result<Vec<_>> = listeners.iter().map(Listener::address).collect();
    let (stop_acceptor, stop) = std::os::unix::net::UnixStream::pair().map_err(thread_error)?;
    let mut handle = ServerHandle {
        addresses: addresses.map_err(thread_error)?,
        loads: Vec::new(),
        senders: Vec::new(),
        stop_acceptor: Some(stop_acceptor),
        acceptor: None,
        threads: Vec::new(),
    };
    let name = protocol.name();
    let mut made = Vec::new();
    let drops = Arc::new(Sieve::new(DROPS_TOLD_MAX, DROPS_TOLD_INTERVAL));
    for protocol in vec![protocol; workers.max(1)] {
        let (sender, receiver) = mpsc::unbounded_channel();
        let load = Arc::new(AtomicUsize::new(0));
        handle.senders.push(sender);
        handle.loads.push(Arc::clone(&load));
        made.push(Worker { receiver, protocol, load, drops: Arc::clone(&drops) });
    }
    let (senders, loads) = (handle.senders.clone(), handle.loads.clone());
    let acceptor = Acceptor { name, listeners, stop, senders, loads };
    let thread = std::thread::Builder::new().name(format!("{name}-accept"));
    handle.acceptor = Some(thread.spawn(move || acceptor.run()).map_err(thread_error)?);
    Ok((handle, made))
}

impl ServerHandle {
    /// Where it listens.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Connections there are now.
    pub fn connections(&self) -> usize {
        self.loads.iter().map(|load| load.load(Ordering::Relaxed)).sum()
    }

    /// Ends every connection that uses `name` ([`Watch::user_of`]) once its requests under way are
    /// answered.
    pub fn disconnect(&self, name: &str) {
        for sender in &self.senders {
            // A worker that is gone has no connections.
            drop(sender.send(Message::Disconnect(name.to_owned())));
        }
    }

    /// Stops accepting, lets requests under way finish, closes all connections and waits for that.
    /// Workers made by [`split`] end too, but are not waited for.
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
        for sender in self.senders.drain(..) {
            drop(sender.send(Message::Stop));
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a serving thread panicked");
            }
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.shut_down();
    }
}

struct Acceptor {
    /// The protocol's.
    name: &'static str,
    listeners: Vec<Listener>,
    stop: std::os::unix::net::UnixStream,
    senders: Vec<mpsc::UnboundedSender<Message>>,
    loads: Vec<Arc<AtomicUsize>>,
}

impl Acceptor {
    /// Accepts until the handle is dropped.
    fn run(self) {
        loop {
            let mut fds = vec![PollFd::new(&self.stop, PollFlags::IN)];
            fds.extend(self.listeners.iter().map(|one| PollFd::new(one, PollFlags::IN)));
            match poll(&mut fds, None) {
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
        }
    }

    fn accept(&self, listener: &Listener) {
        match listener.accept() {
            Ok((accepted, peer)) => self.hand_over(accepted, peer),
            // Taken back by the client before it was accepted, or nothing there after all.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::ConnectionAborted
                        | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }

    fn hand_over(&self, accepted: Accepted, peer: Peer) {
        let total: usize = self.loads.iter().map(|load| load.load(Ordering::Relaxed)).sum();
        if total >= CONNECTIONS_MAX {
            tracing::warn!(
                protocol = self.name,
                %peer,
                limit = CONNECTIONS_MAX,
                "connection closed: too many"
            );
            return;
        }
        let least = self.loads.iter().zip(&self.senders).min_by_key(|(load, _)| {
            // Only this thread adds connections, so no finer order is needed.
            load.load(Ordering::Relaxed)
        });
        if let Some((load, sender)) = least {
            load.fetch_add(1, Ordering::Relaxed);
            if sender.send(Message::Connection(accepted, peer)).is_err() {
                load.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// A connection as its worker keeps it: how to end it.
struct Entry {
    watch: Rc<Watch>,
    shut: Box<dyn Fn(Shutdown)>,
}

/// The connections of one worker.
#[derive(Default)]
struct Connections {
    entries: RefCell<HashMap<u64, Entry>>,
    next: Cell<u64>,
    gone: Signal,
}

impl<P: Protocol> Worker<P> {
    /// Serves connections until the server stops; must run on a compio runtime.
    pub async fn run(mut self) {
        let connections = Rc::new(Connections::default());
        loop {
            match self.receiver.recv().await {
                Some(Message::Connection(accepted, peer)) => {
                    if let Err(error) = self.start(&connections, accepted, peer) {
                        self.load.fetch_sub(1, Ordering::Relaxed);
                        tracing::warn!(%error, "connection not taken over");
                    }
                }
                Some(Message::Disconnect(name)) => {
                    connections.stop(|watch| watch.user_of().as_ref() == Some(&name));
                }
                Some(Message::Stop) | None => break,
            }
        }
        connections.stop(|_| true);
        if compio::time::timeout(DRAIN_LIMIT, connections.wait_until_none()).await.is_err() {
            tracing::info!("cutting off clients that do not take their replies");
            connections.shut(Shutdown::Both);
            connections.wait_until_none().await;
        }
    }

    fn start(
        &self,
        connections: &Rc<Connections>,
        accepted: Accepted,
        peer: Peer,
    ) -> io::Result<()> {
        match accepted {
            Accepted::Tcp(stream) => self.spawn(connections, TcpStream::from_std(stream)?, peer),
            Accepted::Unix(stream) => self.spawn(connections, UnixStream::from_std(stream)?, peer),
        }
        Ok(())
    }

    fn spawn<S: Socket>(&self, connections: &Rc<Connections>, socket: S, peer: Peer) {
        let watch = Rc::new(Watch::default());
        let (entry, closer) = (Rc::clone(&watch), socket.clone());
        let place = Place {
            id: connections.add(entry, move |how| shut(&closer, how)),
            connections: Rc::clone(connections),
            load: Arc::clone(&self.load),
        };
        let (protocol, drops) = (Arc::clone(&self.protocol), Arc::clone(&self.drops));
        let serve = async move {
            let name = protocol.name();
            tracing::debug!(protocol = name, %peer, "connection");
            match protocol.run(socket, &peer, &watch).await {
                Ok(()) => tracing::debug!(protocol = name, %peer, "connection ended"),
                Err(error) => {
                    tracing::debug!(protocol = name, %peer, %error, "connection ends badly");
                    if let Some(more) = drops.pass() {
                        tracing::info!(protocol = name, %peer, %error, more, "connection dropped");
                    }
                }
            }
            drop(place);
        };
        compio::runtime::spawn(serve).detach();
    }
}

/// A connection's place in the worker's books; given up however the session ends.
struct Place {
    id: u64,
    connections: Rc<Connections>,
    load: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.entries.borrow_mut().remove(&self.id);
        self.load.fetch_sub(1, Ordering::Relaxed);
        self.connections.gone.notify();
    }
}

impl Connections {
    fn add(&self, watch: Rc<Watch>, shut: impl Fn(Shutdown) + 'static) -> u64 {
        let id = self.next.replace(self.next.get() + 1);
        self.entries.borrow_mut().insert(id, Entry { watch, shut: Box::new(shut) });
        id
    }

    /// Ends the reading side of those chosen; their sessions do the rest.
    fn stop(&self, chosen: impl Fn(&Watch) -> bool) {
        for entry in self.entries.borrow().values().filter(|entry| chosen(&entry.watch)) {
            entry.watch.stop();
            (entry.shut)(Shutdown::Read);
        }
    }

    fn shut(&self, how: Shutdown) {
        for entry in self.entries.borrow().values() {
            (entry.shut)(how);
        }
    }

    async fn wait_until_none(&self) {
        while !self.entries.borrow().is_empty() {
            self.gone.wait().await;
        }
    }
}
