//! Table of the active sessions of a server. The server uses the table to list and end sessions, a
//! login to reinstate a session. `session` has the reader and writer of a session.
//!
//! Spec: RFC 7143 6.3.5 (session reinstatement), 6.3.4 (connection reinstatement).
//!
//! Invariants:
//! - an initiator port has only one session with a target: the table admits the next session only
//!   after the nexus of the previous session was dropped;
//! - a TSIH is never 0 and belongs to only one active session;
//! - the session counts of each initiator and of all initiators stay within `limits`;
//! - sessions without CHAP can never use up the sessions of initiators with CHAP;
//! - discovery sessions do not count as sessions with targets; at their limit, the oldest one ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustix::net::Shutdown;
use tokio::sync::watch;
use weir_iscsi_wire::Status;
use weir_iscsi_wire::pdu::Digests;
use weir_net::{PeerKey, shut};
use weir_scsi::{InitiatorPort, Isid};

use crate::limits::{
    DISCOVERIES_MAX, INITIATOR_SESSIONS_MAX, PEER_DISCOVERIES_MAX, REINSTATEMENT_LIMIT,
    SESSIONS_MAX, UNPROVEN_SESSIONS_MAX,
};
use crate::target::denial::Denial;

/// Active sessions of a server.
pub struct Sessions {
    most: usize,
    most_unproven: usize,
    most_of_initiator: usize,
    /// True once the server is stopping; the table then admits no further session.
    closing: AtomicBool,
    table: Mutex<Table>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self::with_limits(SESSIONS_MAX, UNPROVEN_SESSIONS_MAX, INITIATOR_SESSIONS_MAX)
    }
}

#[derive(Default)]
struct Table {
    living: Vec<Arc<Living>>,
    last_tsih: u16,
}

/// Description of one session, as administrators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// ISID: distinguishes the sessions of one initiator with one target.
    pub isid: Isid,
    /// Address of the initiator.
    pub address: String,
    /// iSCSI name of the target; `None` for a discovery session.
    pub target: Option<String>,
    /// Target session identifying handle.
    pub tsih: u16,
    /// Time of the login.
    pub since: SystemTime,
    /// True if the initiator authenticated by CHAP.
    pub chap: bool,
    /// Digests that the session uses.
    pub digests: Digests,
    /// Number of commands that the target has answered.
    pub commands: u64,
    /// Number of data bytes sent to the initiator.
    pub read_bytes: u64,
    /// Number of data bytes that the initiator's successful commands wrote.
    pub written_bytes: u64,
}

/// A login that requests an entry in the session table.
pub(crate) struct Entrant {
    pub(crate) port: InitiatorPort,
    pub(crate) address: String,
    pub(crate) key: PeerKey,
    pub(crate) target: Option<String>,
    pub(crate) tsih: u16,
    pub(crate) cid: u16,
    pub(crate) chap: bool,
    pub(crate) digests: Digests,
    /// Duplicate of the session's socket, which other threads shut down to end the session.
    pub(crate) socket: OwnedFd,
}

struct Living {
    entrant: Entrant,
    tsih: u16,
    since: SystemTime,
    counters: Counters,
    /// Reason why the session must end; `None` while the session may continue.
    ending: Mutex<Option<&'static str>>,
    /// Seconds within which the initiator must log out; `None` until the server requests a logout.
    logout: watch::Sender<Option<u16>>,
    gone: watch::Sender<bool>,
}

/// Counters of a session.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) commands: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
}

impl Counters {
    /// Counts a command that the target has answered, with the bytes that it read and wrote.
    pub(crate) fn count(&self, read_bytes: u64, written_bytes: u64) {
        self.commands.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        self.written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
    }
}

impl Living {
    fn end(&self, why: &'static str, how: Shutdown) {
        self.ending.lock().get_or_insert(why);
        shut(&self.entrant.socket, how);
    }

    fn is_of(&self, entrant: &Entrant) -> bool {
        self.entrant.target.is_some()
            && self.entrant.port == entrant.port
            && self.entrant.target == entrant.target
    }

    fn info(&self) -> SessionInfo {
        let (of, counters) = (&self.entrant, &self.counters);
        SessionInfo {
            initiator: of.port.name.clone(),
            isid: of.port.isid,
            address: of.address.clone(),
            target: of.target.clone(),
            tsih: self.tsih,
            since: self.since,
            chap: of.chap,
            digests: of.digests,
            commands: counters.commands.load(Ordering::Relaxed),
            read_bytes: counters.read_bytes.load(Ordering::Relaxed),
            written_bytes: counters.written_bytes.load(Ordering::Relaxed),
        }
    }
}

