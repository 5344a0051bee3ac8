//! Worker: serves connections on a compio runtime, and moves sessions to other workers.
//!
//! The `acceptor` accepts connections, `balance` chooses the sessions that move, and each
//! [`Protocol`] implements its sessions.
//!
//! To move a session, its worker lets the running requests finish, and the protocol parks the
//! session. The other worker receives the socket and the parked state, and continues the session.
//! The client does not notice the move.
//!
//! Invariants:
//! - a connection is in the table of exactly one worker, or moving to another worker;
//! - an order to end connections also reaches connections that are moving.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::mem::discriminant;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use compio::net::{TcpStream, UnixStream};
use rustix::net::Shutdown;
use tokio::sync::mpsc;

use crate::connections::balance::Load;
use crate::connections::connection_table::{ConnectionTable, Place};
use crate::io::signal::Signal;
use crate::io::socket::{Socket, UserOf, Watch, shut};
use crate::limits::{DISCONNECTS_KEPT, DISCONNECTS_OF_NAME_MAX, DRAIN_LIMIT};
use crate::listen::allow::AllowList;
use crate::listen::listener::{Accepted, Peer};
use crate::server::message::{LOST, Message, NewConnection, ServerState, WorkerHandle, send};
use crate::server::protocol::Protocol;

/// State of one worker.
pub(crate) struct Worker<P: Protocol> {
    receiver: mpsc::UnboundedReceiver<Message<P::Parked>>,
    /// Index of the worker, from 0.
    index: usize,
    load: Arc<Load>,
    /// Handles of all workers of the server, including this one.
    ways: Arc<[WorkerHandle<P::Parked>]>,
    protocol: Arc<P>,
    state: ServerState<P::Error>,
}

/// Entry of a connection in the table of its worker. The worker uses the entry to end the
/// connection.
struct Entry {
    watch: Rc<Watch>,
    shut: Box<dyn Fn(Shutdown)>,
}

/// Table of the connections of one worker.
#[derive(Default)]
struct Connections {
    /// Connections of this worker, in the order of their arrival.
    entries: RefCell<BTreeMap<u64, Entry>>,
    next: Cell<u64>,
    gone: Signal,
}

/// Data of a connection, without its socket.
struct Session<T> {
    peer: Peer,
    watch: Rc<Watch>,
    parked: Option<T>,
}

/// Recent disconnect calls. If a call came while a session moved from another worker to this one,
/// this worker ends the session when it arrives.
#[derive(Default)]
struct Disconnects(Vec<Disconnect>);

/// Disconnect call: it ends the sessions that were using the export or target `name` at the time
/// `when`.
struct Disconnect {
    name: String,
    /// Clients that stay connected; `None` if no client stays.
    kept: Option<AllowList>,
    when: Instant,
}

impl Disconnect {
    /// Returns true if a client stays connected: its address is on the list, or it is a client of a
    /// unix socket and has no address.
    fn keeps(&self, address: Option<IpAddr>) -> bool {
        let Some(kept) = &self.kept else { return false };
        address.is_none_or(|address| kept.contains(address))
    }
}

impl Disconnects {
    /// Adds a disconnect call. Drops earlier calls whose effect the new call includes, and calls
    /// older than [`DISCONNECTS_KEPT`].
    fn add(&mut self, mut call: Disconnect) {
        let of_name = self.0.iter().filter(|old| old.name == call.name).count();
        if of_name >= DISCONNECTS_OF_NAME_MAX {
            // Many calls with lists take memory, so drop this list. A client on the list can
            // connect again.
            call.kept = None;
        }
        self.0.retain(|old| {
            let is_included =
                old.name == call.name && (call.kept.is_none() || call.kept == old.kept);
            !is_included && old.when.elapsed() < DISCONNECTS_KEPT
        });
        self.0.push(call);
    }

    /// Returns true if a disconnect call ended this session while the session moved from another
    /// worker to this one.
    fn concern(&self, user_of: &UserOf, address: Option<IpAddr>) -> bool {
        let applies = |call: &Disconnect| {
            call.name == user_of.name && user_of.since <= call.when && !call.keeps(address)
        };
        self.0.iter().any(applies)
    }
}

impl<P: Protocol> Worker<P> {
    pub(crate) fn new(
        receiver: mpsc::UnboundedReceiver<Message<P::Parked>>,
        (index, load): (usize, Arc<Load>),
        ways: Arc<[WorkerHandle<P::Parked>]>,
        protocol: Arc<P>,
        state: ServerState<P::Error>,
    ) -> Self {
        Self { receiver, index, load, ways, protocol, state }
    }

