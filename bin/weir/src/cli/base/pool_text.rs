//! Lines about pools that several verbs print.
//!
//! Not here: the verbs (`pool`, `maintenance`, `vdev`).
//!
//! Invariant: each line can be understood without the other lines.

use std::path::Path;

use weir_api::ApiError;
use weir_api::types::{
    DiskStatus, Health, Outcome, PoolChange, PoolStatus, ScanKind, ScanState, ScanStatus, VdevKind,
    VdevStatus,
};
use weir_base::size::Human;

use crate::cli::base::output;
use crate::cli::base::session::Session;

/// Prints the warnings in the response of a call that changed a pool.
pub(crate) fn warn(session: &Session, change: &PoolChange) {
    for warning in &change.warnings {
        session.say(&format!("warning: {}", output::clean(warning)));
    }
}

/// Prints the outcome of a verb: `done` if the call changed the pool, or `already` if it had
/// nothing to change.
pub(crate) fn changed(
    session: &Session,
    change: &PoolChange,
    done: &str,
    already: &str,
) -> Result<(), ApiError> {
    warn(session, change);
    let is_unchanged = change.outcome == Outcome::Unchanged;
    session.say(if is_unchanged { already } else { done });
    session.print(change, |_| String::new())
}

/// Returns the command that shows the progress of a scan.
pub(crate) fn watch_command(pool: &str) -> String {
    format!("watch: weir pool status {pool}")
}

/// Describes the redundancy of the vdev that contains this disk; `None` if no vdev contains it.
pub(crate) fn redundancy(pool: &PoolStatus, disk: &str) -> Option<String> {
    let has_disk = |vdev: &&VdevStatus| vdev.disks.iter().any(|known| is_named(known, disk));
    let vdev = pool.vdevs.iter().find(has_disk)?;
    let away = vdev.disks.iter().filter(|disk| disk.state != Health::Online).count();
    let spare = match vdev.kind {
        VdevKind::Disk => 0,
        VdevKind::Mirror => vdev.disks.len().saturating_sub(1),
        VdevKind::Raidz1 => 1,
        VdevKind::Raidz2 => 2,
        VdevKind::Raidz3 => 3,
    };
    Some(match spare.saturating_sub(away) {
        0 => format!("{} has no redundancy left", vdev.name),
        1 => format!("{} survives the loss of 1 more disk", vdev.name),
        left => format!("{} survives the loss of {left} more disks", vdev.name),
    })
}

/// True if `disk` names the known disk: by its path, by the end of its path, or by its guid.
fn is_named(known: &DiskStatus, disk: &str) -> bool {
    known.path == disk || known.guid == disk || Path::new(&known.path).ends_with(disk)
}

/// Formats a scan like `zpool status`; `None` if the pool had no scan.
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