/// Entry of a session in the session table; dropping this value removes the entry.
pub(crate) struct Place {
    sessions: Arc<Sessions>,
    living: Arc<Living>,
}

impl Place {
    pub(crate) fn tsih(&self) -> u16 {
        self.living.tsih
    }

    /// Reason why the session must end; `None` while the session may continue.
    pub(crate) fn ending(&self) -> Option<&'static str> {
        *self.living.ending.lock()
    }

    /// Waits until the server requests a logout. Returns the seconds within which the initiator
    /// must log out.
    pub(crate) async fn logout_wanted(&self) -> u16 {
        let mut logout = self.living.logout.subscribe();
        let wanted = logout.wait_for(Option::is_some).await;
        // The channel cannot close, because its sender lives as long as `self`.
        wanted.ok().and_then(|seconds| *seconds).unwrap_or_default()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.living.counters
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sessions.table.lock().living.retain(|one| !Arc::ptr_eq(one, &self.living));
        self.living.gone.send_replace(true);
    }
}

impl Sessions {
    /// Creates a table of at most `sessions_max` sessions with targets, of which at most
    /// `unproven_sessions_max` are without CHAP and at most `initiator_sessions_max` are of one
    /// initiator.
    pub fn with_limits(
        sessions_max: usize,
        unproven_sessions_max: usize,
        initiator_sessions_max: usize,
    ) -> Self {
        Self {
            most: sessions_max,
            most_unproven: unproven_sessions_max,
            most_of_initiator: initiator_sessions_max,
            closing: AtomicBool::new(false),
            table: Mutex::default(),
        }
    }

    /// All sessions, in the order of their logins.
    pub fn list(&self) -> Vec<SessionInfo> {
        self.table.lock().living.iter().map(|one| one.info()).collect()
    }

    /// Ends the sessions for which `chosen` returns true, each after its running commands have
    /// completed. Returns the number of these sessions without a wait for their end, so
    /// [`Sessions::list`] may still show them.
    pub fn end(&self, chosen: impl Fn(&SessionInfo) -> bool) -> usize {
        let table = self.table.lock();
        let chosen = table.living.iter().filter(|one| chosen(&one.info()));
        chosen.map(|one| one.end("ended by the server", Shutdown::Read)).count()
    }

    /// Refuses further logins, and asks all initiators to log out within `grace` (RFC 7143 11.9.1,
    /// event 1). Returns the number of sessions. Ends no session and does not wait for the logouts.
    pub fn ask_to_log_out(&self, grace: Duration) -> usize {
        let table = self.table.lock();
        self.closing.store(true, Ordering::SeqCst);
        let seconds = u16::try_from(grace.as_secs()).unwrap_or(u16::MAX);
        table.living.iter().for_each(|one| {
            one.logout.send_replace(Some(seconds));
        });
        table.living.len()
    }

    /// Ends all sessions of a target.
    pub fn end_target(&self, target: &str) -> usize {
        self.end(|session| session.target.as_deref() == Some(target))
    }

    /// Ends all sessions of one initiator with a target.
    pub fn end_initiator(&self, target: &str, initiator: &str) -> usize {
        self.end(|session| {
            session.target.as_deref() == Some(target) && session.initiator == initiator
        })
    }

    /// Enters a session into the table. First ends an earlier session of the same initiator port
    /// with the same target.
    pub(crate) async fn enter(self: &Arc<Self>, entrant: Entrant) -> Result<Place, Denial> {
        let mut entrant = entrant;
        let deadline = Instant::now() + REINSTATEMENT_LIMIT;
        let mut found = false;
        loop {
            let old = match self.try_enter(entrant, found)? {
                Entered::Place(place) => return Ok(place),
                Entered::After(old, back) => {
                    entrant = *back;
                    old
                }
            };
            found = true;
            old.end("replaced by a new login", Shutdown::Both);
            let mut gone = old.gone.subscribe();
            let wait = deadline.saturating_duration_since(Instant::now());
            let ended = gone.wait_for(|gone| *gone);
            if compio::time::timeout(wait, ended).await.is_err() {
                let why = "the previous session has commands that do not end";
                return Err(Denial::new(Status::OutOfResources, why));
            }
        }
    }