    /// Serves connections until the server stops. Must run on a compio runtime.
    pub(crate) async fn run(mut self) {
        self.load.runs_here();
        let connections = Rc::new(Connections::default());
        let mut disconnects = Disconnects::default();
        loop {
            match self.receiver.recv().await {
                Some(Message::Connection(arrival)) => {
                    let address = arrival.peer.address;
                    let is_concerned = |of: &UserOf| disconnects.concern(of, address);
                    if arrival.user_of.as_ref().is_some_and(is_concerned) {
                        shut(&arrival.socket, Shutdown::Read);
                    }
                    let place = Arc::clone(&arrival.place);
                    if let Err(error) = self.start(&connections, *arrival) {
                        self.load.connections.fetch_sub(1, Ordering::Relaxed);
                        self.state.table.remove(&place);
                        if let Some(more) = LOST.pass("taken over") {
                            tracing::warn!(%error, more, "connection not started");
                        }
                    }
                }
                Some(Message::Disconnect(name, kept, when)) => {
                    let call = Disconnect { name, kept, when };
                    connections
                        .stop(|watch| watch.is_user_of(&call.name) && !call.keeps(watch.address()));
                    disconnects.add(call);
                }
                Some(Message::GiveWay(place)) => connections.close_idle(&place),
                Some(Message::Give { to, count }) => connections.give(to, count),
                Some(Message::Stop) | None => break,
            }
        }
        connections.stop(|_| true);
        if compio::time::timeout(DRAIN_LIMIT, connections.wait_until_none()).await.is_err() {
            tracing::info!("disconnecting clients that do not receive their replies");
            connections.cut_off();
            connections.wait_until_none().await;
        }
    }

    fn start(
        &self,
        connections: &Rc<Connections>,
        arrival: NewConnection<P::Parked>,
    ) -> io::Result<()> {
        let NewConnection { socket, peer, user_of, parked, place } = arrival;
        place.set_worker(self.index);
        let watch = Rc::new(Watch::new(&self.load, place, user_of, peer.address));
        let session = Session { peer, watch, parked };
        match socket {
            Accepted::Tcp(socket) => {
                let tcp = |fd: OwnedFd| Accepted::Tcp(fd.into());
                self.spawn(connections, TcpStream::from_std(socket)?, tcp, session);
            }
            Accepted::Unix(socket) => {
                let unix = |fd: OwnedFd| Accepted::Unix(fd.into());
                self.spawn(connections, UnixStream::from_std(socket)?, unix, session);
            }
        }
        Ok(())
    }

    /// Serves one connection. If its session must move, `kind` turns the file descriptor into the
    /// socket type that the other worker expects.
    fn spawn<S: Socket>(
        &self,
        connections: &Rc<Connections>,
        socket: S,
        kind: fn(OwnedFd) -> Accepted,
        session: Session<P::Parked>,
    ) {
        let Session { peer, watch, parked } = session;
        let (entry, closer) = (Rc::clone(&watch), socket.clone());
        let entered = Entered {
            id: connections.add(entry, move |how| shut(&closer, how)),
            connections: Rc::clone(connections),
            load: Arc::clone(&self.load),
            place: Some(Arc::clone(watch.place())),
            table: Arc::clone(&self.state.table),
        };
        let (protocol, state) = (Arc::clone(&self.protocol), self.state.clone());
        let ways = Arc::clone(&self.ways);
        let serve = async move {
            let mut entered = entered;
            let name = protocol.name();
            let begins = parked.is_none();
            tracing::debug!(protocol = name, %peer, begins, "connection");
            let copy = socket.clone();
            match protocol.run(socket, &peer, &watch, parked).await {
                Ok(None) => tracing::debug!(protocol = name, %peer, "connection ended"),
                Ok(parked) => match copy.as_fd().try_clone_to_owned().map(kind) {
                    Ok(socket) => {
                        let way = watch.moves_to().and_then(|to| ways.get(to));
                        let way = way.expect("a parked session has a destination worker");
                        let user_of = watch.user_of();
                        // The slot of a connection moves to the other worker together with its
                        // session.
                        let place = entered.place.take().expect("taken once");
                        let arrival = NewConnection { socket, peer, user_of, parked, place };
                        send(way, arrival, &state.table);
                    }
                    Err(error) => {
                        if let Some(more) = LOST.pass("moved") {
                            let protocol = name;
                            tracing::warn!(protocol, %peer, %error, more, "connection not moved");
                        }
                    }
                },
                Err(error) => {
                    tracing::debug!(protocol = name, %peer, %error, "connection failed");
                    if let Some(more) = state.drops.pass(discriminant(&error)) {
                        tracing::info!(protocol = name, %peer, %error, more, "connection dropped");
                    }
                }
            }
            drop(entered);
        };
        compio::runtime::spawn(serve).detach();
    }
}

