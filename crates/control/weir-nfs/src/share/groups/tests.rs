//! Tests of the lookups: limits of the memory, slow and failing directory services.
//!
//! Invariant: no test depends on the speed of the machine: lookups block until the test releases
//! them, and a wait of an hour never ends during a test.

use std::io::{Error, ErrorKind};
use std::pin::{Pin, pin};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::{Context, Waker};

use super::*;
use crate::limits::LOOKUP_THREADS_MAX;

const HOUR: Duration = Duration::from_hours(1);

/// Runs a future on this thread. The thread sleeps until a thread of the lookups wakes it.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    compio::runtime::Runtime::new().unwrap().block_on(future)
}

fn is_waiting(future: Pin<&mut impl Future>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Groups whose lookups send the user to the receiver, and block until the test sends a result.
struct Slow {
    groups: Groups,
    begun: Receiver<u32>,
    results: SyncSender<Vec<u32>>,
}

fn slow(wait: Duration) -> Slow {
    let (begin, begun) = sync_channel(LOOKUPS_MAX * 2);
    let (results, of_lookups) = sync_channel::<Vec<u32>>(0);
    let of_lookups = Mutex::new(of_lookups);
    let find = move |uid| {
        begin.send(uid).ok();
        of_lookups.lock().recv().map_err(|_| Error::from(ErrorKind::BrokenPipe))
    };
    Slow { groups: Groups::new(Box::new(find), wait), begun, results }
}

#[test]
fn user_is_looked_up_once_and_then_remembered() {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let find = move |uid| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok((uid..uid + 20).collect())
    };
    let groups = Groups::new(Box::new(find), HOUR);
    for _ in 0..3 {
        assert_eq!(block_on(groups.of(7)).unwrap()[..], *(7..27).collect::<Vec<u32>>());
    }
    assert_eq!((calls.load(Ordering::Relaxed), groups.remembered()), (1, (1, 20)));
    assert_eq!(groups.failures(), 0);
}

#[test]
fn calls_of_one_user_wait_for_the_same_lookup() {
    let Slow { groups, begun, results } = slow(HOUR);
    let (mut one, mut other) = (pin!(groups.of(7)), pin!(groups.of(7)));
    assert!(is_waiting(one.as_mut()) && is_waiting(other.as_mut()));
    assert_eq!(begun.recv().unwrap(), 7);
    results.send(vec![1, 2]).unwrap();
    assert_eq!(block_on(one).unwrap()[..], [1, 2]);
    assert_eq!(block_on(other).unwrap()[..], [1, 2]);
    assert!(begun.try_recv().is_err(), "one lookup for both");
}

#[test]
fn groups_of_the_call_are_used_when_the_lookup_takes_too_long() {
    let Slow { groups, begun, results } = slow(Duration::ZERO);
    assert!(block_on(groups.of(7)).is_none());
    assert_eq!(groups.failures(), 1);
    assert_eq!(begun.recv().unwrap(), 7);
    assert!(block_on(groups.of(7)).is_none(), "the failure is remembered");
    assert_eq!(groups.failures(), 1);
    // The late result is remembered.
    results.send(vec![3]).unwrap();
    while groups.0.table.lock().lookups.contains_key(&7) {
        std::thread::yield_now();
    }
    assert_eq!(block_on(groups.of(7)).unwrap()[..], [3]);
}

#[test]
fn groups_of_the_call_are_used_when_the_lookup_fails() {
    let groups = Groups::new(Box::new(|_| Err(ErrorKind::HostUnreachable.into())), HOUR);
    assert!(block_on(groups.of(7)).is_none());
    assert_eq!((groups.failures(), groups.remembered()), (1, (1, 0)));
}

#[test]
fn lookups_have_a_limit() {
    let Slow { groups, results, .. } = slow(HOUR);
    let mut waiting: Vec<_> = (0..LOOKUPS_MAX as u32).map(|uid| Box::pin(groups.of(uid))).collect();
    assert!(waiting.iter_mut().all(|call| is_waiting(call.as_mut())));
    assert!(block_on(groups.of(1 << 20)).is_none(), "one more is not queued");
    assert_eq!(groups.failures(), 1);
    assert!(groups.0.threads.threads() <= LOOKUP_THREADS_MAX);
    for _ in &waiting {
        results.send(vec![5]).unwrap();
    }
    for call in waiting {
        assert_eq!(block_on(call).unwrap()[..], [5]);
    }
}

#[test]
fn remembered_users_and_groups_have_limits() {
    let mut table = Table::default();
    let now = Instant::now();
    for uid in 0..GROUPS_USERS_MAX as u32 + 10 {
        let time = now + Duration::from_millis(u64::from(uid));
        table.remember(uid, Some([uid].into()), time);
    }
    assert_eq!((table.users.len(), table.ends.len()), (GROUPS_USERS_MAX, GROUPS_USERS_MAX));
    assert!(!table.users.contains_key(&9) && table.users.contains_key(&10), "the oldest leave");
    let many: Arc<[u32]> = vec![1; GROUPS_OF_USER_MAX].into();
    for uid in 0..40 {
        table.remember(uid, Some(Arc::clone(&many)), now + HOUR);
    }
    assert!(table.groups <= GROUPS_MAX, "{}", table.groups);
    let counted: usize = table
        .users
        .values()
        .filter_map(|known| known.groups.as_ref())
        .map(|groups| groups.len())
        .sum();
    assert_eq!(counted, table.groups);
    assert!(table.users.contains_key(&39));
    // A user whose entry is replaced is counted once.
    table.remember(39, Some([1, 2].into()), now + HOUR);
    table.remember(39, None, now + HOUR);
    assert_eq!(table.ends.iter().filter(|(uid, _)| *uid == 39).count(), 1);
}

#[test]
fn server_knows_the_groups_of_its_own_users() {
    let groups = Groups::new(Box::new(of_user), HOUR);
    let root = block_on(groups.of(0)).expect("the user database of the machine");
    assert!(root.contains(&0), "{root:?}");
    let unknown = block_on(groups.of(4_000_000_001)).expect("no such user is no failure");
    assert_eq!(unknown[..], [0_u32; 0]);
}
