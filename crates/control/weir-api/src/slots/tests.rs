//! Tests of slots: admission, eviction and the queue.
//!
//! Tests with real connections are in tests/all/http.rs.
//!
//! Invariant: the clock is paused, so that tests take no time.

use super::*;

fn peer(last: u8) -> SlotOwner {
    SlotOwner::of(IpAddr::from([10, 0, 0, last]))
}

fn take(slots: &Arc<Slots>, who: SlotOwner) -> Option<Taken> {
    match slots.knock(who) {
        Entrance::Taken(taken) => Some(taken),
        Entrance::Waits(_) | Entrance::Full => None,
    }
}

fn waits(slots: &Arc<Slots>, who: SlotOwner) -> Waiting {
    match slots.knock(who) {
        Entrance::Waits(waiting) => waiting,
        Entrance::Taken(_) => panic!("a slot was free"),
        Entrance::Full => panic!("the queue is full"),
    }
}

fn is_empty(slots: &Slots) -> bool {
    let table = slots.table.lock();
    table.taken.is_empty() && table.waiting.is_empty() && table.timed_out.is_empty()
}

async fn pass(time: Duration) {
    tokio::time::advance(time).await;
}

#[tokio::test(start_paused = true)]
async fn oldest_idle_connection_is_evicted() {
    let slots = Arc::new(Slots::default());
    let half = CONNECTIONS_MAX / 2;
    let held: Vec<Taken> = (0..CONNECTIONS_MAX)
        .map(|n| take(&slots, peer(u8::from(n >= half))).expect("a free slot"))
        .collect();
    let calls: Vec<Call> = held.iter().skip(1).map(|taken| taken.slot.call()).collect();
    assert!(take(&slots, peer(2)).is_none(), "a request may be on its way");
    pass(GRACE).await;
    let newest = take(&slots, peer(2)).expect("the silent one gives way");
    assert!(held[0].slot.is_leaving());
    let _call = newest.slot.call();
    held[5].slot.receives_body(true);
    assert!(take(&slots, peer(3)).is_none());
    pass(GRACE * LONG_GRACES).await;
    let next = take(&slots, peer(3)).expect("the half-sent body gives way");
    assert!(held[5].slot.is_leaving() && !next.slot.is_leaving());
    drop(calls);
    assert!(take(&slots, peer(4)).is_none(), "answers are on their way");
    held.iter().for_each(|taken| taken.slot.flushed());
    pass(GRACE).await;
    assert!(take(&slots, peer(4)).is_some());
}

#[tokio::test(start_paused = true)]
async fn waiting_call_finishes_early_and_unread_response_is_evicted() {
    let most =
        SlotLimits { all: 2, of_one: 2, of_root: 0, waiting: 2, waiting_of_one: 2, grace: GRACE };
    let slots = Arc::new(Slots::with(most));
    let [polls, stalls] = [1, 2].map(|n| take(&slots, peer(n)).expect("a free slot"));
    let call = polls.slot.call();
    let yields = polls.slot.polls();
    drop(stalls.slot.call());
    let first = take(&slots, peer(3)).expect("the call that waits gives way");
    let _first = first.slot.call();
    tokio::time::timeout(GRACE, polls.slot.hurried()).await.expect("it is told so");
    drop((yields, call));
    assert!(polls.slot.is_leaving());
    assert!(take(&slots, peer(4)).is_none());
    pass(ANSWER_GIVES_WAY / 2).await;
    stalls.slot.moved();
    pass(ANSWER_GIVES_WAY / 2).await;
    assert!(take(&slots, peer(4)).is_none(), "it took some");
    pass(ANSWER_GIVES_WAY / 2).await;
    assert!(take(&slots, peer(4)).is_some() && stalls.slot.is_leaving());
}

#[test]
fn slot_moves_to_another_table_with_a_free_one() {
    let grace = Duration::ZERO;
    let most = SlotLimits { all: 2, of_one: 1, of_root: 0, waiting: 0, waiting_of_one: 0, grace };
    let [strangers, proven] = [0; 2].map(|_| Arc::new(Slots::with(most)));
    let first = take(&strangers, peer(1)).expect("a free slot");
    assert!(first.move_to(&proven));
    let second = take(&strangers, peer(1)).expect("the first one left");
    let _call = first.slot.call();
    assert!(!second.move_to(&proven), "its address has its share there");
    assert_eq!((strangers.table.lock().taken.len(), proven.table.lock().taken.len()), (1, 1));
    drop((first, second));
    assert!(strangers.table.lock().taken.is_empty() && proven.table.lock().taken.is_empty());
}

