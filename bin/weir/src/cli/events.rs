//! `weir events` and `weir pool history`.
//!
//! Not here: how events and history are stored (the server).
//!
//! Invariant: `--follow` prints every event. If the server no longer has some events, the command
//! prints the number of missing events.

use std::env;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use clap::{Args, ValueEnum};
use weir_api::ApiError;
use weir_api::limits::EVENT_WAIT_MAX;
use weir_api::types::{
    Event, EventLevel, EventList, HistoryEntry, ListAllHistory, ListEvents, ListHistory,
};
use weir_base::{Clock as _, SystemClock};

use crate::cli::base::output;
use crate::cli::base::output::Style;
use crate::cli::base::session::Session;

/// Options of `weir events`.
#[derive(Clone, Debug, Args)]
pub(crate) struct EventArgs {
    /// Wait for new events and print them as they occur
    #[arg(short, long)]
    follow: bool,
    /// Print only events with a higher number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: u64,
    /// Print only the newest events
    #[arg(short = 'n', long = "last", value_name = "COUNT")]
    last: Option<usize>,
    /// Lowest severity to print
    #[arg(long, value_enum)]
    level: Option<Level>,
    /// Print only events of this pool
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Print only newer events: an age such as 30m, 12h or 7d
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    since: Option<Duration>,
}

/// Severity of an event.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Info,
    Warning,
    Error,
}

impl From<Level> for EventLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Info => Self::Info,
            Level::Warning => Self::Warning,
            Level::Error => Self::Error,
        }
    }
}

impl EventArgs {
    fn matches(&self, event: &Event, now_unix_ms: u64) -> bool {
        let is_level = self.level.is_none_or(|level| event.level >= level.into());
        let is_pool = self.pool.as_ref().is_none_or(|pool| event.pool.as_ref() == Some(pool));
        let age = Duration::from_millis(now_unix_ms.saturating_sub(event.unix_ms));
        is_level && is_pool && self.since.is_none_or(|since| age <= since)
    }

    /// Removes the events that the options exclude.
    fn filter(&self, mut list: EventList) -> EventList {
        let now = SystemClock::default().unix_ms();
        list.events.retain(|event| self.matches(event, now));
        let excess = list.events.len().saturating_sub(self.last.unwrap_or(usize::MAX));
        list.events.drain(..excess);
        list
    }
}

/// Prints events. With `--follow`, also prints new events as they occur.
pub(crate) fn run(session: &Session, mut arguments: EventArgs) -> Result<(), ApiError> {
    let look = |after, wait_ms| session.call(ListEvents { after, wait_ms });
    let mut seen = everything(arguments.after, look)?;
    let mut run = seen.run.clone();
    let mut newest_unix_ms = 0;
    loop {
        if seen.run != run {
            session.say("the server restarted; event numbers start at 1 again");
            run.clone_from(&seen.run);
            // The server has restarted and lists the earlier events again, under new numbers. Read
            // all events again, and drop the events that were already printed.
            seen = everything(0, look)?;
            seen.events.retain(|event| event.unix_ms > newest_unix_ms);
            continue;
        }
        if seen.lost > 0 {
            session.say(&format!("{} older events are no longer kept", seen.lost));
        }
        let after = seen.events.last().map_or(seen.newest, |event| event.seq);
        newest_unix_ms = seen.events.last().map_or(newest_unix_ms, |event| event.unix_ms);
        let is_new = !seen.events.is_empty();
        if !arguments.follow || is_new {
            let shown = arguments.filter(seen);
            if let (true, Some(pool)) = (shown.events.is_empty(), &arguments.pool) {
                // The pool has no events, or its name is misspelled. This call returns an error
                // only for a misspelled name.
                session.call(ListHistory { name: pool.clone() })?;
            }
            session.print(&shown, lines)?;
            // From here on print every new event: `--last` only limits the events that existed at
            // the start.
            arguments.last = None;
        }
        if !arguments.follow {
            return Ok(());
        }
        seen = look(after, EVENT_WAIT_MAX.as_millis() as u64)?;
    }
}

/// Returns all events after a number. A response has at most 1,000 events, so several calls may be
/// needed.
fn everything(
    mut after: u64,
    look: impl Fn(u64, u64) -> Result<EventList, ApiError>,
) -> Result<EventList, ApiError> {
    let mut all = look(after, 0)?;
    while let Some(last) = all.events.last().map(|event| event.seq).filter(|last| *last > after) {
        after = last;
        let next = look(after, 0)?;
        if next.run != all.run || next.events.is_empty() {
            break;
        }
        all.lost += next.lost;
        all.newest = next.newest;
        all.events.extend(next.events);
    }
    Ok(all)
}

