//! `weir snapshot`: the verbs of snapshots.
//!
//! Not here: snapshot schedules (schedule), volumes cloned from snapshots (volume).
//!
//! Invariant: each verb checks its arguments as far as possible, and then makes one call.

use clap::Subcommand;
use weir_api::ApiError;
use weir_api::types::{
    ListSnapshots, Outcome, Request, Snapshot, SnapshotChange, SnapshotClone, SnapshotCreate,
    SnapshotDestroy, SnapshotHold, SnapshotRelease, SnapshotRename, SnapshotRollback,
    SnapshotsDestroyed, check_listed,
};
use weir_base::size::Human;
use weir_base::{ErrorKind, names};

use crate::cli::base::list::{Cell, ListArgs};
use crate::cli::base::session::Session;
use crate::cli::base::{confirm, output, typed};
use crate::cli::volume;

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotVerb {
    /// Create snapshots, all at the same point in time
    Create {
        /// Full names, such as tank/vm1@monday tank/vm2@monday; with -r such as tank@monday
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Snapshot all volumes of the pool
        #[arg(short, long)]
        recursive: bool,
    },
    /// List snapshots by volume, oldest first
    List {
        /// List only snapshots of this pool or volume
        of: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Destroy snapshots; their space is reclaimed in the background
    Destroy {
        /// Full names, such as tank/vm1@monday; also lists and ranges of one volume's snapshots:
        /// tank/vm1@a,b, tank/vm1@a%d, tank/vm1@a%, tank/vm1@%d
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Destroy nothing; show the snapshots and the space that would be freed
        #[arg(short = 'n', long)]
        dry_run: bool,
        /// Skip the confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Add a hold, which prevents the destruction of a snapshot
    Hold {
        /// Tag of the hold; names its owner
        tag: String,
        /// Full name, such as tank/vm1@monday
        name: String,
    },
    /// Release a hold
    Release {
        /// Tag of the hold
        tag: String,
        /// Full name, such as tank/vm1@monday
        name: String,
    },
    /// List the holds of snapshots
    Holds {
        /// List only the holds of this pool, volume or snapshot
        of: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Rename a snapshot
    Rename {
        /// Full name, such as tank/vm1@monday
        name: String,
        /// New full name, such as tank/vm1@good
        to: String,
    },
    /// Roll a volume back to a snapshot; later writes are lost
    Rollback {
        /// Full name, such as tank/vm1@monday
        name: String,
        /// Also destroy newer snapshots
        #[arg(short = 'r', long)]
        destroy_newer: bool,
        /// Skip the confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Clone a snapshot as a writable volume, which takes no space until it is written
    Clone {
        /// Full name of the snapshot, such as tank/vm1@monday
        name: String,
        /// Full name of the new volume, such as tank/new
        volume: String,
    },
}

pub(crate) fn run(verb: SnapshotVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        SnapshotVerb::Create { names, recursive } => {
            // The user typed the volume and the snapshot's name as two words, as for LVM.
            if let [volume, own] = names.as_slice()
                && names::volume(volume).is_ok()
                && names::snapshot(&format!("{volume}@{own}")).is_ok()
            {
                let message = format!("{volume:?} is a volume, and {own:?} no snapshot of one");
                return Err(ApiError::new(ErrorKind::Invalid, message)
                    .with_action(format!("weir snapshot create {volume}@{own}")));
            }
            check_created(&names, recursive)?;
            changed(session, &session.call(SnapshotCreate { names, recursive })?)
        }
        SnapshotVerb::List { of, list } => self::list(session, of, &list),
        SnapshotVerb::Destroy { names, dry_run, yes } => {
            let request = SnapshotDestroy { names, dry_run };
            request.check()?;
            destroy(session, request, yes)
        }
        SnapshotVerb::Hold { tag, name } => {
            check_order(&tag, &name, "the tag comes before the snapshot")?;
            let done = format!("snapshot {name} is held by {tag}");
            let already = format!("snapshot {name} is held by {tag} already");
            said(session, &session.call(SnapshotHold { name, tag })?, &done, &already)
        }
        SnapshotVerb::Release { tag, name } => {
            check_order(&tag, &name, "the tag comes before the snapshot")?;
            let done = format!("hold {tag} of snapshot {name} is released");
            let already = format!("snapshot {name} has no hold {tag}; nothing changed");
            said(session, &session.call(SnapshotRelease { name, tag })?, &done, &already)
        }
        SnapshotVerb::Holds { of, list } => holds(session, of, &list),
        SnapshotVerb::Rename { name, to } => {
            let done = format!("{name} is now {to}");
            let already = format!("{to} has this name already");
            said(session, &session.call(SnapshotRename { name, to })?, &done, &already)
        }
        SnapshotVerb::Rollback { name, destroy_newer, yes } => {
            let request = SnapshotRollback { name, destroy_newer };
            request.check()?;
            if !yes {
                session.check_snapshot(&request.name)?;
            }
            confirm::rollback(&request.name, yes)?;
            let name = request.name.clone();
            let change = session.call(request)?;
            session.say(&match change.outcome {
                Outcome::Unchanged => format!("the volume is in the state of {name} already"),
                _ => format!("volume {} is rolled back to {name}", change.volume.name),
            });
            session.print(&change, |_| String::new())
        }
        SnapshotVerb::Clone { name, volume } => {
            check_order(&volume, &name, "the snapshot comes before the new volume")?;
            let of = format!("a clone of {name}");
            volume::derived(session, &session.call(SnapshotClone { name, volume })?, &of)
        }
    }
}

/// Rejects two names in the wrong order: the snapshot in the place of the other name, and the other
/// name in the place of the snapshot.
fn check_order(name: &str, snapshot: &str, rule: &str) -> Result<(), ApiError> {
    if names::snapshot(snapshot).is_ok() || names::snapshot(name).is_err() {
        return Ok(());
    }
    let error = ApiError::new(ErrorKind::Invalid, format!("{snapshot} is no snapshot: {rule}"));
    Err(typed::with_line(error, typed::swapped(name, snapshot)))
}

/// Checks the names of new snapshots. An error has the names that the user probably meant.
fn check_created(names: &[String], recursive: bool) -> Result<(), ApiError> {
    let refused = |message: String, line: String| {
        Err(ApiError::new(ErrorKind::Invalid, message).with_action(line))
    };
    match names {
        // The user typed the snapshot's name first, such as "snapshot create monday tank/vm1".
        [own, volume]
            if names::volume(volume).is_ok()
                && names::snapshot(&format!("{volume}@{own}")).is_ok() =>
        {
            let message = format!("{own:?} is no full name of a snapshot");
            refused(message, format!("weir snapshot create {volume}@{own}"))
        }
        [name] if !recursive && names::pool_snapshot(name).is_ok() => {
            let message = format!("{name} is a snapshot of each volume of a pool");
            refused(message, format!("weir snapshot create -r {name}"))
        }
        [name] if recursive && names::snapshot(name).is_ok() => {
            let message = format!("{name} is a snapshot of one volume, which -r does not take");
            refused(message, format!("weir snapshot create {name}"))
        }
        _ => Ok(()),
    }
}

/// Prints the outcome of a verb: `done` if the call changed the snapshot, or `already` if it had
/// nothing to change.
fn said(
    session: &Session,
    change: &SnapshotChange,
    done: &str,
    already: &str,
) -> Result<(), ApiError> {
    session.say(if change.outcome == Outcome::Unchanged { already } else { done });
    session.print(change, |_| String::new())
}

fn changed(session: &Session, change: &SnapshotChange) -> Result<(), ApiError> {
    for snapshot in &change.snapshots {
        session.say(&output::outcome("snapshot", &snapshot.name, change.outcome));
    }
    session.print(change, |_| String::new())
}

fn destroy(session: &Session, request: SnapshotDestroy, yes: bool) -> Result<(), ApiError> {
    let dry_run = request.dry_run;
    if !dry_run {
        // Check that single snapshots exist before the question. The server checks lists and
        // ranges.
        let single = request.names.iter().filter(|name| names::snapshot(name).is_ok());
        single.filter(|_| !yes).try_for_each(|name| session.check_snapshot(name))?;
        confirm::destruction("snapshot", &request.names.join(" "), yes)?;
    }
    let gone = session.call(request)?;
    let told = |gone: &SnapshotsDestroyed| {
        let (count, freed) = (gone.names.len(), Human(gone.freed_bytes));
        let noun = if count == 1 { "snapshot" } else { "snapshots" };
        if dry_run {
            format!("would destroy {count} {noun} and free {freed}")
        } else {
            format!("destroyed {count} {noun}, which frees {freed}")
        }
    };
    session.say(&told(&gone));
    session.print(&gone, |gone| gone.names.iter().map(|name| output::clean(name) + "\n").collect())
}

fn listed(session: &Session, of: Option<String>) -> Result<Vec<Snapshot>, ApiError> {
    of.as_deref().map_or(Ok(()), check_listed)?;
    Ok(session.call(ListSnapshots::from(of))?.snapshots)
}

fn list(session: &Session, of: Option<String>, list: &ListArgs) -> Result<(), ApiError> {
    let titles = ["NAME", ">USED", ">REFER", ">WRITTEN", "CREATED", "HOLDS", "CLONES"];
    let Some(list) = list.list(&titles, &[])? else { return Ok(()) };
    of.as_deref().map_or(Ok(()), check_listed)?;
    let answer = session.call(ListSnapshots::from(of))?;
    if answer.snapshots.is_empty() {
        session.say("there are no snapshots");
    }
    let words =
        |words: &[String]| if words.is_empty() { "-".into() } else { words.join(",").into() };
    let row = |snapshot: &Snapshot| {
        [
            snapshot.name.clone().into(),
            Cell::Size(snapshot.used_bytes),
            Cell::Size(snapshot.referenced_bytes),
            Cell::Size(snapshot.written_bytes),
            Cell::date(snapshot.created_unix_ms),
            words(&snapshot.holds),
            words(&snapshot.clones),
        ]
    };
    session.print(&answer, |all| list.table(all.snapshots.iter().map(row)))
}

fn holds(session: &Session, of: Option<String>, list: &ListArgs) -> Result<(), ApiError> {
    let Some(list) = list.list(&["NAME", "TAG"], &[])? else { return Ok(()) };
    let mut held = listed(session, of)?;
    held.retain(|snapshot| !snapshot.holds.is_empty());
    if held.is_empty() {
        session.say("there are no holds");
    }
    let answer = weir_api::types::SnapshotList { snapshots: held, next: None };
    session.print(&answer, |all| {
        let tags = |s: &Snapshot| {
            let name = s.name.clone();
            s.holds.clone().into_iter().map(move |tag| [name.clone().into(), tag.into()])
        };
        list.table(all.snapshots.iter().flat_map(tags))
    })
}
