//! `weir pool` verbs for disk maintenance: scrub, offline, online, clear, attach, detach, replace;
//! and the progress of scans.
//!
//! Not here: the other verbs of `weir pool` (`pool`, `vdev`).
//!
//! Invariant: each verb makes one call. With `--wait` a verb makes more calls, to poll the scan;
//! without `--wait` the scan continues after the verb has returned.

use std::path::Path;
use std::time::Duration;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use weir_api::ApiError;
use weir_api::types::{
    Health, PoolAttach, PoolChange, PoolClear, PoolDetach, PoolOffline, PoolOnline, PoolReplace,
    PoolScrub, PoolStatus, ScanKind, ScanState, ScrubAction, ShowPool,
};
use weir_base::ErrorKind;

use crate::cli::base::layout::{absolute, check_pool_first};
use crate::cli::base::pool_text::{changed, kind_name, redundancy, scan_line, warn, watch_command};
use crate::cli::base::session::Session;

/// Poll interval of `--wait`.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Number of polls after which `--wait` gives up if no scan is running. So many polls take longer
/// than the server needs to retry a scan.
const IDLE_POLLS_MAX: u32 = 40;

#[derive(Debug, Subcommand)]
pub(crate) enum MaintenanceVerb {
    /// Read and verify every copy of all data, and rewrite bad copies from intact ones
    Scrub {
        /// Pause the running scrub; the same verb without a flag resumes it
        #[arg(short, long, conflicts_with_all = ["stop", "wait"])]
        pause: bool,
        /// Stop the running scrub
        #[arg(short, long, conflicts_with = "wait")]
        stop: bool,
        /// Wait until the scrub ends
        #[arg(short, long)]
        wait: bool,
        /// Name of the pool
        name: String,
    },
    /// Take a redundant disk offline until `online` or the next import
    Offline {
        /// Name of the pool
        name: String,
        /// Path of the disk, the last part of the path, or its guid
        disk: String,
    },
    /// Bring a disk online, also under another path, and resilver it
    Online {
        /// Overwrite a disk that was written without the other disks
        #[arg(short, long)]
        force: bool,
        /// Wait until the resilver ends
        #[arg(short, long)]
        wait: bool,
        /// Name of the pool
        name: String,
        /// Path of the disk, the last part of the path, its guid, or its current path
        disk: String,
        /// Current path of the disk, if it changed
        path: Option<String>,
    },
    /// Attach a disk to a single disk or mirror and resilver it
    Attach {
        /// Overwrite existing data on the new disk
        #[arg(short, long)]
        force: bool,
        /// Wait until the resilver of the new disk ends
        #[arg(short, long)]
        wait: bool,
        /// Name of the pool
        name: String,
        /// A disk of the vdev: its path, the last part of the path, or its guid
        disk: String,
        /// Path of the new disk
        new: String,
    },
    /// Detach a disk from a mirror permanently
    Detach {
        /// Name of the pool
        name: String,
        /// Path of the disk, the last part of the path, or its guid
        disk: String,
    },
    /// Replace a disk with another; a healthy disk is detached when the new one is resilvered
    Replace {
        /// Overwrite existing data on the new disk
        #[arg(short, long)]
        force: bool,
        /// Wait until the resilver of the new disk ends
        #[arg(short, long)]
        wait: bool,
        /// On vdevs that cannot hold both disks (raidz), detach a healthy disk immediately
        #[arg(long)]
        at_once: bool,
        /// Name of the pool
        name: String,
        /// Disk to replace: its path, the last part of the path, or its guid
        disk: String,
        /// Path of the new disk [default: a new disk at the path of the old one]
        new: Option<String>,
    },
    /// Reset error counters, bring faulted disks back into use, and open a suspended pool again
    Clear {
        /// Also discard volumes and snapshots with unreadable records and free their space
        #[arg(long)]
        lost: bool,
        /// Name of the pool
        name: String,
        /// One disk [default: all disks]
        disk: Option<String>,
    },
}