fn lines(list: &EventList) -> String {
    let is_coloured = io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none();
    list.events.iter().map(|event| line(event, is_coloured)).collect()
}

fn line(event: &Event, is_coloured: bool) -> String {
    let Event { seq, unix_ms, level, kind, message, .. } = event;
    let name = format!("{:<7}", level.name());
    let (start, end) = match level {
        EventLevel::Error if is_coloured => ("\x1b[31m", "\x1b[0m"),
        EventLevel::Warning if is_coloured => ("\x1b[33m", "\x1b[0m"),
        _ => ("", ""),
    };
    let text = format!("{kind:<16}  {message}");
    format!("{seq:>6}  {}  {start}{name}{end}  {}\n", output::date(*unix_ms), output::clean(&text))
}

/// Prints the history of one pool, or of all pools.
pub(crate) fn history(
    session: &Session,
    pool: Option<String>,
    last: Option<usize>,
) -> Result<(), ApiError> {
    let newest = |entries: &mut Vec<HistoryEntry>| {
        let excess = entries.len().saturating_sub(last.unwrap_or(usize::MAX));
        entries.drain(..excess);
    };
    let Some(name) = pool else {
        let mut answer = session.call(ListAllHistory {})?;
        newest(&mut answer.entries);
        return session.print(&answer, |all| {
            let row = |entry| {
                let [when, who, call, took, outcome] = history_row(entry);
                [when, entry.pool.clone(), who, call, took, outcome]
            };
            let rows: Vec<_> = all.entries.iter().map(row).collect();
            let header = ["WHEN", "POOL", "WHO", "CALL", ">TOOK", "OUTCOME"];
            output::table(header, &rows, Style::People)
        });
    };
    let mut answer = session.call(ListHistory { name })?;
    newest(&mut answer.entries);
    session.print(&answer, |all| {
        let rows: Vec<_> = all.entries.iter().map(history_row).collect();
        output::table(["WHEN", "WHO", "CALL", ">TOOK", "OUTCOME"], &rows, Style::People)
    })
}

fn history_row(entry: &HistoryEntry) -> [String; 5] {
    let HistoryEntry { unix_ms, took_ms, who, call, outcome, error, times, .. } = entry;
    let outcome = match error {
        Some(error) if *times > 1 => format!("{outcome} ({times} times): {error}"),
        Some(error) => format!("{outcome}: {error}"),
        None => outcome.clone(),
    };
    let took = output::micros(took_ms.saturating_mul(1000));
    [output::date(*unix_ms), who.clone(), call.clone(), took, outcome]
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    fn event(level: EventLevel, pool: &str, unix_ms: u64) -> Event {
        let (kind, message) = ("kind".to_owned(), "message\x1b[2J".to_owned());
        Event { seq: 1, unix_ms, level, kind, pool: Some(pool.to_owned()), disk: None, message }
    }

    fn arguments(line: &str) -> EventArgs {
        let words = std::iter::once("events").chain(line.split_whitespace());
        let command = EventArgs::augment_args(clap::Command::new("events"));
        EventArgs::from_arg_matches(&command.get_matches_from(words)).unwrap()
    }

    #[test]
    fn events_are_filtered_by_level_pool_and_age() {
        let now = 10_000_000;
        let old = event(EventLevel::Warning, "tank", now - 7_200_000);
        let new = event(EventLevel::Error, "other", now - 1000);
        for (line, shown) in [
            ("", [true, true]),
            ("--level error", [false, true]),
            ("--level warning", [true, true]),
            ("--pool tank", [true, false]),
            ("--since 1h", [false, true]),
            ("--since 3h --pool tank", [true, false]),
        ] {
            let arguments = arguments(line);
            assert_eq!([&old, &new].map(|event| arguments.matches(event, now)), shown, "{line}");
        }
        let (run, events) = ("1".to_owned(), vec![old, new]);
        let list = EventList { run, lost: 0, newest: 2, events };
        assert_eq!(arguments("-n 1").filter(list).events[0].pool.as_deref(), Some("other"));
    }

    #[test]
    fn only_the_level_is_coloured() {
        let line = line(&event(EventLevel::Error, "tank", 0), true);
        assert!(line.contains("\x1b[31merror  \x1b[0m") && line.contains("message?[2J"), "{line}");
        assert!(!super::line(&event(EventLevel::Error, "tank", 0), false).contains('\x1b'));
    }
}
