//! Fair queue for an expensive operation such as the TLS handshake: only few clients run the
//! operation at a time, in an order that is fair to their peers.
//!
//! The caller limits how long a client keeps its permit. `connection_table` limits connections.
//!
//! A free permit goes to a client of the peer with the fewest permits, and among such clients to
//! the client that came first. So even if many clients of one peer never finish, they delay the
//! first client of another peer for at most the duration of one permit.
//!
//! Invariants:
//! - at most [`HANDSHAKES_MAX`] clients hold a permit, one peer at most [`PEER_HANDSHAKES_MAX`];
//! - a client that disconnects while waiting leaves no entry in the queue.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::connections::connection_table::PeerKey;
use crate::limits::{HANDSHAKES_MAX, PEER_HANDSHAKES_MAX};

/// Fair queue of a server; the header of this file describes its order.
#[derive(Default)]
pub struct FairQueue {
    line: Mutex<WaitQueue>,
}

#[derive(Default)]
struct WaitQueue {
    /// Clients that hold a permit or wait for one, in FIFO order.
    clients: Vec<Client>,
    next: u64,
}

struct Client {
    id: u64,
    peer: PeerKey,
    has_turn: bool,
    wake: Arc<Notify>,
}

/// Permit of a client, or its wait for a permit. Dropping this value returns the permit or ends the
/// wait.
pub struct QueuePermit {
    fair_queue: Arc<FairQueue>,
    id: u64,
}

impl FairQueue {
    /// Waits for a permit.
    ///
    /// # Cancel safety
    /// If the returned future is dropped, the client leaves the queue.
    pub async fn wait(self: &Arc<Self>, peer: PeerKey) -> QueuePermit {
        let (turn, wake) = self.enter(peer);
        while !self.has_turn(turn.id) {
            wake.notified().await;
        }
        turn
    }

    fn enter(self: &Arc<Self>, peer: PeerKey) -> (QueuePermit, Arc<Notify>) {
        let mut line = self.line.lock();
        let (id, wake) = (line.next, Arc::<Notify>::default());
        line.next += 1;
        line.clients.push(Client { id, peer, has_turn: false, wake: Arc::clone(&wake) });
        line.start();
        (QueuePermit { fair_queue: Arc::clone(self), id }, wake)
    }

    fn has_turn(&self, id: u64) -> bool {
        self.line.lock().clients.iter().any(|client| client.id == id && client.has_turn)
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        let mut line = self.fair_queue.line.lock();
        line.clients.retain(|client| client.id != self.id);
        line.start();
    }
}

impl WaitQueue {
    /// Grants free permits to waiting clients.
    fn start(&mut self) {
        loop {
            let mut counts: HashMap<PeerKey, usize> = HashMap::new();
            for client in self.clients.iter().filter(|client| client.has_turn) {
                *counts.entry(client.peer).or_default() += 1;
            }
            if counts.values().sum::<usize>() >= HANDSHAKES_MAX {
                return;
            }
            let count = |client: &Client| counts.get(&client.peer).copied().unwrap_or_default();
            let waiting = self.clients.iter_mut().filter(|client| !client.has_turn);
            // `min_by_key` returns the first of several equal elements: the client that came first.
            let next = waiting.min_by_key(|client| count(client));
            match next.filter(|client| count(client) < PEER_HANDSHAKES_MAX) {
                Some(client) => {
                    client.has_turn = true;
                    client.wake.notify_one();
                }
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn peer(last: u8) -> PeerKey {
        PeerKey::of(IpAddr::from([10, 0, 0, last]))
    }

    fn enter(fair_queue: &Arc<FairQueue>, from: u8, count: usize) -> Vec<QueuePermit> {
        (0..count).map(|_| fair_queue.enter(peer(from)).0).collect()
    }

    fn running(fair_queue: &[QueuePermit]) -> usize {
        fair_queue.iter().filter(|turn| turn.fair_queue.has_turn(turn.id)).count()
    }

    #[test]
    fn permits_of_one_peer_are_limited() {
        let fair_queue = Arc::default();
        let many = enter(&fair_queue, 1, 2 * HANDSHAKES_MAX);
        assert_eq!(running(&many), PEER_HANDSHAKES_MAX);
        assert_eq!(running(&enter(&fair_queue, 2, 1)), 1);
    }

    #[test]
    fn peer_with_the_fewest_permits_is_next() {
        let fair_queue = Arc::default();
        let mut first = enter(&fair_queue, 1, 2 * HANDSHAKES_MAX);
        let second = enter(&fair_queue, 2, 2 * HANDSHAKES_MAX);
        assert_eq!(running(&first) + running(&second), HANDSHAKES_MAX);
        let other = enter(&fair_queue, 3, 2);
        assert_eq!(running(&other), 0, "all are taken");
        first.remove(0);
        assert_eq!(running(&other), 1, "passed by those that wait for longer");
        first.remove(0);
        assert_eq!(running(&other), 2);
        assert_eq!(running(&first) + running(&second) + running(&other), HANDSHAKES_MAX);
    }

    #[test]
    fn cancelled_waits_leave_the_queue() {
        let fair_queue = Arc::default();
        let mut many = enter(&fair_queue, 1, 2 * HANDSHAKES_MAX);
        many.reverse();
        many.truncate(PEER_HANDSHAKES_MAX);
        assert_eq!(running(&many), PEER_HANDSHAKES_MAX);
        drop(many);
        assert!(fair_queue.line.lock().clients.is_empty());
        assert_eq!(running(&enter(&fair_queue, 1, 1)), 1);
    }
}
