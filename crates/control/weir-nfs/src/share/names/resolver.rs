//! Keeps the addresses of the names in rules up to date.
//!
//! `lookup` asks the name services, which may block for a long time. Therefore helper threads do
//! the lookups. A further thread begins the lookups that are due, and ends the waits of calls.
//!
//! Invariants:
//! - no connection thread does a lookup; a name has at most one lookup at a time;
//! - a host keeps the addresses of its last successful lookup for [`ANSWERS_KEPT`], not longer;
//! - the numbers of names, hosts, addresses, lookups and waiting calls have limits.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::lookup::{FindHosts, FoundHost, hosts_of};
use super::slot::{NameWaits, Slot};
use crate::limits::{
    ADDRESSES_MAX, ADDRESSES_OF_HOST_MAX, ANSWERS_KEPT, HOSTS_OF_NAME_MAX, NAME_REFRESH,
    NAME_RETRY, NAME_RETRY_FIRST, NAME_WAITS_MAX, NAMES_MAX, PROBLEM_CHARS_MAX,
};
use crate::share::clients::ClientName;
use crate::share::lookup_threads::{LookupThreads, start};

/// State of a name, for administrators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameState {
    /// Addresses of its hosts, in ascending order.
    pub addresses: Vec<IpAddr>,
    /// Time since the last lookup ended; `None` before.
    pub age: Option<Duration>,
    /// Reason why some of its hosts, or all of them, have no addresses.
    pub problem: Option<String>,
}

/// Addresses of the names in rules. Its threads start with the first name, and end when it is
/// dropped.
pub struct Names(Arc<Shared>);

struct Shared {
    find: Box<FindHosts>,
    waits: NameWaits,
    table: Mutex<Table>,
    threads: LookupThreads<ClientName>,
    /// Wakes the thread that begins lookups.
    due: Condvar,
    /// Wakes calls: a lookup, or the wait of a call, has ended.
    ended: Notify,
}

#[derive(Default)]
struct Table {
    names: HashMap<ClientName, Entry>,
    /// Names without a lookup, with the time of the next lookup.
    due: BTreeSet<(Instant, ClientName)>,
    /// Ends of the waits of calls, in ascending order.
    wait_ends: VecDeque<Instant>,
    /// Number of addresses of all hosts.
    addresses: usize,
    has_clock: bool,
    is_closed: bool,
}

struct Entry {
    /// Rules have copies of this reference.
    slot: Arc<Slot>,
    hosts: Vec<Host>,
    /// Time of the next lookup; `None` during a lookup.
    due: Option<Instant>,
    /// End of the last lookup.
    ended: Option<Instant>,
    problem: Option<String>,
}

/// The last successful lookup of a host.
struct Host {
    name: Box<str>,
    addresses: Vec<IpAddr>,
    found: Instant,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("names", &self.sizes().0).finish_non_exhaustive()
    }
}

impl Default for Names {
    /// Asks the name services of this machine.
    fn default() -> Self {
        Self::new(Box::new(hosts_of), NameWaits::default())
    }
}

impl Names {
    /// Names whose hosts `find` finds.
    pub fn new(find: Box<FindHosts>, waits: NameWaits) -> Self {
        Self(Arc::new(Shared {
            find,
            waits,
            table: Mutex::default(),
            threads: LookupThreads::default(),
            due: Condvar::new(),
            ended: Notify::new(),
        }))
    }

    /// Numbers of names, and of the addresses of their hosts.
    pub fn sizes(&self) -> (usize, usize) {
        let table = self.0.table.lock();
        (table.names.len(), table.addresses)
    }

    /// State of a name that rules of a share have. `None` for other names, and for names beyond
    /// the limit.
    pub fn state(&self, name: &ClientName) -> Option<NameState> {
        let now = Instant::now();
        let table = self.0.table.lock();
        let entry = table.names.get(name)?;
        let problem = match &entry.problem {
            None if entry.ended.is_none() => Some("its first lookup has not ended".to_owned()),
            problem => problem.clone(),
        };
        let age = entry.ended.map(|ended| now.saturating_duration_since(ended));
        Some(NameState { addresses: entry.slot.addresses(now), age, problem })
    }