    /// `found` is true if a session with the requested TSIH existed and was ended for this login.
    fn try_enter(self: &Arc<Self>, entrant: Entrant, found: bool) -> Result<Entered, Denial> {
        let mut table = self.table.lock();
        if self.closing.load(Ordering::SeqCst) {
            return Err(Denial::new(Status::Unavailable, "the server is stopping"));
        }
        let asked = entrant.tsih;
        let is_meant = |one: &Living| one.is_of(&entrant) && (asked == 0 || one.tsih == asked);
        if let Some(old) = table.living.iter().find(|one| is_meant(one)) {
            if asked != 0 && old.entrant.cid != entrant.cid {
                let why = "a second connection for a session";
                return Err(Denial::new(Status::TooManyConnections, why));
            }
            return Ok(Entered::After(Arc::clone(old), Box::new(entrant)));
        }
        if asked != 0 && !found {
            return Err(Denial::new(Status::NoSession, format!("no session with TSIH {asked}")));
        }
        match entrant.target {
            Some(_) => self.find_room(&table, &entrant)?,
            None => table.end_discovery_for(entrant.key),
        }
        let tsih = match asked {
            0 => table.fresh_tsih(),
            asked => Some(asked).filter(|_| !table.is_used(asked)),
        };
        let Some(tsih) = tsih else {
            return Err(Denial::new(Status::OutOfResources, "no TSIH is free"));
        };
        let living = Arc::new(Living {
            entrant,
            tsih,
            since: SystemTime::now(),
            counters: Counters::default(),
            ending: Mutex::new(None),
            logout: watch::Sender::new(None),
            gone: watch::Sender::new(false),
        });
        table.living.push(Arc::clone(&living));
        Ok(Entered::Place(Place { sessions: Arc::clone(self), living }))
    }
}

impl Sessions {
    /// Refuses a login if another session with a target would exceed a session limit.
    fn find_room(&self, table: &Table, entrant: &Entrant) -> Result<(), Denial> {
        let others = || table.living.iter().map(|one| &one.entrant).filter(|e| e.target.is_some());
        let all = others().count();
        let alike = others().filter(|other| other.chap == entrant.chap);
        let (of_kind, most_of_kind) = if entrant.chap {
            (all, self.most)
        } else {
            (alike.clone().count(), self.most_unproven.min(self.most))
        };
        let of_same = |other: &&Entrant| {
            let same_name = other.port.name == entrant.port.name;
            if entrant.chap { same_name } else { other.key == entrant.key }
        };
        let own = alike.filter(of_same).count();
        if all >= self.most || of_kind >= most_of_kind || own >= self.most_of_initiator {
            let kind = if entrant.chap { "in all" } else { "without CHAP" };
            let why =
                format!("too many sessions: {of_kind} {kind}, {own} of them from this initiator");
            return Err(Denial::new(Status::OutOfResources, why));
        }
        Ok(())
    }
}

enum Entered {
    Place(Place),
    /// A session of the same initiator port with the same target exists, and must end first.
    After(Arc<Living>, Box<Entrant>),
}

impl Table {
    /// Ends one discovery session if another one, from `key`, would exceed a limit.
    fn end_discovery_for(&self, key: PeerKey) {
        let is_here = |one: &&Arc<Living>| one.ending.lock().is_none();
        let discoveries = self.living.iter().filter(|one| one.entrant.target.is_none());
        let here: Vec<_> = discoveries.filter(is_here).collect();
        let count = |of: PeerKey| here.iter().filter(|one| one.entrant.key == of).count();
        // The table is in login order, so the first match is the oldest session.
        let gives_way = if count(key) >= PEER_DISCOVERIES_MAX {
            here.iter().find(|one| one.entrant.key == key)
        } else if here.len() >= DISCOVERIES_MAX {
            let most = here.iter().map(|one| count(one.entrant.key)).max().unwrap_or_default();
            here.iter().find(|one| count(one.entrant.key) == most)
        } else {
            None
        };
        if let Some(one) = gives_way {
            one.end("replaced by a new discovery session", Shutdown::Both);
        }
    }

    fn is_used(&self, tsih: u16) -> bool {
        self.living.iter().any(|one| one.tsih == tsih)
    }

    fn fresh_tsih(&mut self) -> Option<u16> {
        let after = (1..=u16::MAX).map(|step| self.last_tsih.wrapping_add(step));
        let fresh = after.filter(|tsih| *tsih != 0).find(|tsih| !self.is_used(*tsih))?;
        self.last_tsih = fresh;
        Some(fresh)
    }
}