/// Brings a disk online. If no disk of the pool has this name, sends the name as a path: the server
/// then finds the disk by the label at that path.
fn online(session: &Session, request: &PoolOnline) -> Result<PoolChange, ApiError> {
    let answer = session.call(request.clone());
    let is_unknown = |error: &ApiError| error.kind == ErrorKind::NotFound && request.at.is_none();
    match answer {
        Err(error) if is_unknown(&error) && Path::new(&request.disk).exists() => {
            let at = Some(absolute(&request.disk)?);
            session.call(PoolOnline { at, ..request.clone() })
        }
        answer => answer,
    }
}

pub(crate) fn run(verb: MaintenanceVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        MaintenanceVerb::Scrub { pause, stop, wait, name } => {
            let action = match (pause, stop) {
                (true, _) => ScrubAction::Pause,
                (_, true) => ScrubAction::Stop,
                _ => ScrubAction::Start,
            };
            scrub(session, &name, action, wait)
        }
        MaintenanceVerb::Offline { name, disk } => {
            check_pool_first(&name, &[&disk])?;
            let change = session.call(PoolOffline { name, disk: disk.clone() })?;
            let left = redundancy(&change.pool, &disk).map(|left| "; ".to_owned() + &left);
            let done = format!("{disk} is offline{}", left.unwrap_or_default());
            changed(session, &change, &done, &format!("{disk} is offline already"))
        }
        MaintenanceVerb::Online { force, wait, name, disk, path } => {
            check_pool_first(&name, &[&disk])?;
            let at = path.as_deref().map(absolute).transpose()?;
            let change = online(session, &PoolOnline { name, disk: disk.clone(), at, force })?;
            joined(session, &change, wait, &format!("{disk} is online"))
        }
        MaintenanceVerb::Attach { force, wait, name, disk, new } => {
            check_pool_first(&name, &[&disk, &new])?;
            let path = absolute(&new)?;
            let request = PoolAttach { name, disk: disk.clone(), new: path, force };
            let change = session.call(request)?;
            joined(session, &change, wait, &format!("{new} is attached to {disk}"))
        }
        MaintenanceVerb::Detach { name, disk } => {
            check_pool_first(&name, &[&disk])?;
            let done = format!("{disk} is detached from pool {name}");
            let change = session.call(PoolDetach { name, disk: disk.clone() })?;
            changed(session, &change, &done, &format!("{disk} is detached already"))
        }
        MaintenanceVerb::Replace { force, wait, at_once, name, disk, new } => {
            let others = [Some(disk.as_str()), new.as_deref()];
            check_pool_first(&name, &others.into_iter().flatten().collect::<Vec<_>>())?;
            let by = new.clone().unwrap_or_else(|| "the new disk at its path".to_owned());
            let new = new.as_deref().map(absolute).transpose()?;
            let done = format!("{by} replaces {disk}");
            let change = session.call(PoolReplace { name, disk, new, force, at_once })?;
            joined(session, &change, wait, &done)
        }
        MaintenanceVerb::Clear { lost, name, disk } => {
            let of = match &disk {
                Some(disk) => format!("the errors of {disk}"),
                None => format!("the errors of pool {name}"),
            };
            let change = session.call(PoolClear { name, disk, lost })?;
            let already = format!("{of} are cleared already");
            changed(session, &change, &format!("{of} are cleared"), &already)
        }
    }
}

fn scrub(session: &Session, name: &str, action: ScrubAction, wait: bool) -> Result<(), ApiError> {
    let change = session.call(PoolScrub { name: name.to_owned(), action })?;
    if wait {
        return watch(session, name, ScanKind::Scrub);
    }
    let (done, already) = match action {
        ScrubAction::Start => ("started", "is running already"),
        ScrubAction::Pause => ("is paused", "is paused already"),
        ScrubAction::Stop => ("is stopped", "is stopped already"),
    };
    let next = match action {
        ScrubAction::Start => watch_command(name),
        ScrubAction::Pause => format!("to continue: weir pool scrub {name}"),
        ScrubAction::Stop => format!("to start it again: weir pool scrub {name}"),
    };
    let of = format!("the scrub of pool {name}");
    changed(session, &change, &format!("{of} {done}; {next}"), &format!("{of} {already}"))
}