    /// Resolves a name from now on, while the result exists. `None` if there are too many names.
    pub(in crate::share) fn follow(&self, name: &ClientName) -> Option<Arc<Slot>> {
        let mut table = self.0.table.lock();
        if let Some(entry) = table.names.get(name) {
            return Some(Arc::clone(&entry.slot));
        }
        if table.names.len() >= NAMES_MAX {
            table.remove_unused();
        }
        if table.names.len() >= NAMES_MAX {
            return None;
        }
        let now = Instant::now();
        let slot = Arc::new(Slot::new(self.0.waits, now));
        let entry = Entry {
            slot: Arc::clone(&slot),
            hosts: Vec::new(),
            due: Some(now),
            ended: None,
            problem: None,
        };
        table.names.insert(name.clone(), entry);
        table.due.insert((now, name.clone()));
        self.0.wake_clock(&mut table);
        Some(slot)
    }

    /// Looks up names again, unless they were looked up in the last seconds, and waits for these
    /// lookups for a limited time.
    pub(crate) async fn refresh(&self, names: &[ClientName]) {
        {
            let mut table = self.0.table.lock();
            let now = Instant::now();
            for name in names {
                table.bring_forward(name, self.0.waits.age, now);
            }
            self.0.wake_clock(&mut table);
        }
        self.settle(names).await;
    }

