//! Duplicate request cache: remembers the replies to changing calls.
//!
//! A client that loses its connection repeats the calls whose reply it missed. Without the cache,
//! a repeated REMOVE would fail, because the first one removed the name.
//!
//! The cache is only in RAM, so a restart of the server empties it.
//! Spec: Juszczak, "Improving the Performance and Correctness of an NFS Server" (USENIX 1989).
//!
//! Invariants:
//! - of calls with one key, one runs; the others wait for its reply;
//! - a reply is for the same client address, credential, procedure and arguments;
//! - other connections of the client evict no reply of a connection.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use weir_base::Clock;
use weir_codec::checksum::xxh3_64;
use weir_oncrpc::message::Call;
use weir_pool::PlantedBug;

use crate::limits::{
    CLOSED_CONNECTIONS_MAX, REPLIES_KEPT, REPLIES_OF_CONNECTION_MAX, REPLY_BYTES_MAX,
};

/// Identity of a call: equal for a call and its repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallKey {
    xid: u32,
    program: u32,
    version: u32,
    procedure: u32,
    credential: u64,
    arguments: u64,
    argument_bytes: usize,
}

/// Encoded results of a call, without the RPC header.
type Reply = Arc<[u8]>;

enum Entry {
    /// The call runs. Repetitions of the call wait for its reply.
    Running(Vec<oneshot::Sender<Reply>>),
    Done(Reply),
}

struct Connection {
    address: IpAddr,
    /// Calls with an entry, oldest first.
    keys: VecDeque<CallKey>,
}

#[derive(Default)]
struct State {
    entries: HashMap<(IpAddr, CallKey), Entry>,
    connections: HashMap<u64, Connection>,
    /// Closed connections with the time of the close, oldest first.
    closed: VecDeque<(Duration, u64)>,
    next: u64,
}

/// The cache of one server.
pub struct Duplicates {
    state: Arc<Mutex<State>>,
    options: CacheOptions,
}

/// Parameters of the cache.
#[derive(Clone)]
pub struct CacheOptions {
    /// Seed of the checksums, which no client knows.
    pub seed: u64,
    /// Clock that measures how long a connection is closed.
    pub clock: Arc<dyn Clock>,
    /// Fault that tests plant.
    pub bug: PlantedBug,
}

/// An open connection with remembered replies. The server remembers them for some time after the
/// connection was dropped.
pub struct ConnectionReplies {
    state: Arc<Mutex<State>>,
    options: CacheOptions,
    id: u64,
    address: IpAddr,
}

/// Beginning of a call.
pub enum Begun {
    /// The caller runs the call and passes the reply to [`Running::finish`].
    New(Running),
    /// The call ran before: the server sends these results again.
    Repeated(Arc<[u8]>),
    /// The call runs now: the server waits for its results.
    Waits(Waiting),
}

/// A running call. If it is dropped without a reply, the next repetition runs the call.
pub struct Running {
    state: Arc<Mutex<State>>,
    /// Connection that remembers the reply.
    connection: u64,
    place: (IpAddr, CallKey),
    is_finished: bool,
}

/// A repetition of a running call.
pub struct Waiting(oneshot::Receiver<Reply>);

impl Duplicates {
    /// Creates an empty cache.
    pub fn new(options: CacheOptions) -> Self {
        Self { state: Arc::default(), options }
    }

    /// Number of open connections of a client.
    pub fn connections(&self, address: IpAddr) -> usize {
        let state = self.state.lock();
        let is_closed = |id: &u64| state.closed.iter().any(|(_, closed)| closed == id);
        let own = state.connections.iter().filter(|(_, of)| of.address == address);
        own.filter(|(id, _)| !is_closed(id)).count()
    }

    /// Adds a connection.
    pub fn connect(&self, address: IpAddr) -> ConnectionReplies {
        let mut state = self.state.lock();
        state.expire(self.options.clock.monotonic());
        let id = state.next;
        state.next += 1;
        let keys = VecDeque::new();
        state.connections.insert(id, Connection { address: address.to_canonical(), keys });
        let address = address.to_canonical();
        let (state, options) = (Arc::clone(&self.state), self.options.clone());
        ConnectionReplies { state, options, id, address }
    }

