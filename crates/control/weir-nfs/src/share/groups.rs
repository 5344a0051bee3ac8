//! Groups of users as the server knows them, for rules with `manage_gids`.
//!
//! AUTH_SYS carries at most 16 groups. The server looks up the groups of the user by
//! getgrouplist(3), which may ask a directory service (LDAP, SSSD, winbind) and may block for a
//! long time. Therefore helper threads do the lookups, and a further thread ends the wait of calls.
//!
//! Invariants:
//! - no connection thread calls getgrouplist(3);
//! - a call waits at most [`LOOKUP_WAIT`]; a user is looked up once at a time;
//! - the numbers of remembered users, of their groups and of unfinished lookups have limits.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;
use weir_base::{LINES_INTERVAL, LogLimiter};

use crate::limits::{
    GROUPS_MAX, GROUPS_OF_USER_MAX, GROUPS_USERS_MAX, LOOKUP_WAIT, LOOKUPS_FAILED_KEPT,
    LOOKUPS_KEPT, LOOKUPS_MAX,
};
use crate::share::lookup_threads::{LookupThreads, start};

/// Log rate limiter for failed lookups.
static FAILURES: LogLimiter<()> = LogLimiter::new(LINES_INTERVAL);

/// Function that returns the groups of a user, which may block. A user that the server does not
/// know has no groups.
///
/// # Errors
/// The directory service did not answer.
pub type FindGroups = dyn Fn(u32) -> std::io::Result<Vec<u32>> + Send + Sync;

/// Groups of users. Its threads start with the first lookup, and end when it is dropped.
pub struct Groups(Arc<Shared>);

struct Shared {
    find: Box<FindGroups>,
    wait: Duration,
    table: Mutex<Table>,
    threads: LookupThreads<u32>,
    /// Wakes the thread that ends the wait of calls.
    begun: Condvar,
    failures: AtomicU64,
}

#[derive(Default)]
struct Table {
    users: HashMap<u32, Known>,
    /// Keys of `users` with the ends of their entries, in the order of these ends.
    ends: VecDeque<(u32, Instant)>,
    /// Number of groups of all users.
    groups: usize,
    lookups: HashMap<u32, Lookup>,
    has_clock: bool,
    is_closed: bool,
}

/// A remembered result.
struct Known {
    /// `None` after a failed lookup: the groups of the call are used.
    groups: Option<Arc<[u32]>>,
    end: Instant,
}

/// An unfinished lookup.
struct Lookup {
    /// End of the wait of its calls; `None` after this end.
    deadline: Option<Instant>,
    done: Arc<Notify>,
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").field("failures", &self.failures()).finish_non_exhaustive()
    }
}

impl Default for Groups {
    /// Groups of the users of this machine, by getpwuid(3) and getgrouplist(3).
    fn default() -> Self {
        Self::new(Box::new(of_user), LOOKUP_WAIT)
    }
}

/// Groups of a user of this machine.
fn of_user(uid: u32) -> std::io::Result<Vec<u32>> {
    let Some(user) = nix::unistd::User::from_uid(uid.into())? else { return Ok(Vec::new()) };
    let name = std::ffi::CString::new(user.name)?;
    let groups = nix::unistd::getgrouplist(&name, user.gid)?;
    Ok(groups.into_iter().map(nix::unistd::Gid::as_raw).collect())
}

impl Groups {
    /// Groups that `find` finds. A call waits at most `wait` for them.
    pub fn new(find: Box<FindGroups>, wait: Duration) -> Self {
        Self(Arc::new(Shared {
            find,
            wait,
            table: Mutex::default(),
            threads: LookupThreads::default(),
            begun: Condvar::new(),
            failures: AtomicU64::new(0),
        }))
    }

    /// Number of lookups that failed or took too long since the server started.
    pub fn failures(&self) -> u64 {
        self.0.failures.load(Ordering::Relaxed)
    }

    /// Number of remembered users, and of their groups.
    pub fn remembered(&self) -> (usize, usize) {
        let table = self.0.table.lock();
        (table.users.len(), table.groups)
    }

