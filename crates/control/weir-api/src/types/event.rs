//! Events of the server, and the history of a pool.
//!
//! weir-server creates and stores the events and the history; this file defines their JSON types.
//!
//! Invariants:
//! - the events of one run of the server have consecutive numbers; the server counts dropped
//!   events;
//! - the server writes the history entry of a call when the call ends.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::page::Paged;
use super::request::{no_rules, one_name};
use super::{Answer, Page, page};
use crate::access::Scope;
use crate::wire::ApiError;

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventLevel {
    /// A change was made, or a problem ended.
    Info,
    /// An administrator should check the cause.
    Warning,
    /// An administrator must act now.
    Error,
}

impl EventLevel {
    /// Returns the name of the level in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// An event of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Sequence number, which starts at 1 when the server starts.
    pub seq: u64,
    /// Time of the event.
    pub unix_ms: u64,
    /// Severity.
    pub level: EventLevel,
    /// Type of the event, such as `disk_faulted` or `pool_create`.
    pub kind: String,
    /// The affected pool.
    pub pool: Option<String>,
    /// The affected disk.
    pub disk: Option<String>,
    /// Description of the event for users.
    pub message: String,
}

/// Request to list events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListEvents {
    /// Return only events with a higher sequence number.
    #[serde(default)]
    pub after: u64,
    /// Maximum time to wait for the next event if there is no event after `after`; at most 4000.
    #[serde(default)]
    pub wait_ms: u64,
}

no_rules!(ListEvents);

/// Events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// Identity of this start of the server. Sequence numbers start again at 1 when the server
    /// starts.
    pub run: String,
    /// Number of dropped events after the requested sequence number.
    pub lost: u64,
    /// Sequence number of the newest event; 0 before the first event.
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

/// Request to list the history of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListHistory {
    /// Name of the pool, which may be destroyed or exported.
    pub name: String,
}

one_name!(names::pool, name: ListHistory);

/// A call that changed a pool, or failed to change it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryEntry {
    /// Time of the call.
    pub unix_ms: u64,
    /// Duration of the call.
    pub took_ms: u64,
    /// The caller: a process of this machine or a network address.
    pub who: String,
    /// Name of the pool.
    pub pool: String,
    /// The request, such as `volume create tank/vm1 size=10GiB`.
    pub call: String,
    /// Result: `created`, `changed`, `removed`, `unchanged`, or the kind of the error.
    pub outcome: String,
    /// The error, if the call failed.
    pub error: Option<String>,
    /// Number of calls that this entry represents. Failed calls with the same caller, call and
    /// error share an entry, which has the time and the error of the last call.
    #[serde(default = "once")]
    pub times: u64,
}

/// Returns the value of `times` for an entry that an older server wrote without this field.
const fn once() -> u64 {
    1
}

/// The changing calls of one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryList {
    /// Name of the pool.
    pub pool: String,
    /// The calls, oldest first.
    pub entries: Vec<HistoryEntry>,
    /// Value of `after` for the call that returns the next entries; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Request to list the history of all pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListAllHistory {}

no_rules!(ListAllHistory);

/// The changing calls of all pools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AllHistory {
    /// The calls, oldest first.
    pub entries: Vec<HistoryEntry>,
    /// Value of `after` for the call that returns the next entries; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl HistoryEntry {
    fn is_shown(&self, scope: &Scope) -> bool {
        let text = format!("{} {}", self.call, self.error.as_deref().unwrap_or(""));
        scope.covers_text(&self.pool, &text)
    }

    /// Returns the key of the entry for paging. Entries have no names, so the key is a checksum of
    /// all fields.
    fn key(&self) -> String {
        let mut sum = Sum(0xcbf2_9ce4_8422_2325);
        // Writing to `Sum` never fails.
        drop(serde_json::to_writer(&mut sum, self));
        format!("{}-{:016x}", self.unix_ms, sum.0)
    }

    fn has_key(&self, key: &str) -> bool {
        let time = key.split('-').next().and_then(|time| time.parse().ok());
        time == Some(self.unix_ms) && self.key() == key
    }
}

/// Implements paging and the filter by scope for a list of history entries.
macro_rules! history_list {
    ($list:ident) => {
        impl Answer for $list {
            const ENTRIES: Option<&'static str> = Some("entries");

            fn keep(&mut self, scope: &Scope) {
                self.entries.retain(|entry| entry.is_shown(scope));
            }

            fn page(self, page: &Page) -> Result<Self, ApiError> {
                page::cut(self, page)
            }
        }

        impl Paged for $list {
            type Entry = HistoryEntry;

            fn parts(&mut self) -> (&mut Vec<HistoryEntry>, &mut Option<String>) {
                (&mut self.entries, &mut self.next)
            }

            fn key(entry: &HistoryEntry) -> String {
                entry.key()
            }

            fn is(entry: &HistoryEntry, key: &str) -> bool {
                entry.has_key(key)
            }

            const GROWS: bool = true;
        }
    };
}

history_list!(HistoryList);
history_list!(AllHistory);

/// FNV-1a hash, which is sufficient to distinguish the entries of one millisecond.
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