    /// Number of remembered calls.
    pub fn len(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// True if no call is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl State {
    /// Forgets the replies of connections that closed long ago, and of those beyond the limit.
    fn expire(&mut self, now: Duration) {
        while let Some((closed, id)) = self.closed.front().copied() {
            let is_old = now.saturating_sub(closed) >= REPLIES_KEPT;
            if !is_old && self.closed.len() <= CLOSED_CONNECTIONS_MAX {
                return;
            }
            self.closed.pop_front();
            let Some(Connection { address, keys }) = self.connections.remove(&id) else { continue };
            for key in keys {
                self.forget((address, key));
            }
        }
    }

    /// True if a call is among the newest of a connection.
    fn remembers(&self, connection: u64, key: &CallKey) -> bool {
        self.connections.get(&connection).is_some_and(|of| of.keys.contains(key))
    }

    /// Removes an entry, unless its call runs.
    fn forget(&mut self, place: (IpAddr, CallKey)) {
        if let Some(Entry::Done(_)) = self.entries.get(&place) {
            self.entries.remove(&place);
        }
    }

    /// Removes a call that has no reply to remember, also from its connection. Otherwise this
    /// connection would later evict the reply of a repetition on another connection.
    fn abandon(&mut self, id: u64, place: (IpAddr, CallKey)) -> Option<Entry> {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.keys.retain(|key| *key != place.1);
        }
        self.entries.remove(&place)
    }

    /// Adds a call to its connection, which forgets its oldest reply.
    fn remember(&mut self, id: u64, key: CallKey) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.keys.push_back(key);
        let address = connection.address;
        let is_full = connection.keys.len() > REPLIES_OF_CONNECTION_MAX;
        if let Some(oldest) = connection.keys.pop_front_if(|_| is_full) {
            self.forget((address, oldest));
        }
    }
}

impl ConnectionReplies {
    /// Key of a call of this connection. `arguments`: the bytes after the header.
    pub fn key(&self, call: &Call<'_>, arguments: &[u8]) -> CallKey {
        let seed = self.options.seed.to_le_bytes();
        let checksum = |bytes: &[u8]| xxh3_64(&[&seed, bytes]);
        let credential = match self.options.bug {
            PlantedBug::CredentialIgnored => 0,
            _ => checksum(call.credential.body.bytes()) ^ u64::from(call.credential.flavor),
        };
        CallKey {
            xid: call.xid,
            program: call.program,
            version: call.version,
            procedure: call.procedure,
            credential,
            arguments: checksum(arguments),
            argument_bytes: arguments.len(),
        }
    }

    /// Begins a changing call.
    pub fn begin(&self, key: CallKey) -> Begun {
        let mut state = self.state.lock();
        let place = (self.address, key);
        match state.entries.get_mut(&place) {
            _ if self.options.bug == PlantedBug::RepliesForgotten => {}
            Some(Entry::Done(reply)) => return Begun::Repeated(Arc::clone(reply)),
            Some(Entry::Running(waiters)) => {
                let (sender, receiver) = oneshot::channel();
                waiters.push(sender);
                return Begun::Waits(Waiting(receiver));
            }
            None => {}
        }
        state.entries.insert(place, Entry::Running(Vec::new()));
        state.remember(self.id, key);
        let (state, connection) = (Arc::clone(&self.state), self.id);
        Begun::New(Running { state, connection, place, is_finished: false })
    }
}

impl Drop for ConnectionReplies {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        let now = self.options.clock.monotonic();
        state.closed.push_back((now, self.id));
        state.expire(now);
    }
}

