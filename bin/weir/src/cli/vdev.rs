//! `weir pool` verbs that change the vdevs of a pool: add, remove, expand.
//!
//! Not here: verbs for single disks of a vdev (`maintenance`), the grammar of layouts (`layout`).
//!
//! Invariant: each verb makes one call. With `--wait` a verb makes more calls, to poll the removal;
//! without `--wait` the removal continues after the verb has returned.

use std::time::Duration;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use weir_api::ApiError;
use weir_api::types::{
    Outcome, PoolAdd, PoolChange, PoolExpand, PoolRemove, PoolStatus, ShowPool, VdevStatus,
};
use weir_base::{ErrorKind, size};

use crate::cli::base::pool_text::changed;
use crate::cli::base::session::Session;
use crate::cli::base::{confirm, layout};

/// Poll interval of `--wait`.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Number of polls without progress after which `--wait` reports that damaged data prevents the
/// removal of the vdev.
const STUCK_POLLS_MAX: u32 = 20;

#[derive(Debug, Subcommand)]
pub(crate) enum ShapeVerb {
    /// Add vdevs: for data, for the intent log (`log`), or as spares (`spare`)
    Add {
        /// Use disks that contain another pool or a file system, and allow vdevs of different
        /// redundancy
        #[arg(short, long)]
        force: bool,
        /// Name of the pool
        name: String,
        /// Layout as for `create`: disks, or `mirror` or `raidz1` to `raidz3` followed by disks;
        /// may be repeated. `log` and `spare` give the role of the vdevs that follow
        #[arg(required = true, value_name = "VDEV")]
        layout: Vec<String>,
    },
    /// Remove a vdev; its data moves to the other vdevs while the pool stays in use
    Remove {
        /// Cancel a removal in progress; the vdev stays
        #[arg(short, long, conflicts_with_all = ["wait", "yes"])]
        stop: bool,
        /// Skip the confirmation
        #[arg(short, long)]
        yes: bool,
        /// Wait until the vdev is removed
        #[arg(short, long)]
        wait: bool,
        /// Name of the pool
        name: String,
        /// Name of the vdev as `status` shows it, such as mirror-0, or the path of its only disk
        vdev: String,
    },
    /// Use the full size of all disks, after disks were replaced by larger ones
    Expand {
        /// Name of the pool
        name: String,
    },
}

pub(crate) fn run(verb: ShapeVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        ShapeVerb::Add { force, name, layout } => {
            let words: Vec<&str> = layout.iter().map(String::as_str).collect();
            layout::check_pool_first(&name, &words)?;
            let vdevs = layout::parse(&layout)?;
            let request = PoolAdd { name, vdevs, force };
            let change = session.call(request)?;
            changed(session, &change, &sized("has new vdevs", &change), "the pool has them already")
        }
        ShapeVerb::Remove { stop, yes, wait, name, vdev } => {
            layout::check_pool_first(&name, &[&vdev])?;
            if !yes && !stop {
                check_vdev(session, &name, &vdev)?;
            }
            confirm::removal(&name, &vdev, yes || stop)?;
            let request = PoolRemove { name: name.clone(), vdev: vdev.clone(), stop };
            let change = session.call(request)?;
            let found = change.pool.vdevs.iter().find(|v| v.name == vdev || has_disk(v, &vdev));
            match found {
                Some(found) if wait => watch(session, &name, &found.name.clone()),
                found => {
                    let is_retry = change.outcome == Outcome::Unchanged;
                    session.say(&removal(&name, &vdev, found, is_retry && !stop));
                    session.print(&change, |_| String::new())
                }
            }
        }
        ShapeVerb::Expand { name } => {
            let already = format!("pool {name} uses the full size of its disks already");
            let change = session.call(PoolExpand { name })?;
            changed(session, &change, &sized("uses the full size of its disks", &change), &already)
        }
    }
}

/// Checks that a pool has this vdev before the user must confirm its removal.
fn check_vdev(session: &Session, pool: &str, vdev: &str) -> Result<(), ApiError> {
    let shown = session.call(ShowPool { name: pool.to_owned() })?;
    let is_it = |known: &VdevStatus| {
        let has_end = |path: &str| path.rsplit('/').next() == Some(vdev);
        let has_part = known.disks.iter().any(|disk| has_end(&disk.path));
        known.name == vdev || has_disk(known, vdev) || has_part
    };
    if shown.vdevs.iter().any(is_it) {
        return Ok(());
    }
    let names: Vec<&str> = shown.vdevs.iter().map(|known| known.name.as_str()).collect();
    let message = format!("pool {pool} has no vdev {vdev}; it has {}", names.join(", "));
    Err(ApiError::new(ErrorKind::NotFound, message).with_action(format!("weir pool status {pool}")))
}