    /// Returns the groups of a user. `None` if the lookup failed or takes too long: the server then
    /// uses the groups of the call.
    pub async fn of(&self, uid: u32) -> Option<Arc<[u32]>> {
        loop {
            let done;
            let waiting = {
                let mut table = self.0.table.lock();
                if let Some(known) = table.users.get(&uid)
                    && Instant::now() < known.end
                {
                    return known.groups.clone();
                }
                if !table.lookups.contains_key(&uid) && !self.0.begin(&mut table, uid) {
                    self.0.count_failure(uid, "too many lookups at the same time");
                    return None;
                }
                let lookup = table.lookups.get(&uid)?;
                // Its wait ended, and the failure is no longer remembered.
                lookup.deadline?;
                done = Arc::clone(&lookup.done);
                done.notified()
            };
            waiting.await;
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.0.table.lock().is_closed = true;
        self.0.threads.close();
        self.0.begun.notify_all();
    }
}

impl Shared {
    /// Queues a lookup. Returns false if there are too many, or no thread can run it.
    fn begin(self: &Arc<Self>, table: &mut Table, uid: u32) -> bool {
        if table.lookups.len() >= LOOKUPS_MAX {
            return false;
        }
        let shared = Arc::clone(self);
        let main = move || shared.threads.run(|uid| shared.look_up(uid));
        let has_thread = self.threads.prepare("nfs-groups", main);
        if !table.has_clock {
            let shared = Arc::clone(self);
            table.has_clock = start("nfs-groups-wait", move || shared.end_waits());
        }
        if !has_thread || !table.has_clock {
            return false;
        }
        let deadline = Some(Instant::now() + self.wait);
        table.lookups.insert(uid, Lookup { deadline, done: Arc::default() });
        self.threads.push(uid);
        self.begun.notify_one();
        true
    }

    /// Looks up the groups of a user, on a helper thread.
    fn look_up(&self, uid: u32) {
        let found = match (self.find)(uid) {
            Ok(mut groups) => {
                groups.truncate(GROUPS_OF_USER_MAX);
                Some(groups.into())
            }
            Err(error) => {
                self.count_failure(uid, &error.to_string());
                None
            }
        };
        let mut table = self.table.lock();
        table.remember(uid, found, Instant::now());
        if let Some(lookup) = table.lookups.remove(&uid) {
            lookup.done.notify_waiters();
        }
    }

    /// Ends the waits that take too long, on a thread of its own.
    fn end_waits(&self) {
        let mut table = self.table.lock();
        while !table.is_closed {
            let now = Instant::now();
            let late = |lookup: &Lookup| lookup.deadline.is_some_and(|deadline| deadline <= now);
            let all = table.lookups.iter();
            let late: Vec<u32> =
                all.filter(|(_, lookup)| late(lookup)).map(|(uid, _)| *uid).collect();
            for uid in late {
                self.count_failure(uid, "the directory service takes too long");
                table.remember(uid, None, now);
                if let Some(lookup) = table.lookups.get_mut(&uid) {
                    lookup.deadline = None;
                    lookup.done.notify_waiters();
                }
            }
            match table.lookups.values().filter_map(|lookup| lookup.deadline).min() {
                Some(next) => _ = self.begun.wait_until(&mut table, next),
                None => self.begun.wait(&mut table),
            }
        }
    }

    fn count_failure(&self, uid: u32, why: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if let Some(more) = FAILURES.pass(()) {
            tracing::warn!(
                uid,
                why,
                more,
                "no groups found for a user of NFS: the groups of the call are used; check \
                 `id UID` on the server"
            );
        }
    }
}

impl Table {
    fn remember(&mut self, uid: u32, groups: Option<Arc<[u32]>>, now: Instant) {
        let kept = if groups.is_some() { LOOKUPS_KEPT } else { LOOKUPS_FAILED_KEPT };
        let end = now + kept;
        self.forget(uid);
        self.groups += groups.as_ref().map_or(0, |groups| groups.len());
        self.users.insert(uid, Known { groups, end });
        let at = self.ends.partition_point(|(_, other)| *other <= end);
        self.ends.insert(at, (uid, end));
        while self.users.len() > GROUPS_USERS_MAX || self.groups > GROUPS_MAX {
            let Some((oldest, _)) = self.ends.front().copied() else { break };
            self.forget(oldest);
        }
    }

    fn forget(&mut self, uid: u32) {
        if let Some(known) = self.users.remove(&uid) {
            self.groups -= known.groups.map_or(0, |groups| groups.len());
            self.ends.retain(|(other, _)| *other != uid);
        }
    }
}

#[cfg(test)]
mod tests;
