//! `weir pool` verbs that look after disks: scrub, offline, online, clear, attach, detach, replace;
//! and how a scan prints.
//!
//! Not here: the rest of `weir pool` (`pool`).
//!
//! Invariant: a verb is one call; only `--wait` looks on, and what it watches goes on without it.

use std::path::Path;
use std::time::Duration;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use weir_api::ApiError;
use weir_api::types::{
    Health, PoolAttach, PoolChange, PoolClear, PoolDetach, PoolOffline, PoolOnline, PoolReplace,
    PoolScrub, ScanKind, ScanState, ScrubAction, ShowPool,
};
use weir_base::ErrorKind;

use crate::cli::base::layout::absolute;
use crate::cli::base::pool_text::{changed, kind_name, scan_line, warn};
use crate::cli::base::session::Session;

/// How often a scan that is waited for is looked at.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);

/// Looks at a scan that does not run before it is given up: longer than its own attempts take.
const STILL_LOOKS_MAX: u32 = 40;

#[derive(Debug, Subcommand)]
pub(crate) enum CareVerb {
    /// Read and verify every copy of everything, and rewrite bad copies from good ones
    Scrub {
        /// Let the running scrub wait; the same verb without a flag continues it
        #[arg(short, long, conflicts_with_all = ["stop", "wait"])]
        pause: bool,
        /// End the running scrub
        #[arg(short, long, conflicts_with = "wait")]
        stop: bool,
        /// Wait until it is done
        #[arg(short, long)]
        wait: bool,
        /// Name of the pool
        name: String,
    },
    /// Take a disk out of use that others stand in for, until `online` or the next opening
    Offline {
        /// Name of the pool
        name: String,
        /// The disk: its path, the path's last part, or its guid
        disk: String,
    },
    /// Bring a disk online, also under another path, and resilver it
    Online {
        /// Wait until everything it missed is written
        #[arg(short, long)]
        wait: bool,
        /// Name of the pool
        name: String,
        /// The disk: its path, the path's last part, its guid, or the path it has now
        disk: String,
        /// The path it has now, where that is another one than before
        path: Option<String>,
    },
    /// Add a disk to a disk or mirror: it gets everything the others have
    Attach {
        /// Overwrite what the new disk holds
        #[arg(short, long)]
        force: bool,
        /// Wait until the new disk has everything
        #[arg(short, long)]
        wait: bool,
        /// Name of the pool
        name: String,
        /// A disk of the vdev: its path, the path's last part, or its guid
        disk: String,
        /// The new disk
        new: String,
    },
    /// Take a disk out of a mirror for good
    Detach {
        /// Name of the pool
        name: String,
        /// The disk: its path, the path's last part, or its guid
        disk: String,
    },
    /// Let a disk take another's place; a good one leaves when the new one has everything
    Replace {
        /// Overwrite what the new disk holds
        #[arg(short, long)]
        force: bool,
        /// Wait until the new disk has everything
        #[arg(short, long)]
        wait: bool,
        /// Where both disks cannot be in the vdev (raidz), let a good one leave at once
        #[arg(long)]
        at_once: bool,
        /// Name of the pool
        name: String,
        /// The disk to be replaced: its path, the path's last part, or its guid
        disk: String,
        /// The new disk; without it another one that has the same path now
        new: Option<String>,
    },
    /// Set error counts to zero, take faulted disks into use again
    Clear {
        /// Also give up volumes and snapshots with unreadable records: their space becomes free for
        /// other data
        #[arg(long)]
        lost: bool,
        /// Name of the pool
        name: String,
        /// One disk; else all
        disk: Option<String>,
    },
}

/// Brings a disk online. If the pool knows no disk of this name, sends the path: the server reads
/// the label there.
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

pub(crate) fn run(verb: CareVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        CareVerb::Scrub { pause, stop, wait, name } => {
            let action = match (pause, stop) {
                (true, _) => ScrubAction::Pause,
                (_, true) => ScrubAction::Stop,
                _ => ScrubAction::Start,
            };
            let request = PoolScrub { name: name.clone(), action };
            let change = session.call(request)?;
            if wait {
                return watch(session, &name, ScanKind::Scrub);
            }
            changed(session, &change)
        }
        CareVerb::Offline { name, disk } => {
            let request = PoolOffline { name, disk };
            changed(session, &session.call(request)?)
        }
        CareVerb::Online { wait, name, disk, path } => {
            let at = path.as_deref().map(absolute).transpose()?;
            let change = online(session, &PoolOnline { name: name.clone(), disk, at })?;
            if wait {
                warn(session, &change);
                return watch(session, &name, ScanKind::Resilver);
            }
            changed(session, &change)
        }
        CareVerb::Attach { force, wait, name, disk, new } => {
            let request = PoolAttach { name: name.clone(), disk, new: absolute(&new)?, force };
            let change = session.call(request)?;
            if wait {
                warn(session, &change);
                return watch(session, &name, ScanKind::Resilver);
            }
            changed(session, &change)
        }
        CareVerb::Detach { name, disk } => {
            let request = PoolDetach { name, disk };
            changed(session, &session.call(request)?)
        }
        CareVerb::Replace { force, wait, at_once, name, disk, new } => {
            let new = new.as_deref().map(absolute).transpose()?;
            let request = PoolReplace { name: name.clone(), disk, new, force, at_once };
            let change = session.call(request)?;
            if wait {
                warn(session, &change);
                return watch(session, &name, ScanKind::Resilver);
            }
            changed(session, &change)
        }
        CareVerb::Clear { lost, name, disk } => {
            let request = PoolClear { name, disk, lost };
            changed(session, &session.call(request)?)
        }
    }
}

/// Waits until no scan of this kind is wanted any more, and tells how it ended.
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
        // A resilver that finished before this one was wanted does not count.
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
            // No disk misses anything. An older scrub may be shown.
            None if pool.state == Health::Online
                && (pool.scan.is_none() || kind == ScanKind::Resilver) =>
            {
                return session.print(&pool, |_| String::new());
            }
            // It starts in a moment, or tries again after a failure.
            _ if still < STILL_LOOKS_MAX => still += 1,
            _ => {
                bar.finish_and_clear();
                let message = format!("the {} of pool {name} did not succeed", kind_name(kind));
                return Err(ApiError::new(ErrorKind::Unavailable, message)
                    .with_action(format!("see 'weir pool status {name}'")));
            }
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
}