impl Running {
    /// Remembers the reply, and passes it to the repetitions that wait.
    pub fn finish(mut self, reply: &[u8]) {
        self.is_finished = true;
        let mut state = self.state.lock();
        let reply = Reply::from(reply);
        // A closed connection that is forgotten already keeps no entry, because nothing would
        // remove it.
        let is_kept =
            reply.len() <= REPLY_BYTES_MAX && state.remembers(self.connection, &self.place.1);
        let entry = if is_kept {
            state.entries.insert(self.place, Entry::Done(Arc::clone(&reply)))
        } else {
            state.abandon(self.connection, self.place)
        };
        drop(state);
        if let Some(Entry::Running(waiters)) = entry {
            // A repetition whose connection closed does not wait any more.
            waiters.into_iter().for_each(|waiter| drop(waiter.send(Arc::clone(&reply))));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_finished {
            // Dropping the senders ends the wait of the repetitions.
            self.state.lock().abandon(self.connection, self.place);
        }
    }
}

impl Waiting {
    /// Waits for the reply of the running call. `None`: the call ended without a reply, and the
    /// server drops the repetition, too.
    pub async fn reply(self) -> Option<Arc<[u8]>> {
        self.0.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Context, Poll, Waker};

    use weir_oncrpc::Opaque;
    use weir_oncrpc::message::OpaqueAuth;

    use super::*;

    /// A clock that only the test advances.
    #[derive(Default)]
    struct TestClock(AtomicU64);

    impl Clock for TestClock {
        fn monotonic(&self) -> Duration {
            Duration::from_secs(self.0.load(Ordering::Relaxed))
        }

        fn unix_ms(&self) -> u64 {
            0
        }
    }

    fn cache_with(clock: Arc<dyn Clock>) -> Duplicates {
        Duplicates::new(CacheOptions { seed: 7, clock, bug: PlantedBug::None })
    }

    fn cache() -> Duplicates {
        cache_with(Arc::new(TestClock::default()))
    }

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const TWO: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn call(xid: u32, credential: &[u8]) -> Call<'_> {
        let credential = OpaqueAuth { flavor: 1, body: Opaque::new(credential).unwrap() };
        let verifier = OpaqueAuth::NONE;
        Call { xid, program: 100_003, version: 3, procedure: 12, credential, verifier }
    }

    fn key(connection: &ConnectionReplies, xid: u32) -> CallKey {
        connection.key(&call(xid, b"user"), b"arguments")
    }

    fn run(connection: &ConnectionReplies, key: CallKey) -> Running {
        match connection.begin(key) {
            Begun::New(running) => running,
            Begun::Repeated(_) | Begun::Waits(_) => panic!("the call is new"),
        }
    }

    fn repeated(connection: &ConnectionReplies, key: CallKey) -> Option<Vec<u8>> {
        match connection.begin(key) {
            Begun::Repeated(reply) => Some(reply.to_vec()),
            Begun::New(_) | Begun::Waits(_) => None,
        }
    }

    #[test]
    fn repetition_on_another_connection_gets_the_first_reply() {
        let cache = cache();
        let first = cache.connect(ONE);
        run(&first, key(&first, 1)).finish(b"removed");
        drop(first);
        // The same address in its IPv6 form.
        let mapped = IpAddr::V6(std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped());
        let second = cache.connect(mapped);
        assert_eq!(repeated(&second, key(&second, 1)).as_deref(), Some(&b"removed"[..]));
        let other = cache.connect(TWO);
        assert_eq!(repeated(&other, key(&other, 1)), None, "another client");
    }

    #[test]
    fn call_that_differs_in_anything_is_new() {
        let cache = cache();
        let connection = cache.connect(ONE);
        run(&connection, key(&connection, 1)).finish(b"done");
        let first = call(1, b"user");
        let others = [
            connection.key(&call(2, b"user"), b"arguments"),
            connection.key(&call(1, b"root"), b"arguments"),
            connection.key(&first, b"argumentz"),
            connection.key(&first, b"arguments\0"),
            connection.key(&Call { procedure: 13, ..first }, b"arguments"),
            connection.key(&Call { program: 100_227, ..first }, b"arguments"),
        ];
        for other in others {
            assert_eq!(repeated(&connection, other), None);
        }
        assert!(repeated(&connection, key(&connection, 1)).is_some());
    }

