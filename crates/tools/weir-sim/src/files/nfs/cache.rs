//! Replies that the duplicate request cache of the server must remember.
//!
//! The server remembers the replies to the last changing calls of each connection, also for some
//! time after the connection closed. A copy of a call whose reply it forgot runs as a new call.
//!
//! Invariant: this model shares only the limits of `weir_nfs::limits` with the server.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use weir_nfs::limits::{
    CLOSED_CONNECTIONS_MAX, REPLIES_KEPT, REPLIES_OF_CONNECTION_MAX, REPLY_BYTES_MAX,
};

use super::wire::results_bytes;

/// Bytes of a reply.
pub(super) type ReplyBytes = Rc<[u8]>;

/// State of a call that the server remembers.
#[derive(Clone)]
enum Entry {
    Running,
    Done(ReplyBytes),
}

/// Expected treatment of a copy of a call.
#[derive(Clone, Debug)]
pub(super) enum Expect {
    Runs,
    /// The copy gets the reply of the running copy.
    Waits,
    /// The copy gets this reply.
    Repeats(ReplyBytes),
}

/// The expected cache of one server.
#[derive(Default)]
pub(super) struct Cache {
    entries: BTreeMap<usize, Entry>,
    /// The last calls of each connection, oldest first.
    connections: BTreeMap<u64, VecDeque<usize>>,
    /// Closed connections with the time of the close, oldest first.
    closed: VecDeque<(Duration, u64)>,
}

impl Cache {
    /// Adds a connection.
    pub(super) fn connect(&mut self, connection: u64, now: Duration) {
        self.expire(now);
        self.connections.insert(connection, VecDeque::new());
    }

    /// Records the end of a connection.
    pub(super) fn close(&mut self, connection: u64, now: Duration) {
        self.closed.push_back((now, connection));
        self.expire(now);
    }

    fn expire(&mut self, now: Duration) {
        while let Some((closed, connection)) = self.closed.front().copied() {
            if now < closed + REPLIES_KEPT && self.closed.len() <= CLOSED_CONNECTIONS_MAX {
                return;
            }
            self.closed.pop_front();
            for call in self.connections.remove(&connection).unwrap_or_default() {
                self.forget(call);
            }
        }
    }

    fn forget(&mut self, call: usize) {
        if let Some(Entry::Done(_)) = self.entries.get(&call) {
            self.entries.remove(&call);
        }
    }

    /// A copy of a changing call arrives on a connection.
    pub(super) fn begin(&mut self, connection: u64, call: usize) -> Expect {
        match self.entries.get(&call) {
            Some(Entry::Running) => return Expect::Waits,
            Some(Entry::Done(reply)) => return Expect::Repeats(Rc::clone(reply)),
            None => {}
        }
        self.entries.insert(call, Entry::Running);
        if let Some(calls) = self.connections.get_mut(&connection) {
            calls.push_back(call);
            if calls.len() > REPLIES_OF_CONNECTION_MAX
                && let Some(oldest) = calls.pop_front()
            {
                self.forget(oldest);
            }
        }
        Expect::Runs
    }

    /// A changing call that ran ends with a reply.
    pub(super) fn finish(&mut self, connection: u64, call: usize, reply: &ReplyBytes) {
        let calls = self.connections.get_mut(&connection);
        let is_kept = results_bytes(reply) <= REPLY_BYTES_MAX
            && calls.as_ref().is_some_and(|calls| calls.contains(&call));
        if is_kept {
            self.entries.insert(call, Entry::Done(Rc::clone(reply)));
            return;
        }
        self.entries.remove(&call);
        if let Some(calls) = calls {
            calls.retain(|other| *other != call);
        }
    }
}
