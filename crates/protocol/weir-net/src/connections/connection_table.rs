//! Connection table: the connections of a server, and which of them a new connection evicts.
//!
//! The `acceptor` accepts connections; the `worker` closes them.
//!
//! Invariants:
//! - at most [`CONNECTIONS_MAX`] connections exist; connections that are being closed do not count;
//! - a peer has at most the number of connections that the protocol allows
//!   (`Protocol::PEER_CONNECTIONS_MAX`), so that other peers can connect;
//! - a connection with a running or recent request is never evicted.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::limits::{CONNECTIONS_MAX, IDLE_LIMIT, UNUSED_LIMIT};

/// Peer to which the connection limits apply. Connections with equal keys count together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PeerKey {
    /// An IP address. For IPv6 the /64 network, because one machine may use all addresses in it.
    Address(IpAddr),
    /// A local user.
    Uid(u32),
    /// The operating system did not report the peer.
    #[default]
    Unknown,
}

impl PeerKey {
    /// Key of the peer with this address.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(ip) => {
                let network = u128::from(ip) >> 64 << 64;
                Self::Address(IpAddr::V6(network.into()))
            }
            v4 @ IpAddr::V4(_) => Self::Address(v4),
        }
    }
}

/// Phase of a connection. A connection never returns to an earlier phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Phase {
    Handshake,
    Unused,
    Used,
}

/// Slot of one connection in the table. The acceptor, the worker and the session share the slot.
pub struct Place {
    peer: PeerKey,
    began: Instant,
    worker: AtomicUsize,
    phase: AtomicU8,
    /// Time of the client's last transfer, in milliseconds after `began`.
    active_ms: AtomicU64,
    /// True if a new connection may evict this one when it is idle (`Protocol::IDLE_GIVES_WAY`).
    may_idle_out: bool,
    is_busy: AtomicBool,
    is_leaving: AtomicBool,
}

impl Place {
    fn new(peer: PeerKey, worker: usize, may_idle_out: bool) -> Arc<Self> {
        Arc::new(Self {
            peer,
            began: Instant::now(),
            worker: AtomicUsize::new(worker),
            phase: AtomicU8::new(Phase::Handshake as u8),
            active_ms: AtomicU64::new(0),
            may_idle_out,
            is_busy: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
        })
    }

    /// Creates a slot that is in no table, for a session that runs without a server.
    pub(crate) fn alone() -> Arc<Self> {
        Self::new(PeerKey::Unknown, 0, false)
    }

    /// Records the end of the handshake.
    pub(crate) fn end_handshake(&self) {
        self.phase.fetch_max(Phase::Unused as u8, Ordering::Relaxed);
        self.touch();
    }

    /// Records a request of the client.
    pub fn used(&self) {
        if self.phase.load(Ordering::Relaxed) != Phase::Used as u8 {
            self.phase.store(Phase::Used as u8, Ordering::Relaxed);
        }
        self.touch();
    }

    fn touch(&self) {
        self.active_ms.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Records whether requests of the connection are running.
    pub fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Relaxed);
        self.touch();
    }

    /// Records that the session moved to another worker.
    pub(crate) fn set_worker(&self, worker: usize) {
        self.worker.store(worker, Ordering::Relaxed);
    }

    pub(crate) fn worker(&self) -> usize {
        self.worker.load(Ordering::Relaxed)
    }

    fn idle(&self) -> Duration {
        let active = Duration::from_millis(self.active_ms.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(active)
    }

    /// Returns the eviction class of the connection; `None` if the connection cannot be evicted
    /// now. A new connection evicts a connection of the smallest class.
    fn gives_way(&self) -> Option<Phase> {
        if self.is_busy.load(Ordering::Relaxed) {
            return None;
        }
        match self.phase.load(Ordering::Relaxed) {
            0 => Some(Phase::Handshake),
            _ if !self.may_idle_out => None,
            1 if self.idle() >= UNUSED_LIMIT => Some(Phase::Unused),
            2 if self.idle() >= IDLE_LIMIT => Some(Phase::Used),
            _ => None,
        }
    }

    /// Returns true if the connection can still be evicted. The worker checks this before it closes
    /// the connection, because the client may have sent a request in the meantime.
    pub(crate) fn still_evictable(&self) -> bool {
        let gives_way = self.gives_way().is_some();
        self.is_leaving.store(gives_way, Ordering::Relaxed);
        gives_way
    }
}

/// Decision on a new connection.
pub(crate) enum Admission {
    /// The new client gets the first slot. The caller closes the connection of the second slot, if
    /// there is one, to free that slot.
    Place(Arc<Place>, Option<Arc<Place>>),
    /// All slots are in use. `limit` is the limit that was reached: of the peer if `of_peer`, else
    /// of the server.
    Full { of_peer: bool, limit: usize },
}

/// Connection table of a server.
///
/// If the server or the peer has reached its connection limit, a new connection evicts an inactive
/// one: first a connection in its handshake, then a connection that never used its negotiated
/// export, then the connection with the longest idle time. Among equal connections, the table
/// chooses one of the peer with the most connections.
#[derive(Default)]
pub(crate) struct ConnectionTable {
    all: Mutex<Vec<Arc<Place>>>,
}

