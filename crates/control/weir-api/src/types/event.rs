//! What happened: events of the server, and the history of a pool.
//!
//! Not here: where they are kept (the server).
//!
//! Invariants:
//! - events of one run of the server are numbered without a gap; what was dropped is counted;
//! - a history entry is written when the call it tells of has ended.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::page::Paged;
use super::request::{no_rules, one_name};
use super::{Answer, Page, page};
use crate::access::Scope;
use crate::wire::ApiError;

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventLevel {
    /// Something was done or is well again.
    Info,
    /// Somebody should look at it.
    Warning,
    /// Somebody must look at it now.
    Error,
}

impl EventLevel {
    /// The level as tables print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Number, from 1 in each run of the server.
    pub seq: u64,
    /// When.
    pub unix_ms: u64,
    /// How much it matters.
    pub level: EventLevel,
    /// What sort of event, such as `disk_faulted` or `pool_create`.
    pub kind: String,
    /// The pool it is about.
    pub pool: Option<String>,
    /// The disk it is about.
    pub disk: Option<String>,
    /// What happened, for people.
    pub message: String,
}

/// Which events to tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListEvents {
    /// Only events with a higher number.
    #[serde(default)]
    pub after: u64,
    /// How long to wait for the next one if there is none; at most 4000.
    #[serde(default)]
    pub wait_ms: u64,
}

no_rules!(ListEvents);

/// Events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// Identity of the server's run: numbers start anew with each.
    pub run: String,
    /// Events after the one asked for that are kept no more.
    pub lost: u64,
    /// Number of the newest event there is, 0 before the first.
    pub newest: u64,
    /// The events, oldest first.
    pub events: Vec<Event>,
}

impl Answer for EventList {
    fn keep(&mut self, scope: &Scope) {
        self.events.retain(|event| {
            event.pool.as_deref().is_some_and(|pool| scope.covers_text(pool, &event.message))
        });
    }
}

/// The pool whose history to tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListHistory {
    /// Name of the pool, which may be destroyed or exported.
    pub name: String,
}

one_name!(names::pool, name: ListHistory);

/// One administrative call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryEntry {
    /// When it was made.
    pub unix_ms: u64,
    /// How long it took.
    pub took_ms: u64,
    /// Who made it: a process of this machine or a network address.
    pub who: String,
    /// The pool it was about.
    pub pool: String,
    /// What was asked, such as `volume create tank/vm1 size=10GiB`.
    pub call: String,
    /// What came of it: `created`, `changed`, `removed`, `unchanged`, or the kind of error.
    pub outcome: String,
    /// What went wrong, if anything.
    pub error: Option<String>,
    /// Number of calls in this entry. Failed calls share an entry per caller, call and error, with
    /// the time and the error of the last call.
    #[serde(default = "once")]
    pub times: u64,
}

/// Times of an entry that an older server wrote.
const fn once() -> u64 {
    1
}

/// The administrative calls of one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryList {
    /// Name of the pool.
    pub pool: String,
    /// The calls, oldest first.
    pub entries: Vec<HistoryEntry>,
    /// Where the list continues: `after` of the call for the next entries. Absent at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Answer for HistoryList {
    const ENTRIES: Option<&'static str> = Some("entries");

    fn keep(&mut self, scope: &Scope) {
        self.entries.retain(|entry| {
            let text = format!("{} {}", entry.call, entry.error.as_deref().unwrap_or(""));
            scope.covers_text(&entry.pool, &text)
        });
    }

    fn page(self, page: &Page) -> Result<Self, ApiError> {
        page::cut(self, page)
    }
}

impl Paged for HistoryList {
    type Entry = HistoryEntry;

    fn parts(&mut self) -> (&mut Vec<HistoryEntry>, &mut Option<String>) {
        (&mut self.entries, &mut self.next)
    }

    /// Entries have no names, so the key is a checksum of all fields.
    fn key(entry: &HistoryEntry) -> String {
        let mut sum = Sum(0xcbf2_9ce4_8422_2325);
        // A sum takes every byte.
        drop(serde_json::to_writer(&mut sum, entry));
        format!("{}-{:016x}", entry.unix_ms, sum.0)
    }

    fn is(entry: &HistoryEntry, key: &str) -> bool {
        let time = key.split('-').next().and_then(|time| time.parse().ok());
        time == Some(entry.unix_ms) && Self::key(entry) == key
    }

    const GROWS: bool = true;
}

/// FNV-1a, which is enough to tell entries of one millisecond apart.
struct Sum(u64);

impl Write for Sum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, add);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
