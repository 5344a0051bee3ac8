//! `weir lun`: the verbs of logical units.
//!
//! Not here: the targets and their allow lists (target).
//!
//! Invariant: each verb checks its arguments as far as possible, and then makes one call.

use clap::Subcommand;
use weir_api::ApiError;
use weir_api::types::{ListTargets, LunAdd, LunRemove, ShowTarget, Target, TargetLun, target_name};
use weir_base::{ErrorKind, size};

use crate::cli::base::leave::LeaveArgs;
use crate::cli::base::list::{Cell, List, ListArgs};
use crate::cli::base::output;
use crate::cli::base::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum LunVerb {
    /// Map a volume or a snapshot to a logical unit of a target
    Add {
        /// Name of the target
        target: String,
        /// Full name, such as tank/vm1, or tank/vm1@monday, which is always read-only
        volume: String,
        /// Logical unit number [default: the lowest free number]
        #[arg(long, value_name = "NUMBER")]
        lun: Option<u16>,
        /// Logical block size, 512 or 4096 bytes [default: as at other targets, or 512]
        #[arg(long, value_name = "SIZE")]
        block_size: Option<String>,
        /// Write-back cache, on or off: if on, writes complete before they are durable, until an
        /// initiator sends SYNCHRONIZE CACHE. This is faster, but initiators that log in again
        /// automatically do not learn of writes that were lost when this server was killed
        /// [default: as at other targets, or off]
        #[arg(long, value_name = "ON|OFF")]
        write_cache: Option<String>,
        /// Allow concurrent use by clients of other protocols; the clients must coordinate, because
        /// Weir does not separate their writes
        #[arg(long)]
        shared: bool,
    },
    /// List logical units and their I/O counters
    List {
        /// List only logical units of this target
        target: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Remove a logical unit; refused while initiators are logged in to the target
    Remove {
        /// Name of the target
        target: String,
        /// Logical unit number, as `weir lun list` shows it, or the name of the volume or snapshot
        #[arg(value_name = "NUMBER|VOLUME")]
        lun: String,
        #[command(flatten)]
        leave: LeaveArgs,
    },
}

pub(crate) fn run(verb: LunVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        LunVerb::Add { target, volume, lun, block_size, write_cache, shared } => {
            let block_bytes = block_size.as_deref().map(block_bytes).transpose()?;
            if target.contains('/') && !volume.contains('/') {
                let message = format!("{target} is a volume: the target comes first");
                return Err(ApiError::new(ErrorKind::Invalid, message)
                    .with_action(format!("weir lun add {volume} {target}")));
            }
            let target = target_name(&target);
            let name = volume.clone();
            let write_cache = write_cache.as_deref().map(on_or_off).transpose()?;
            let request = LunAdd { target, volume, number: lun, block_bytes, write_cache, shared };
            let change = session.call(request)?;
            let shown = change.target.luns.iter().filter(|shown| shown.volume == name);
            let numbers: Vec<String> = shown.map(|shown| shown.number.to_string()).collect();
            let what = format!("{name} at {}, LUN {}", change.target.name, numbers.join(", "));
            session.say(&output::outcome("logical unit", &what, change.outcome));
            session.print(&change, |_| String::new())
        }
        LunVerb::List { target, list } => self::list(target, session, &list),
        LunVerb::Remove { target, lun, leave } => {
            let number = number(&target, &lun, session)?;
            let target = target_name(&target);
            let answer = leave.call(session, |force| {
                session.call(LunRemove { target: target.clone(), number, force })
            })?;
            session.say(&output::outcome("logical unit", &answer.name, answer.outcome));
            session.print(&answer, |_| String::new())
        }
    }
}

/// Finds the number of a logical unit; `named` is its number or its volume.
fn number(target: &str, named: &str, session: &Session) -> Result<u16, ApiError> {
    if let Ok(number) = named.parse() {
        return Ok(number);
    }
    let target = target_name(target);
    let key = ShowTarget { name: target.clone() };
    let shown = session.call(key)?;
    let mut found = shown.luns.iter().filter(|lun| lun.volume == named);
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only.number),
        (Some(_), Some(_)) => {
            let message = format!("{target} has more than one LUN of {named}");
            Err(ApiError::new(ErrorKind::Invalid, message)
                .with_action(format!("give the LUN number instead: weir lun list {target}")))
        }
        (None, _) => {
            let message = format!("{target} has no LUN of {named}");
            Err(ApiError::new(ErrorKind::NotFound, message)
                .with_action(format!("weir lun list {target}")))
        }
    }
}

fn on_or_off(text: &str) -> Result<bool, ApiError> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(ApiError::new(ErrorKind::Invalid, format!("bad write cache {text:?}"))
            .with_action("write on or off")),
    }
}

fn block_bytes(text: &str) -> Result<u32, ApiError> {
    let bytes = size::parse(text).ok().and_then(|bytes| u32::try_from(bytes).ok());
    bytes.filter(|bytes| matches!(bytes, 512 | 4096)).ok_or_else(|| {
        ApiError::new(ErrorKind::Invalid, format!("bad block size {text:?}"))
            .with_action("write 512 or 4096")
    })
}

fn list(target: Option<String>, session: &Session, list: &ListArgs) -> Result<(), ApiError> {
    let Some(list) = list.list(&TITLES, &[])? else { return Ok(()) };
    let targets = match target {
        None => session.call(ListTargets {})?,
        Some(name) => {
            let key = ShowTarget { name: target_name(&name) };
            let target = session.call(key)?;
            weir_api::types::TargetList { targets: vec![target], next: None }
        }
    };
    if targets.targets.iter().all(|target| target.luns.is_empty()) {
        session.say("there are no logical units");
    }
    session.print(&targets, |all| table(&all.targets, &list))
}

/// Titles of the columns in a list of logical units.
pub(crate) const TITLES: [&str; 15] = [
    "TARGET",
    ">LUN",
    "VOLUME",
    ">SIZE",
    ">BLOCK",
    "CACHE",
    "MODE",
    ">READS",
    ">WRITES",
    ">READ",
    ">WRITTEN",
    ">UNMAPPED",
    ">ZEROED",
    ">CLONED",
    ">REGISTERED",
];

/// Formats all logical units of these targets as a table; empty if there are none.
pub(crate) fn table(targets: &[Target], list: &List<'_>) -> String {
    let row = |target: &Target, lun: &TargetLun| {
        let counters = lun.counters;
        [
            target.name.clone().into(),
            Cell::number(lun.number.into()),
            lun.volume.clone().into(),
            if lun.is_available { Cell::Size(lun.size_bytes) } else { "not there".into() },
            Cell::number(lun.block_bytes.into()),
            if lun.write_cache { "on" } else { "off" }.into(),
            if lun.read_only { "ro" } else { "rw" }.into(),
            Cell::number(counters.reads),
            Cell::number(counters.writes),
            Cell::Size(counters.read_bytes),
            Cell::Size(counters.written_bytes),
            Cell::Size(counters.unmapped_bytes),
            Cell::Size(counters.zeroed_bytes),
            Cell::Size(counters.cloned_bytes),
            Cell::number(lun.registrations.into()),
        ]
    };
    list.table(targets.iter().flat_map(|t| t.luns.iter().map(move |lun| row(t, lun))))
}