/// Prints the outcome of a verb after which the pool may resilver a disk. With `wait`, waits for
/// the end of the resilver first.
fn joined(session: &Session, change: &PoolChange, wait: bool, done: &str) -> Result<(), ApiError> {
    let name = &change.pool.name;
    if wait {
        warn(session, change);
        return watch(session, name, ScanKind::Resilver);
    }
    let resilver = if is_resilvering(&change.pool) {
        format!("; the pool resilvers it; {}", watch_command(name))
    } else {
        String::new()
    };
    changed(session, change, &format!("{done}{resilver}"), &format!("{done} already"))
}

fn is_resilvering(pool: &PoolStatus) -> bool {
    pool.scan.as_ref().is_some_and(|scan| {
        scan.kind == ScanKind::Resilver
            && matches!(scan.state, ScanState::Running | ScanState::Paused)
    })
}

/// Waits until a scan of this kind ends, and prints its outcome.
fn watch(session: &Session, name: &str, kind: ScanKind) -> Result<(), ApiError> {
    let shown = if session.is_watched() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let template = "{msg} {wide_bar} {bytes}/{total_bytes}, {percent} %";
    let style = ProgressStyle::with_template(template).expect("the template is a constant");
    let bar = ProgressBar::with_draw_target(None, shown).with_style(style);
    let mut still = 0;
    loop {
        let pool = session.call(ShowPool { name: name.to_owned() })?;
        let scan = pool.scan.as_ref().filter(|scan| scan.kind == kind);
        if let Some(scan) = scan {
            bar.set_length(scan.total_bytes.max(scan.examined_bytes));
            bar.set_position(scan.examined_bytes);
            bar.set_message(kind_name(kind));
        }
        // If a disk is still degraded, the finished resilver is an earlier one. Wait for the next
        // resilver.
        let mut disks = pool.vdevs.iter().flat_map(|vdev| &vdev.disks);
        let behind = kind == ScanKind::Resilver && disks.any(|disk| disk.state == Health::Degraded);
        match scan.map(|scan| scan.state) {
            Some(ScanState::Finished) if !behind => {
                bar.finish_and_clear();
                session.say(&scan_line(pool.scan.as_ref()).unwrap_or_default());
                return session.print(&pool, |_| String::new());
            }
            Some(ScanState::Paused) => {
                bar.finish_and_clear();
                session.say(&format!("the {} is paused", kind_name(kind)));
                return session.print(&pool, |_| String::new());
            }
            Some(ScanState::Stopped) if kind == ScanKind::Scrub => {
                bar.finish_and_clear();
                let message = format!("the scrub of pool {name} was stopped");
                return Err(ApiError::new(ErrorKind::Unavailable, message)
                    .with_action(format!("see 'weir pool status {name}'")));
            }
            Some(ScanState::Running) => still = 0,
            // End the wait: no disk needs a resilver, and the status shows no scan of this kind.
            None if pool.state == Health::Online
                && (pool.scan.is_none() || kind == ScanKind::Resilver) =>
            {
                return session.print(&pool, |_| String::new());
            }
            // Poll again: the scan is about to start, or the server will retry it after a failure.
            _ if still < IDLE_POLLS_MAX => still += 1,
            _ => {
                bar.finish_and_clear();
                let message = format!("the {} of pool {name} failed", kind_name(kind));
                return Err(ApiError::new(ErrorKind::Unavailable, message)
                    .with_action(format!("see 'weir pool status {name}'")));
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