fn sized(what: &str, change: &PoolChange) -> String {
    let PoolStatus { name, size_bytes, .. } = &change.pool;
    format!("pool {name} {what}; its size is {}", size::Human(*size_bytes))
}

/// Describes the outcome of a removal: in progress, done or cancelled. If `is_retry` is true, the
/// request made the pool try again to move segments that it could not move before.
fn removal(pool: &str, vdev: &str, found: Option<&VdevStatus>, is_retry: bool) -> String {
    let Some(found) = found else { return format!("{vdev} was removed from pool {pool}") };
    let name = &found.name;
    match found.leaving {
        None => format!("{name} stays in pool {pool}"),
        Some(leaving) => {
            let how = if is_retry {
                "is still evacuating; segments that could not be moved are retried"
            } else {
                "is evacuating"
            };
            format!(
                "{name} of pool {pool} {how}: {} to move\nwatch: weir pool status {pool}\nundo: \
                 weir pool remove --stop {pool} {name}",
                size::Human(leaving.live_bytes)
            )
        }
    }
}

fn has_disk(vdev: &VdevStatus, disk: &str) -> bool {
    vdev.disks.iter().any(|known| known.path == disk || known.guid == disk)
}

/// Waits until a vdev is removed.
fn watch(session: &Session, name: &str, vdev: &str) -> Result<(), ApiError> {
    let shown = if session.is_watched() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let template = "remove {msg} {wide_bar} {bytes}/{total_bytes}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("the template is a constant");
    let bar = ProgressBar::with_draw_target(None, shown).with_style(style);
    bar.set_message(vdev.to_owned());
    let (mut total, mut last, mut stuck) = (0, None, 0);
    loop {
        let pool = session.call(ShowPool { name: name.to_owned() })?;
        let Some(vdev) = pool.vdevs.iter().find(|known| known.name == vdev) else {
            bar.finish_and_clear();
            session.say(&format!("{vdev} was removed from pool {name}"));
            return session.print(&pool, |_| String::new());
        };
        let Some(leaving) = vdev.leaving else {
            bar.finish_and_clear();
            let message = format!("the removal of {} from pool {name} was stopped", vdev.name);
            return Err(ApiError::new(ErrorKind::Unavailable, message));
        };
        total = leaving.live_bytes.max(total);
        bar.set_length(total);
        bar.set_position(total - leaving.live_bytes);
        let unchanged = leaving.stuck_segments > 0 && last == Some(leaving);
        stuck = if unchanged { stuck + 1 } else { 0 };
        if stuck >= STUCK_POLLS_MAX {
            bar.finish_and_clear();
            let message = format!(
                "{} segments of {} cannot be moved: they contain data that is damaged on every \
                 disk",
                leaving.stuck_segments, vdev.name
            );
            return Err(ApiError::new(ErrorKind::Data, message).with_action(format!(
                "overwrite or trim the damaged data and repeat this command, or keep the vdev: \
                 weir pool remove --stop {name} {}",
                vdev.name
            )));
        }
        last = Some(leaving);
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_removal_reports_that_it_continues() {
        let errors = serde_json::json!({ "read": 0, "write": 0, "checksum": 0 });
        let vdev = serde_json::json!({
            "name": "disk-1", "kind": "disk", "state": "online", "errors": errors, "disks": [],
            "leaving": { "live_bytes": 4096, "stuck_segments": 0 },
        });
        let vdev: VdevStatus = serde_json::from_value(vdev).unwrap();
        let said = |is_retry| removal("tank", "b", Some(&vdev), is_retry);
        assert!(said(false).starts_with("disk-1 of pool tank is evacuating: 4KiB to move"));
        let again =
            "disk-1 of pool tank is still evacuating; segments that could not be moved are retried";
        assert!(said(true).starts_with(again), "{}", said(true));
        assert!(said(true).contains("undo: weir pool remove --stop tank disk-1"));
        assert_eq!(removal("tank", "b", None, true), "b was removed from pool tank");
    }
}