    #[test]
    fn repetition_waits_for_the_running_call() {
        let cache = cache();
        let (one, two) = (cache.connect(ONE), cache.connect(ONE));
        let running = run(&one, key(&one, 1));
        let Begun::Waits(waiting) = two.begin(key(&two, 1)) else { panic!("the call runs") };
        let mut waiting = std::pin::pin!(waiting.reply());
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        running.finish(b"done");
        let Poll::Ready(Some(reply)) = waiting.as_mut().poll(&mut context) else {
            panic!("the reply is there")
        };
        assert_eq!(&*reply, b"done");
    }

    #[test]
    fn call_without_a_reply_runs_again() {
        let cache = cache();
        let connection = cache.connect(ONE);
        let running = run(&connection, key(&connection, 1));
        let Begun::Waits(waiting) = connection.begin(key(&connection, 1)) else {
            panic!("the call runs")
        };
        drop(running);
        let mut waiting = std::pin::pin!(waiting.reply());
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(waiting.as_mut().poll(&mut context), Poll::Ready(None)));
        run(&connection, key(&connection, 1)).finish(b"done");
    }

    #[test]
    fn call_without_a_reply_evicts_no_reply_of_its_repetition() {
        let cache = cache();
        let (one, two) = (cache.connect(ONE), cache.connect(ONE));
        drop(run(&one, key(&one, 1)));
        run(&one, key(&one, 2)).finish(&[0; REPLY_BYTES_MAX + 1]);
        run(&two, key(&two, 1)).finish(b"done");
        run(&two, key(&two, 2)).finish(b"done");
        for xid in 1_000..1_000 + 2 * REPLIES_OF_CONNECTION_MAX as u32 {
            run(&one, key(&one, xid)).finish(b"busy");
        }
        for xid in [1, 2] {
            assert_eq!(repeated(&two, key(&two, xid)).as_deref(), Some(&b"done"[..]), "{xid}");
        }
    }

    #[test]
    fn busy_connection_evicts_no_reply_of_its_siblings() {
        let cache = cache();
        let (cut, busy) = (cache.connect(ONE), cache.connect(ONE));
        for xid in 0..64 {
            run(&cut, key(&cut, xid)).finish(b"cut");
        }
        drop(cut);
        for xid in 1_000..11_000 {
            run(&busy, key(&busy, xid)).finish(b"busy");
        }
        for xid in 0..64 {
            assert!(repeated(&busy, key(&busy, xid)).is_some(), "{xid}");
        }
        assert_eq!(cache.len(), 2 * REPLIES_OF_CONNECTION_MAX);
    }

    #[test]
    fn replies_of_closed_connections_are_limited_in_time_and_number() {
        let clock = Arc::new(TestClock::default());
        let cache = cache_with(Arc::clone(&clock) as Arc<dyn Clock>);
        for xid in 0..1_000 {
            let connection = cache.connect(ONE);
            run(&connection, key(&connection, xid)).finish(b"done");
        }
        assert_eq!(cache.len(), CLOSED_CONNECTIONS_MAX);
        clock.0.fetch_add(REPLIES_KEPT.as_secs() - 1, Ordering::Relaxed);
        let recent = cache.connect(ONE);
        assert_eq!(cache.len(), CLOSED_CONNECTIONS_MAX);
        clock.0.fetch_add(1, Ordering::Relaxed);
        let last = cache.connect(ONE);
        assert!(cache.is_empty());
        // A call of a connection that is forgotten keeps no entry.
        let running = run(&last, key(&last, 1));
        drop(last);
        clock.0.fetch_add(REPLIES_KEPT.as_secs(), Ordering::Relaxed);
        drop(recent);
        drop(cache.connect(ONE));
        running.finish(b"done");
        assert!(cache.is_empty());
    }

    #[test]
    fn long_reply_is_not_remembered() {
        let cache = cache();
        let connection = cache.connect(ONE);
        run(&connection, key(&connection, 1)).finish(&[0; REPLY_BYTES_MAX + 1]);
        assert!(cache.is_empty());
    }
}
