//! Lines about pools that several verbs print.
//!
//! Not here: the verbs (`pool`, `maintenance`, `vdev`).
//!
//! Invariant: each line is complete by itself.

use weir_api::ApiError;
use weir_api::types::{PoolChange, ScanKind, ScanState, ScanStatus};
use weir_base::size::Human;

use crate::cli::base::output;
use crate::cli::base::session::Session;

/// Prints the warnings of a change.
pub(crate) fn warn(session: &Session, change: &PoolChange) {
    for warning in &change.warnings {
        session.say(&format!("warning: {}", output::clean(warning)));
    }
}

pub(crate) fn warn_and_say(session: &Session, change: &PoolChange) {
    warn(session, change);
    session.say(&output::outcome("pool", &change.pool.name, change.outcome));
}

pub(crate) fn changed(session: &Session, change: &PoolChange) -> Result<(), ApiError> {
    warn_and_say(session, change);
    session.print(change, |_| String::new())
}

/// Formats a scan as `zpool status` does; `None` if the pool had no scan.
pub(crate) fn scan_line(scan: Option<&ScanStatus>) -> Option<String> {
    let scan = scan?;
    let kind = kind_name(scan.kind);
    let repaired = Human(scan.repaired_bytes);
    let verb = match scan.kind {
        ScanKind::Scrub => "repaired",
        ScanKind::Resilver => "resilvered",
    };
    let started = output::date(scan.started_unix_ms);
    let ended = output::date(scan.ended_unix_ms.unwrap_or(scan.started_unix_ms));
    let errors = scan.errors;
    Some(match scan.state {
        ScanState::Finished => {
            let took = match scan.ran_ms / 1000 {
                seconds @ 0..60 => format!("{seconds} s"),
                _ => output::duration(scan.ran_ms),
            };
            let done = match scan.kind {
                ScanKind::Scrub => "scrub repaired",
                ScanKind::Resilver => "resilvered",
            };
            format!("{done} {repaired} in {took} with {errors} errors on {ended}")
        }
        ScanState::Stopped => {
            let part = format!("{} of {}", Human(scan.examined_bytes), Human(scan.total_bytes));
            format!(
                "{kind} stopped on {ended} after {part}; {verb} {repaired}, {errors} errors so far"
            )
        }
        ScanState::Paused | ScanState::Running => {
            let percent = scan.examined_bytes as f64 * 100.0 / scan.total_bytes.max(1) as f64;
            let done = format!(
                "{} of {} scanned, {verb} {repaired}, {:.2}% done",
                Human(scan.examined_bytes),
                Human(scan.total_bytes),
                percent.min(100.0)
            );
            if scan.state == ScanState::Paused {
                return Some(format!("{kind} paused, started on {started}. {done}"));
            }
            let speed = scan.examined_bytes * 1000 / scan.ran_ms.max(1);
            let left = scan.left_ms.map_or_else(
                || "remaining time unknown".to_owned(),
                |ms| format!("{} to go", output::duration(ms)),
            );
            format!("{kind} in progress since {started}. {done} at {}/s, {left}", Human(speed))
        }
    })
}

pub(crate) const fn kind_name(kind: ScanKind) -> &'static str {
    match kind {
        ScanKind::Scrub => "scrub",
        ScanKind::Resilver => "resilver",
    }
}