impl ConnectionTable {
    /// Admits a connection from `peer`, which may have `peer_max` connections, and assigns the
    /// connection to the worker that `choose` returns.
    pub(crate) fn admit(
        &self,
        (peer, peer_max): (PeerKey, usize),
        may_idle_out: bool,
        choose: impl FnOnce() -> usize,
    ) -> Admission {
        let mut all = self.all.lock();
        let mut counts: HashMap<PeerKey, usize> = HashMap::new();
        let mut total = 0;
        for place in all.iter().filter(|place| !place.is_leaving.load(Ordering::Relaxed)) {
            *counts.entry(place.peer).or_default() += 1;
            total += 1;
        }
        let of_peer = counts.get(&peer).is_some_and(|count| *count >= peer_max);
        let leaves = if of_peer || total >= CONNECTIONS_MAX {
            let candidates = all.iter().filter(|place| {
                let is_here = !place.is_leaving.load(Ordering::Relaxed);
                is_here && (!of_peer || place.peer == peer)
            });
            let ranked = candidates.filter_map(|place| {
                let count = counts.get(&place.peer).copied().unwrap_or_default();
                let rank = (place.gives_way()?, usize::MAX - count);
                Some((rank, std::cmp::Reverse(place.idle()), place))
            });
            let first = ranked.min_by_key(|(rank, idle, _)| (*rank, *idle));
            let Some((.., place)) = first else {
                let limit = if of_peer { peer_max } else { CONNECTIONS_MAX };
                return Admission::Full { of_peer, limit };
            };
            place.is_leaving.store(true, Ordering::Relaxed);
            Some(Arc::clone(place))
        } else {
            None
        };
        let place = Place::new(peer, choose(), may_idle_out);
        all.push(Arc::clone(&place));
        Admission::Place(place, leaves)
    }

    /// Removes a closed connection from the table.
    pub(crate) fn remove(&self, place: &Arc<Place>) {
        let mut all = self.all.lock();
        if let Some(at) = all.iter().position(|other| Arc::ptr_eq(other, place)) {
            all.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::PEER_CONNECTIONS_MAX;

    fn peer(last: u8) -> PeerKey {
        PeerKey::of(IpAddr::from([10, 0, 0, last]))
    }

    fn admit(places: &ConnectionTable, from: PeerKey) -> Option<(Arc<Place>, Option<Arc<Place>>)> {
        match places.admit((from, PEER_CONNECTIONS_MAX), true, || 0) {
            Admission::Place(place, leaves) => Some((place, leaves)),
            Admission::Full { .. } => None,
        }
    }

    fn fill(places: &ConnectionTable, from: PeerKey, count: usize) -> Vec<Arc<Place>> {
        (0..count).map(|_| admit(places, from).expect("a free place").0).collect()
    }

    /// Returns a copy of the slot with its last activity moved `by` into the past.
    fn age(place: &Arc<Place>, by: Duration) -> Arc<Place> {
        let began = Instant::now().checked_sub(by).expect("the machine runs for longer");
        let Place { peer, may_idle_out, .. } = **place;
        let aged = Place { began, ..Arc::into_inner(Place::new(peer, 0, may_idle_out)).unwrap() };
        aged.phase.store(place.phase.load(Ordering::Relaxed), Ordering::Relaxed);
        Arc::new(aged)
    }

    #[test]
    fn connections_of_one_peer_are_limited() {
        let places = ConnectionTable::default();
        for place in fill(&places, peer(1), PEER_CONNECTIONS_MAX) {
            place.used();
        }
        assert!(admit(&places, peer(1)).is_none(), "all of its connections are in use");
        assert!(admit(&places, peer(2)).is_some_and(|(_, leaves)| leaves.is_none()));
    }

    #[test]
    fn handshakes_then_unused_then_idle_connections_are_evicted() {
        let places = ConnectionTable::default();
        let mut all = fill(&places, peer(1), CONNECTIONS_MAX / 2);
        all.extend(fill(&places, peer(2), CONNECTIONS_MAX / 2));
        all.iter().for_each(|place| place.used());
        assert!(admit(&places, peer(3)).is_none(), "all are active");
        let replace = |at: usize, by: Duration, phase: Phase| {
            let aged = age(&all[at], by);
            aged.phase.store(phase as u8, Ordering::Relaxed);
            let mut listed = places.all.lock();
            let index = listed.iter().position(|one| Arc::ptr_eq(one, &all[at])).expect("listed");
            listed[index] = Arc::clone(&aged);
            aged
        };
        let idle = replace(1, IDLE_LIMIT * 2, Phase::Used);
        let idler = replace(2, IDLE_LIMIT * 3, Phase::Used);
        let unused = replace(3, UNUSED_LIMIT * 2, Phase::Unused);
        let silent = replace(4, Duration::ZERO, Phase::Handshake);
        let waits = replace(5, IDLE_LIMIT * 9, Phase::Used);
        waits.is_busy.store(true, Ordering::Relaxed);
        for expected in [&silent, &unused, &idler, &idle] {
            let (place, leaves) = admit(&places, peer(3)).expect("one gives way");
            place.used();
            assert!(Arc::ptr_eq(&leaves.expect("one gives way"), expected));
            places.remove(expected);
        }
        assert!(admit(&places, peer(3)).is_none(), "one that waits for the storage is not idle");
    }

    #[test]
    fn idle_sessions_are_kept_if_the_protocol_requires_it() {
        let places = ConnectionTable::default();
        for n in 0..CONNECTIONS_MAX {
            let Admission::Place(place, None) =
                places.admit((peer((n % 2) as u8), PEER_CONNECTIONS_MAX), false, || 0)
            else {
                panic!("place {n}")
            };
            place.end_handshake();
            let aged = age(&place, IDLE_LIMIT * 2);
            *places.all.lock().last_mut().expect("just added") = aged;
        }
        assert!(matches!(
            places.admit((peer(9), PEER_CONNECTIONS_MAX), false, || 0),
            Admission::Full { .. }
        ));
    }

    #[test]
    fn ipv6_network_counts_as_one_peer() {
        let key = |text: &str| PeerKey::of(text.parse().expect("an address"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:0:0:2"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("::ffff:10.0.0.1"), peer(1));
    }
}