    /// Waits for the lookups of names that run or are due, for a limited time.
    pub async fn settle(&self, names: &[ClientName]) {
        let end = Instant::now() + self.0.waits.call;
        {
            let mut table = self.0.table.lock();
            if table.wait_ends.len() >= NAME_WAITS_MAX {
                return;
            }
            table.wait_ends.push_back(end);
            self.0.wake_clock(&mut table);
            if !table.has_clock {
                return;
            }
        }
        loop {
            // It counts the lookups that end from here on.
            let ended = self.0.ended.notified();
            let now = Instant::now();
            if now >= end || !self.0.table.lock().is_pending(names, now) {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.0.table.lock().is_closed = true;
        self.0.threads.close();
        self.0.due.notify_all();
    }
}

impl Shared {
    /// Wakes the thread that begins lookups, after another time may be the next one.
    fn wake_clock(self: &Arc<Self>, table: &mut Table) {
        if !table.has_clock {
            let shared = Arc::clone(self);
            table.has_clock = start("nfs-names-clock", move || shared.run_clock());
        }
        self.due.notify_one();
    }

    /// Begins lookups and ends waits at their times, on a thread of its own.
    fn run_clock(self: &Arc<Self>) {
        let mut table = self.table.lock();
        while !table.is_closed {
            let now = Instant::now();
            for name in table.begin_due(now) {
                let shared = Arc::clone(self);
                let main = move || shared.threads.run(|name| shared.look_up(name));
                // Without a thread, the name waits for the next one.
                self.threads.prepare("nfs-names", main);
                self.threads.push(name);
            }
            let ends = table.wait_ends.partition_point(|end| *end <= now);
            if ends > 0 {
                table.wait_ends.drain(..ends);
                self.ended.notify_waiters();
            }
            let due = table.due.first().map(|(due, _)| *due);
            match due.into_iter().chain(table.wait_ends.front().copied()).min() {
                Some(next) => _ = self.due.wait_until(&mut table, next),
                None => self.due.wait(&mut table),
            }
        }
    }

    /// Looks up a name, on a helper thread.
    fn look_up(&self, name: ClientName) {
        let found = (self.find)(&name);
        self.table.lock().complete(name, found, Instant::now());
        self.due.notify_one();
        self.ended.notify_waiters();
    }
}

impl Table {
    /// Returns the names whose lookup is due and begins now, and removes the names that no rule
    /// uses.
    fn begin_due(&mut self, now: Instant) -> Vec<ClientName> {
        let mut begun = Vec::new();
        while self.due.first().is_some_and(|(due, _)| *due <= now) {
            let Some((_, name)) = self.due.pop_first() else { break };
            match self.names.get_mut(&name) {
                Some(entry) if entry.is_used() => {
                    entry.due = None;
                    begun.push(name);
                }
                _ => self.remove(&name),
            }
        }
        begun
    }

    fn remove(&mut self, name: &ClientName) {
        if let Some(entry) = self.names.remove(name) {
            self.addresses -= entry.addresses();
            if let Some(due) = entry.due {
                self.due.remove(&(due, name.clone()));
            }
        }
    }

    /// Removes the names that no rule uses and that no thread looks up.
    fn remove_unused(&mut self) {
        let all = self.names.iter();
        let unused = all.filter(|(_, entry)| !entry.is_used() && entry.due.is_some());
        let unused: Vec<ClientName> = unused.map(|(name, _)| name.clone()).collect();
        unused.iter().for_each(|name| self.remove(name));
    }

    /// Sets the next lookup of a name to now, unless the last one ended a short time ago.
    fn bring_forward(&mut self, name: &ClientName, age_min: Duration, now: Instant) {
        let Some(entry) = self.names.get_mut(name) else { return };
        let is_old = entry.ended.is_none_or(|ended| now >= ended + age_min);
        if let Some(due) = entry.due.filter(|due| *due > now && is_old) {
            entry.due = Some(now);
            self.due.remove(&(due, name.clone()));
            self.due.insert((now, name.clone()));
        }
    }

    /// True while a lookup of one of these names runs or is due.
    fn is_pending(&self, names: &[ClientName], now: Instant) -> bool {
        let mut entries = names.iter().filter_map(|name| self.names.get(name));
        entries.any(|entry| entry.due.is_none_or(|due| due <= now))
    }

    /// Stores the result of a lookup.
    fn complete(&mut self, name: ClientName, found: io::Result<Vec<FoundHost>>, now: Instant) {
        let Some(entry) = self.names.get_mut(&name) else { return };
        let own = entry.addresses();
        let is_found = entry.merge(found, ADDRESSES_MAX - (self.addresses - own), now);
        self.addresses = self.addresses - own + entry.addresses();
        entry.publish(is_found);
        entry.ended = Some(now);
        let pause = if is_found {
            NAME_REFRESH
        } else if entry.slot.is_awaited(now) {
            NAME_RETRY_FIRST
        } else {
            NAME_RETRY
        };
        entry.due = Some(now + pause);
        self.due.insert((now + pause, name));
    }
}

impl Entry {
    /// True while rules have the name.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.slot) > 1
    }

    fn addresses(&self) -> usize {
        self.hosts.iter().map(|host| host.addresses.len()).sum()
    }

    /// Replaces the hosts with the result of a lookup, with at most `room` addresses. A host whose
    /// lookup failed keeps its addresses for a time. Returns true if the lookup of any host
    /// succeeded, or if the name has no hosts.
    fn merge(&mut self, found: io::Result<Vec<FoundHost>>, mut room: usize, now: Instant) -> bool {
        let mut old = std::mem::take(&mut self.hosts);
        old.retain(|host| now < host.found + ANSWERS_KEPT);
        self.problem = None;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.hosts = old;
                self.note_problem(&error.to_string());
                return false;
            }
        };
        if found.is_empty() {
            self.note_problem("it has no hosts");
        }
        if found.len() > HOSTS_OF_NAME_MAX {
            self.note_problem(&format!("it has more than {HOSTS_OF_NAME_MAX} hosts"));
        }
        let mut is_found = found.is_empty();
        for FoundHost { name, addresses } in found.into_iter().take(HOSTS_OF_NAME_MAX) {
            let host = match addresses {
                Ok(addresses) => {
                    is_found = true;
                    Host { addresses: distinct(&addresses), name, found: now }
                }
                Err(error) => {
                    self.note_problem(&format!("{name}: {error}"));
                    let at = old.iter().position(|host| host.name == name);
                    let Some(at) = at else { continue };
                    old.swap_remove(at)
                }
            };
            if host.addresses.is_empty() {
                self.note_problem(&format!("{} has no address", host.name));
            } else if host.addresses.len() > ADDRESSES_OF_HOST_MAX.min(room) {
                self.note_problem(&format!("{} has too many addresses", host.name));
            } else {
                room -= host.addresses.len();
                self.hosts.push(host);
            }
        }
        is_found
    }

    /// Keeps the first problem of a lookup.
    fn note_problem(&mut self, problem: &str) {
        self.problem.get_or_insert_with(|| problem.chars().take(PROBLEM_CHARS_MAX).collect());
    }

    /// Shows the addresses to calls.
    fn publish(&self, is_found: bool) {
        let of = |host: &Host| {
            let end = host.found + ANSWERS_KEPT;
            host.addresses.iter().map(move |address| (*address, end)).collect::<Vec<_>>()
        };
        self.slot.set(self.hosts.iter().flat_map(of).collect(), is_found);
    }
}

/// Addresses in the form in which rules compare them, without duplicates.
fn distinct(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = addresses.iter().map(IpAddr::to_canonical).collect();
    all.sort_unstable();
    all.dedup();
    all.shrink_to_fit();
    all
}

#[cfg(test)]
mod tests;
