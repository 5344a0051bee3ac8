//! `weir events` and `weir pool history`.
//!
//! Not here: storage of events and history (the server).
//!
//! Invariant: `--follow` prints every event, or the number of missing ones.

use weir_api::ApiError;
use weir_api::limits::EVENT_WAIT_MAX;
use weir_api::types::{Event, EventList, HistoryEntry, ListEvents, ListHistory};

use crate::cli::base::output;
use crate::cli::base::output::Style;
use crate::cli::base::session::Session;

/// Prints the events after a number; with `follow` also new ones as they occur.
pub(crate) fn run(session: &Session, follow: bool, mut after: u64) -> Result<(), ApiError> {
    let look = |after, wait_ms| session.call(ListEvents { after, wait_ms });
    let mut seen = look(after, 0)?;
    let mut run = seen.run.clone();
    loop {
        if seen.run != run {
            session.say("the server restarted; event numbers start at 1 again");
            run.clone_from(&seen.run);
            after = 0;
            seen = look(after, 0)?;
            continue;
        }
        if seen.lost > 0 {
            session.say(&format!("{} older events are no longer kept", seen.lost));
        }
        if !follow || !seen.events.is_empty() {
            session.print(&seen, lines)?;
        }
        if !follow {
            return Ok(());
        }
        after = seen.events.last().map_or(after.min(seen.newest), |event| event.seq);
        seen = look(after, EVENT_WAIT_MAX.as_millis() as u64)?;
    }
}

fn lines(list: &EventList) -> String {
    list.events.iter().map(line).collect()
}

fn line(event: &Event) -> String {
    let Event { seq, unix_ms, level, kind, message, .. } = event;
    let text =
        format!("{seq:>6}  {}  {:<7}  {kind:<16}  {message}", output::date(*unix_ms), level.name());
    output::clean(&text) + "\n"
}

/// Prints the administrative calls of one pool.
pub(crate) fn history(session: &Session, pool: String) -> Result<(), ApiError> {
    let answer = session.call(ListHistory { name: pool })?;
    let row = |entry: &HistoryEntry| {
        let HistoryEntry { unix_ms, took_ms, who, call, outcome, error, times, .. } = entry;
        let outcome = match error {
            Some(error) if *times > 1 => format!("{outcome} ({times} times): {error}"),
            Some(error) => format!("{outcome}: {error}"),
            None => outcome.clone(),
        };
        let took = output::micros(took_ms.saturating_mul(1000));
        [output::date(*unix_ms), who.clone(), call.clone(), took, outcome]
    };
    session.print(&answer, |all| {
        let rows: Vec<_> = all.entries.iter().map(row).collect();
        output::table(["WHEN", "WHO", "CALL", ">TOOK", "OUTCOME"], &rows, Style::People)
    })
}
