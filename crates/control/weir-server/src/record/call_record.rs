//! Records a call: adds an entry to the history, and an event.
//!
//! `recorder` runs the calls, `history` stores the entries.
//!
//! Invariant: a call that changed an object has exactly one history entry.

use std::sync::Arc;
use std::time::Instant;

use weir_api::types::{EventLevel, HistoryEntry, Outcome};
use weir_api::{ApiError, caller};
use weir_base::{Clock as _, ErrorKind, SystemClock};

use crate::record::events::{Events, NewEvent};
use crate::record::history::History;

/// Destinations of the records of calls: events and history.
#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) events: Arc<Events>,
    pub(crate) history: Arc<History>,
}

/// A call to record, with its event kind, its pool and its request as text.
pub(crate) struct Call {
    kind: &'static str,
    pub(crate) pool: String,
    text: String,
}

impl Call {
    pub(crate) fn new(kind: &'static str, about: &str, details: &str) -> Self {
        let pool = about.split(['/', '@']).next().unwrap_or_default().to_owned();
        let text = format!("{} {about} {details}", kind.replace('_', " "));
        Self { kind, pool, text: text.trim_end().to_owned() }
    }
}

pub(crate) fn name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Created => "created",
        Outcome::Changed => "changed",
        Outcome::Removed => "removed",
        Outcome::Unchanged => "unchanged",
    }
}

/// Returns the level of the event about a failed call. If the server refuses a call because of its
/// request, the caller made a mistake, so an administrator need not check the cause.
fn level(kind: ErrorKind) -> EventLevel {
    match kind {
        ErrorKind::Invalid
        | ErrorKind::NotFound
        | ErrorKind::Exists
        | ErrorKind::Busy
        | ErrorKind::Permission => EventLevel::Info,
        ErrorKind::NoSpace
        | ErrorKind::ReadOnly
        | ErrorKind::Unavailable
        | ErrorKind::Data
        | ErrorKind::Poisoned
        | ErrorKind::Internal => EventLevel::Warning,
    }
}

impl Record {
    /// Records the result of a call.
    pub(crate) fn add(&self, call: Call, start: Instant, outcome: Result<Outcome, &ApiError>) {
        let Call { kind, pool, text } = call;
        let (level, what, error) = match outcome {
            Ok(outcome) => (EventLevel::Info, name(outcome), None),
            Err(error) => (level(error.kind), error.kind.name(), Some(error.message.clone())),
        };
        let who = caller::current().to_string();
        let message = match &error {
            None => format!("{text}: {what}, by {who}"),
            Some(error) => format!("{text}: {what}, by {who}: {error}"),
        };
        let caller = who.split(" from ").next().unwrap_or_default().to_owned();
        let took_ms = start.elapsed().as_millis() as u64;
        self.history.add(HistoryEntry {
            unix_ms: SystemClock::default().unix_ms().saturating_sub(took_ms),
            took_ms,
            who,
            pool: pool.clone(),
            call: text,
            outcome: what.to_owned(),
            error,
            times: 1,
        });
        let event = NewEvent {
            level,
            kind: kind.to_owned(),
            pool: Some(pool.clone()),
            disk: None,
            message,
        };
        match outcome {
            Ok(_) => self.events.add(event),
            // One count is enough for all failed calls of one caller on one pool, because each
            // reader that may see one of these events may see all of them.
            Err(_) => self.events.count_calls(&caller, &pool, event),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Regression: 11 of the first 19 events of a new user were warnings about mistakes in requests.
    #[test]
    fn mistakes_in_requests_are_no_warnings() {
        let dir = tempfile::tempdir().unwrap();
        let history = Arc::new(History::load(dir.path()));
        let record = Record { events: Arc::new(Events::new()), history };
        for kind in [ErrorKind::Invalid, ErrorKind::Data, ErrorKind::Busy, ErrorKind::Internal] {
            let error = ApiError::new(kind, "text");
            record.add(Call::new("volume_create", "tank/v", ""), Instant::now(), Err(&error));
        }
        let levels = || {
            let kept = record.events.kept_after(0).events.into_iter();
            kept.map(|event| event.level).collect::<Vec<_>>()
        };
        // Later calls of the same caller, pool and level are only counted.
        assert_eq!(levels(), [EventLevel::Info, EventLevel::Warning]);
        for kind in [ErrorKind::NotFound, ErrorKind::Exists, ErrorKind::Permission] {
            assert_eq!(level(kind), EventLevel::Info, "{kind:?}");
        }
        assert_eq!(record.history.of("tank").len(), 4, "refused calls are in the history");
    }
}