/// Guard of an entry in the worker's table. Dropping it removes the entry, however the session
/// ended.
struct Entered {
    id: u64,
    connections: Rc<Connections>,
    load: Arc<Load>,
    /// Slot of the connection; `None` once the slot has moved to another worker with the session.
    place: Option<Arc<Place>>,
    table: Arc<ConnectionTable>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            self.table.remove(place);
        }
        self.connections.entries.borrow_mut().remove(&self.id);
        self.load.connections.fetch_sub(1, Ordering::Relaxed);
        self.connections.gone.notify();
    }
}

impl Connections {
    fn add(&self, watch: Rc<Watch>, shut: impl Fn(Shutdown) + 'static) -> u64 {
        let id = self.next.replace(self.next.get() + 1);
        self.entries.borrow_mut().insert(id, Entry { watch, shut: Box::new(shut) });
        id
    }

    /// Shuts down the reading side of the chosen connections. Their sessions then end by
    /// themselves.
    fn stop(&self, chosen: impl Fn(&Watch) -> bool) {
        for entry in self.entries.borrow().values().filter(|entry| chosen(&entry.watch)) {
            entry.watch.stop();
            (entry.shut)(Shutdown::Read);
        }
    }

    /// Closes the connection in this slot, if the connection is still inactive.
    fn close_idle(&self, place: &Arc<Place>) {
        let entries = self.entries.borrow();
        let found = entries.values().find(|entry| Arc::ptr_eq(entry.watch.place(), place));
        if let Some(entry) = found
            && place.still_evictable()
        {
            tracing::debug!("evicting an idle connection for a new one");
            (entry.shut)(Shutdown::Both);
        }
    }

    /// Asks up to `count` active sessions to move to worker `to`, the oldest sessions first. Idle
    /// sessions would gain nothing from a move.
    fn give(&self, to: usize, count: usize) {
        let entries = self.entries.borrow();
        let active = entries.values().filter(|entry| entry.watch.was_active());
        active.take(count).for_each(|entry| entry.watch.move_to(to));
    }

    /// Ends all connections of the worker, even if they wait for memory or for their client.
    fn cut_off(&self) {
        for entry in self.entries.borrow().values() {
            entry.watch.cut_off();
            (entry.shut)(Shutdown::Both);
        }
    }

    async fn wait_until_none(&self) {
        while !self.entries.borrow().is_empty() {
            self.gone.wait().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Regression: a disconnect call with a list of clients that stay did not end sessions that were
    // moving to another worker.
    #[test]
    fn disconnect_calls_with_a_list_reach_moving_sessions() {
        let list = |text| Some(AllowList::parse([text]).expect("a list"));
        let address = |last| Some(IpAddr::from([10, 0, 0, last]));
        let user_of = |name: &str| UserOf { name: name.to_owned(), since: Instant::now() };
        let call = |name: &str, kept| {
            let name = name.to_owned();
            Disconnect { name, kept, when: Instant::now() }
        };
        let (a, b) = (user_of("a"), user_of("b"));
        let mut calls = Disconnects::default();
        calls.add(call("a", list("10.0.0.1")));
        assert!(calls.concern(&a, address(2)) && !calls.concern(&b, address(2)));
        assert!(!calls.concern(&a, address(1)) && !calls.concern(&a, None));
        // The first call ends the session although the list of the later call keeps its client.
        calls.add(call("a", list("10.0.0.2")));
        assert!(calls.concern(&a, address(2)) && calls.concern(&a, address(1)));
        let later = user_of("a");
        assert!(!calls.concern(&later, address(9)), "it began after the calls");
        calls.add(call("a", list("10.0.0.2")));
        assert_eq!(calls.0.len(), 2, "a repeated call replaces the earlier one");
        calls.add(call("a", None));
        assert_eq!(calls.0.len(), 1);
        assert!(calls.concern(&a, address(2)) && calls.concern(&a, None));
        assert!(!calls.concern(&b, None));
    }

    #[test]
    fn disconnect_calls_of_one_name_are_limited() {
        let list = |last: usize| {
            let text = format!("10.0.1.{last}");
            Some(AllowList::parse([text.as_str()]).expect("a list"))
        };
        let user_of = UserOf { name: "a".to_owned(), since: Instant::now() };
        let mut calls = Disconnects::default();
        for last in 0..=DISCONNECTS_OF_NAME_MAX {
            let name = "a".to_owned();
            calls.add(Disconnect { name, kept: list(last), when: Instant::now() });
        }
        assert_eq!(calls.0.len(), 1, "the last call replaced the others");
        assert!(calls.concern(&user_of, Some(IpAddr::from([10, 0, 1, 16]))));
    }
}
