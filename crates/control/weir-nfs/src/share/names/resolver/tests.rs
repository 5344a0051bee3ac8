//! Tests of lookups: changed, failed and slow answers, and the limits.
//!
//! Invariant: no test depends on the speed of the machine: lookups block until the test releases
//! them, and tests of times use times of their own.

use std::io::{Error, ErrorKind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::super::slot::Member;
use super::*;
use crate::limits::{LOOKUP_THREADS_MAX, NAME_FOUND_WAIT};

const HOUR: Duration = Duration::from_hours(1);

const LONG: NameWaits = NameWaits { first: HOUR, found: HOUR, call: HOUR, age: HOUR };

fn host(text: &str) -> ClientName {
    ClientName::Host(text.into())
}

fn netgroup(text: &str) -> ClientName {
    ClientName::Netgroup(text.into())
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn found(name: &str, addresses: &[&str]) -> FoundHost {
    let addresses = addresses.iter().map(|text| address(text)).collect();
    FoundHost { name: name.into(), addresses: Ok(addresses) }
}

fn failed(name: &str) -> FoundHost {
    FoundHost { name: name.into(), addresses: Err(ErrorKind::TimedOut.into()) }
}

/// A table with one name, whose lookup runs since `start`.
struct One {
    table: Table,
    name: ClientName,
    slot: Arc<Slot>,
    start: Instant,
}

impl One {
    fn new(name: &str) -> Self {
        let start = Instant::now();
        let slot = Arc::new(Slot::new(NameWaits::default(), start));
        let (hosts, own) = (Vec::new(), Arc::clone(&slot));
        let entry = Entry { slot: own, hosts, due: None, ended: None, problem: None };
        let name = netgroup(name);
        let mut table = Table::default();
        table.names.insert(name.clone(), entry);
        Self { table, name, slot, start }
    }

    fn at(&self, time: Duration) -> Instant {
        self.start + time
    }

    /// Ends the lookup. Returns the pause before the next one.
    fn complete(&mut self, found: io::Result<Vec<FoundHost>>, time: Duration) -> Duration {
        let now = self.at(time);
        // The lookup begins.
        let entry = self.table.names.get_mut(&self.name).unwrap();
        if let Some(due) = entry.due.take() {
            assert!(self.table.due.remove(&(due, self.name.clone())));
        }
        self.table.complete(self.name.clone(), found, now);
        let (due, _) = self.table.due.first().unwrap();
        due.duration_since(now)
    }

    fn problem(&self) -> Option<&str> {
        self.table.names[&self.name].problem.as_deref()
    }

    fn addresses(&self, time: Duration) -> Vec<String> {
        self.slot.addresses(self.at(time)).iter().map(IpAddr::to_string).collect()
    }
}

#[test]
fn next_lookup_replaces_the_addresses() {
    let mut one = One::new("admins");
    let minute = Duration::from_mins(1);
    let hosts = vec![found("a", &["10.0.0.1", "::ffff:10.0.0.1"]), found("b", &["fd00::2"])];
    assert_eq!(one.complete(Ok(hosts), minute), NAME_REFRESH);
    assert_eq!(one.addresses(minute), ["10.0.0.1", "fd00::2"]);
    assert_eq!((one.problem(), one.table.addresses), (None, 2));
    assert_eq!(one.slot.has(address("10.0.0.1"), one.at(minute)), Member::Yes);
    one.complete(Ok(vec![found("b", &["10.0.0.3"])]), 2 * minute);
    assert_eq!(one.addresses(2 * minute), ["10.0.0.3"]);
    assert_eq!(one.slot.has(address("10.0.0.1"), one.at(2 * minute)), Member::No);
    assert_eq!(one.complete(Ok(Vec::new()), 3 * minute), NAME_REFRESH, "an empty netgroup");
    assert_eq!((one.addresses(3 * minute).len(), one.table.addresses), (0, 0));
    assert_eq!(one.problem(), Some("it has no hosts"));
}

#[test]
fn host_keeps_its_last_addresses_for_a_time() {
    let mut one = One::new("admins");
    let minute = Duration::from_mins(1);
    one.complete(Ok(vec![found("a", &["10.0.0.1"]), found("b", &["10.0.0.2"])]), minute);
    // The netgroup cannot be looked up.
    assert_eq!(one.complete(Err(ErrorKind::TimedOut.into()), 2 * minute), NAME_RETRY);
    assert_eq!(one.addresses(2 * minute), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(one.problem(), Some("timed out"));
    // The lookup of one host fails.
    one.complete(Ok(vec![failed("a"), found("b", &["10.0.0.2"])]), 30 * minute);
    assert_eq!(one.addresses(30 * minute), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(one.problem(), Some("a: timed out"));
    let end = minute + ANSWERS_KEPT;
    assert_eq!(one.addresses(end), ["10.0.0.2"], "its end needs no lookup");
    one.complete(Ok(vec![failed("a"), failed("b")]), end);
    assert_eq!(one.addresses(end), ["10.0.0.2"]);
    assert_eq!(one.table.addresses, 1);
    one.complete(Err(ErrorKind::TimedOut.into()), 30 * minute + ANSWERS_KEPT);
    assert_eq!(one.table.addresses, 0);
}

#[test]
fn failed_lookups_are_repeated_more_often_while_clients_wait() {
    let mut one = One::new("admins");
    let fail = || Err(Error::from(ErrorKind::NotFound));
    assert_eq!(one.complete(fail(), Duration::ZERO), NAME_RETRY_FIRST);
    assert_eq!(one.slot.has(address("10.0.0.1"), one.start), Member::Perhaps);
    assert_eq!(one.complete(fail(), NAME_FOUND_WAIT), NAME_RETRY);
    assert_eq!(one.slot.has(address("10.0.0.1"), one.at(NAME_FOUND_WAIT)), Member::No);
    assert_eq!(one.complete(Ok(vec![failed("a")]), NAME_FOUND_WAIT), NAME_RETRY);
}

#[test]
fn hosts_and_addresses_have_limits() {
    let mut one = One::new("admins");
    let many =
        |count: usize| (0..count).map(|at| IpAddr::from((at as u32).to_be_bytes())).collect();
    let of = |name: &str, count| FoundHost { name: name.into(), addresses: Ok(many(count)) };
    let large = of("large", ADDRESSES_OF_HOST_MAX + 1);
    one.complete(Ok(vec![large, of("b", ADDRESSES_OF_HOST_MAX)]), Duration::ZERO);
    assert_eq!(one.problem(), Some("large has too many addresses"));
    assert_eq!(one.table.addresses, ADDRESSES_OF_HOST_MAX);
    let hosts = (0..=HOSTS_OF_NAME_MAX).map(|at| found(&format!("h{at}"), &["10.0.0.1"]));
    one.complete(Ok(hosts.collect()), Duration::ZERO);
    assert_eq!(one.table.addresses, HOSTS_OF_NAME_MAX);
    assert_eq!(one.problem(), Some("it has more than 1024 hosts"));
    one.complete(Ok(Vec::new()), Duration::ZERO);
    // Other names have all addresses except 3.
    one.table.addresses = ADDRESSES_MAX - 3;
    one.complete(Ok(vec![of("a", 2), of("b", 2), of("c", 1)]), Duration::ZERO);
    assert_eq!(one.table.addresses, ADDRESSES_MAX);
    assert_eq!(one.problem(), Some("b has too many addresses"));
    let long = FoundHost { name: "x".repeat(1 << 20).into(), addresses: Ok(Vec::new()) };
    one.complete(Ok(vec![long]), Duration::ZERO);
    assert_eq!(one.problem().unwrap().len(), PROBLEM_CHARS_MAX);
}

/// Names whose lookups send the name to the receiver, and block until the test sends an address.
struct Slow {
    names: Names,
    begun: Receiver<ClientName>,
    results: SyncSender<IpAddr>,
}

fn slow(waits: NameWaits) -> Slow {
    let (begin, begun) = sync_channel(2 * NAMES_MAX);
    let (results, of_lookups) = sync_channel(0);
    let of_lookups = Mutex::new(of_lookups);
    let find = move |name: &ClientName| {
        begin.send(name.clone()).ok();
        let found = of_lookups.lock().recv().map_err(|_| Error::from(ErrorKind::BrokenPipe))?;
        Ok(vec![FoundHost { name: "a".into(), addresses: Ok(vec![found]) }])
    };
    Slow { names: Names::new(Box::new(find), waits), begun, results }
}

/// Runs a future on this thread. The thread sleeps until a thread of the lookups wakes it.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    compio::runtime::Runtime::new().unwrap().block_on(future)
}

#[test]
fn calls_never_wait_for_a_lookup() {
    let Slow { names, begun, results } = slow(LONG);
    let (name, client) = (host("a.example"), address("10.0.0.1"));
    let slot = names.follow(&name).unwrap();
    assert!(Arc::ptr_eq(&slot, &names.follow(&name).unwrap()), "two shares, one lookup");
    assert_eq!(begun.recv().unwrap(), name);
    assert_eq!(slot.has(client, Instant::now()), Member::Unknown);
    let state = names.state(&name).unwrap();
    assert_eq!((state.addresses.len(), state.age), (0, None));
    assert_eq!(state.problem.as_deref(), Some("its first lookup has not ended"));
    results.send(client).unwrap();
    block_on(names.settle(std::slice::from_ref(&name)));
    assert_eq!(slot.has(client, Instant::now()), Member::Yes);
    let state = names.state(&name).unwrap();
    assert_eq!((&state.addresses[..], state.problem), (&[client][..], None));
    assert!(state.age.is_some() && names.state(&host("b.example")).is_none());
    // A mount does not repeat a lookup of the last seconds.
    block_on(names.refresh(std::slice::from_ref(&name)));
    assert!(begun.try_recv().is_err());
}

#[test]
fn mount_repeats_an_old_lookup() {
    let Slow { names, begun, results } = slow(NameWaits { age: Duration::ZERO, ..LONG });
    let name = host("a.example");
    let slot = names.follow(&name).unwrap();
    results.send(address("10.0.0.1")).unwrap();
    block_on(names.settle(std::slice::from_ref(&name)));
    let new = address("10.0.0.2");
    let sends = std::thread::spawn(move || results.send(new).unwrap());
    block_on(names.refresh(std::slice::from_ref(&name)));
    sends.join().unwrap();
    assert_eq!(slot.has(new, Instant::now()), Member::Yes);
    assert_eq!(slot.has(address("10.0.0.1"), Instant::now()), Member::No);
    assert_eq!(begun.try_iter().count(), 2);
}

#[test]
fn waiting_calls_have_an_end_and_a_limit() {
    let Slow { names, begun, results: _results } =
        slow(NameWaits { call: Duration::from_millis(1), ..LONG });
    let name = host("a.example");
    let _slot = names.follow(&name).unwrap();
    assert_eq!(begun.recv().unwrap(), name);
    // The lookup never ends.
    block_on(names.settle(std::slice::from_ref(&name)));
    let far = Instant::now() + HOUR;
    names.0.table.lock().wait_ends = vec![far; NAME_WAITS_MAX].into();
    block_on(names.settle(std::slice::from_ref(&name)));
    assert_eq!(names.0.table.lock().wait_ends.len(), NAME_WAITS_MAX);
}

#[test]
fn lookups_have_few_threads() {
    let Slow { names, begun, results } = slow(LONG);
    let all: Vec<_> = (0..50).map(|at| host(&format!("h{at}"))).collect();
    let slots: Vec<_> = all.iter().map(|name| names.follow(name).unwrap()).collect();
    for _ in 0..LOOKUP_THREADS_MAX {
        begun.recv().unwrap();
    }
    assert_eq!(names.0.threads.threads(), LOOKUP_THREADS_MAX);
    for _ in &all {
        results.send(address("10.0.0.1")).unwrap();
    }
    block_on(names.settle(&all));
    assert_eq!(names.0.threads.threads(), LOOKUP_THREADS_MAX);
    let has = |slot: &Arc<Slot>| slot.has(address("10.0.0.1"), Instant::now());
    assert!(slots.iter().all(|slot| has(slot) == Member::Yes));
    assert_eq!(names.sizes(), (50, 50));
}

#[test]
fn names_have_a_limit_and_leave_with_their_rules() {
    let names = Names::new(Box::new(|_| Ok(Vec::new())), LONG);
    // Without this thread nothing is looked up.
    names.0.table.lock().has_clock = true;
    let name = |at: usize| host(&format!("h{at}"));
    let slots: Vec<_> = (0..NAMES_MAX).map(|at| names.follow(&name(at)).unwrap()).collect();
    assert!(names.follow(&name(NAMES_MAX)).is_none());
    assert_eq!(names.sizes().0, NAMES_MAX);
    drop(slots);
    let _slot = names.follow(&name(NAMES_MAX)).unwrap();
    assert_eq!(names.sizes().0, 1, "the others were removed");
    let mut table = names.0.table.lock();
    assert_eq!(table.due.len(), 1);
    assert_eq!(table.begin_due(Instant::now()), [name(NAMES_MAX)]);
    assert_eq!(table.due.len(), 0);
}

#[test]
fn unused_name_is_not_looked_up_again() {
    let mut one = One::new("admins");
    one.complete(Ok(vec![found("a", &["10.0.0.1"])]), Duration::ZERO);
    let next = one.at(NAME_REFRESH);
    assert_eq!(one.table.begin_due(one.start).len(), 0, "not due");
    let One { mut table, slot, .. } = one;
    drop(slot);
    assert_eq!(table.begin_due(next).len(), 0);
    assert_eq!((table.names.len(), table.addresses, table.due.len()), (0, 0, 0));
}