#[tokio::test(start_paused = true)]
async fn slots_are_limited_by_peer_and_reserved_for_root() {
    let slots = Arc::new(Slots::default());
    let mut held = Vec::new();
    let busy = |who| take(&slots, who).map(|taken| (taken.slot.call(), taken));
    // Connections of root use root's additional slots first. Other users cannot use these slots.
    for _ in 0..ROOT_SLOTS {
        held.push(busy(SlotOwner::Root).expect("a slot of root"));
    }
    for who in [SlotOwner::Uid(Some(1000)), SlotOwner::Uid(Some(1001))] {
        while let Some(taken) = busy(who) {
            held.push(taken);
        }
    }
    assert_eq!(held.len(), CONNECTIONS_MAX + ROOT_SLOTS);
    assert!(busy(SlotOwner::Uid(Some(1002))).is_none() && busy(SlotOwner::Root).is_none());
    let of_first = held.iter().filter(|(_, taken)| taken.slot.who == SlotOwner::Uid(Some(1000)));
    assert_eq!(of_first.count(), PEER_CONNECTIONS_MAX);
    held.remove(0);
    assert!(busy(SlotOwner::Uid(Some(1002))).is_none(), "that slot is for root");
    held.push(busy(SlotOwner::Root).expect("a slot of root"));
    drop(held);
    assert!(is_empty(&slots));
}

// Regression: of 200 concurrent calls, 104 lost their connection after they had sent the request.
#[tokio::test(start_paused = true)]
async fn queue_admits_peers_with_few_connections_first() {
    let slots = Arc::new(Slots::default());
    let busy = |who| take(&slots, who).map(|taken| (taken.slot.call(), taken));
    let mut held: Vec<_> = (0..PEER_CONNECTIONS_MAX).map_while(|_| busy(peer(1))).collect();
    held.extend((PEER_CONNECTIONS_MAX..CONNECTIONS_MAX).map_while(|_| busy(peer(2))));
    assert_eq!(held.len(), CONNECTIONS_MAX);
    let many: Vec<_> = (0..PEER_WAITING_MAX).map(|_| waits(&slots, peer(1))).collect();
    assert!(matches!(slots.knock(peer(1)), Entrance::Full), "it has its part of the queue");
    let root = take(&slots, SlotOwner::Root).expect("root has slots of its own");
    let late = tokio::spawn(waits(&slots, peer(9)).taken());
    let of_second = held.iter().position(|(_, taken)| taken.slot.who == peer(2));
    drop(held.remove(of_second.expect("there are some")));
    let late = late.await.expect("no panic").ok().expect("it came last and has the fewest");
    let mut many = many.into_iter();
    let first = tokio::spawn(many.next().expect("there are many").taken());
    drop(held.remove(0));
    let first = first.await.expect("no panic").ok().expect("the first of its peer");
    let calls = [&root, &late, &first].map(|taken| taken.slot.call());
    assert!(first.slot.rank(Instant::now(), GRACE).is_none(), "it did not wait for its client");
    // The other connections of this peer get no slot, because none becomes free.
    assert!(many.next().expect("there are many").taken().await.is_err());
    drop((many, held, calls, root, late, first));
    assert!(is_empty(&slots));
}

// Regression: a connection that had waited for 10 s left the queue before its 503 was sent. So a
// client that did not read its responses could hold twice as many connections for 2 s.
#[tokio::test(start_paused = true)]
async fn timed_out_connection_counts_as_waiting_until_its_response_is_sent() {
    let slots = Arc::new(Slots::default());
    let busy = |who| take(&slots, who).map(|taken| (taken.slot.call(), taken));
    let mut held: Vec<_> = (0..PEER_CONNECTIONS_MAX).map_while(|_| busy(peer(1))).collect();
    held.extend((PEER_CONNECTIONS_MAX..CONNECTIONS_MAX).map_while(|_| busy(peer(2))));
    let waiting = (0..PEER_WAITING_MAX).map(|_| tokio::spawn(waits(&slots, peer(1)).taken()));
    let mut refused = Vec::new();
    for waits in waiting.collect::<Vec<_>>() {
        refused.push(waits.await.expect("no panic").err().expect("no slot became free"));
    }
    // The limit of the peer is reached, and then the limit of the whole queue.
    assert!(matches!(slots.knock(peer(1)), Entrance::Full), "{} are answered", refused.len());
    let mut others: Vec<_> =
        (PEER_WAITING_MAX..WAITING_MAX).map(|_| waits(&slots, peer(2))).collect();
    assert!(matches!(slots.knock(peer(3)), Entrance::Full));
    drop(refused.pop());
    others.push(waits(&slots, peer(1)));
    assert!(matches!(slots.knock(peer(1)), Entrance::Full));
    drop(refused);
    others.push(waits(&slots, peer(3)));
    drop((others, held));
    assert!(is_empty(&slots));
}

#[tokio::test(start_paused = true)]
async fn queue_is_limited_and_refusals_are_logged_once() {
    let slots = Arc::new(Slots::default());
    let busy = |who| take(&slots, who).map(|taken| (taken.slot.call(), taken));
    let mut held: Vec<_> = (0..PEER_CONNECTIONS_MAX).map_while(|_| busy(peer(1))).collect();
    held.extend((PEER_CONNECTIONS_MAX..CONNECTIONS_MAX).map_while(|_| busy(peer(2))));
    assert_eq!(held.len(), CONNECTIONS_MAX);
    let mut waiting = Vec::new();
    for (last, count) in [(1, 192), (2, 64)] {
        waiting.extend((0..count).map(|_| waits(&slots, peer(last))));
    }
    assert!(matches!(slots.knock(peer(3)), Entrance::Full), "{} wait", waiting.len());
    assert!(slots.refused.pass(()).is_none(), "the log told of it");
    waiting.pop();
    assert!(matches!(slots.knock(peer(3)), Entrance::Waits(_)));
}
