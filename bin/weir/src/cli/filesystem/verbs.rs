//! `weir filesystem`: the verbs of filesystems.
//!
//! Not here: mounts (`mount`). The commands for snapshots, clones and properties of volumes also
//! accept filesystems.
//!
//! Invariant: each verb checks its arguments as far as possible, and then makes one call.

use clap::{Subcommand, ValueEnum};
use weir_api::ApiError;
use weir_api::types::{
    Filesystem, FilesystemChange, FilesystemCreate, FilesystemDestroy, FilesystemRename,
    ListFilesystems, Mount, NameCase, Outcome, ShowFilesystem,
};
use weir_base::{ErrorKind, names, size};

use crate::cli::base::list::{Cell, ListArgs};
use crate::cli::base::session::Session;
use crate::cli::base::sizes::record_bytes;
use crate::cli::base::{confirm, output};
use crate::cli::filesystem::quota;
use crate::cli::filesystem::quota::{QuotaArgs, UsageArgs};
use crate::cli::property;
use crate::cli::volume::{check_name, check_new_name};

#[derive(Debug, Subcommand)]
pub(crate) enum FilesystemVerb {
    /// Create a filesystem
    Create {
        /// Full name, such as tank/home
        name: String,
        /// Largest record of a file, the unit of checksums, compression and allocation; cannot be
        /// changed later
        #[arg(
            short = 'b',
            long,
            value_name = "SIZE",
            default_value = "128KiB",
            allow_hyphen_values = true
        )]
        record_size: String,
        /// Comparison of names; insensitive: names are UTF-8, and names that differ only in case or
        /// Unicode normalization are equal; cannot be changed later
        #[arg(long, value_name = "CASE", value_enum, default_value = "sensitive")]
        case: Case,
        /// Set a property, such as quota=100GiB; weir set --help lists the properties
        #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
        properties: Vec<String>,
    },
    /// List filesystems
    List {
        /// List only filesystems of this pool
        pool: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show all details of a filesystem
    Show {
        /// Full name, such as tank/home
        name: String,
    },
    /// Set quotas of users, groups and projects
    Quota(QuotaArgs),
    /// Show the usage and quotas of users, groups and projects
    Usage(UsageArgs),
    /// Rename a filesystem that is not mounted
    Rename {
        /// Full name, such as tank/home
        name: String,
        /// New full name, such as tank/users
        to: String,
    },
    /// Destroy a filesystem that is not mounted, and its files
    Destroy {
        /// Full name, such as tank/home
        name: String,
        /// Also destroy the filesystem's snapshots
        #[arg(short, long)]
        recursive: bool,
        /// Skip the confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// Comparison of names, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    Sensitive,
    Insensitive,
}

impl From<Case> for NameCase {
    fn from(case: Case) -> Self {
        match case {
            Case::Sensitive => Self::Sensitive,
            Case::Insensitive => Self::Insensitive,
        }
    }
}

const NOUN: &str = "filesystem";

pub(crate) fn run(verb: FilesystemVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        FilesystemVerb::Create { name, record_size, case, properties } => {
            check_name(session, NOUN, &name)?;
            let record_bytes = record_bytes(&record_size, &record_size)?;
            let properties = property::values(&properties)?;
            let case = NameCase::from(case);
            let request = FilesystemCreate { name, record_bytes, case, properties };
            let change = session.call(request)?;
            changed(session, &change)?;
            let name = &change.filesystem.name;
            session.say(&format!("next: weir mount {name} DIRECTORY"));
            Ok(())
        }
        FilesystemVerb::List { pool: Some(name), .. } if names::volume(&name).is_ok() => {
            let message = format!("{name} is a filesystem, and the list takes a pool");
            Err(ApiError::new(ErrorKind::Invalid, message)
                .with_action(format!("weir filesystem show {name}")))
        }
        FilesystemVerb::List { pool, list } => self::list(session, pool, &list),
        FilesystemVerb::Show { name } => {
            check_name(session, NOUN, &name)?;
            session.print(&session.call(ShowFilesystem { name })?, show)
        }
        FilesystemVerb::Quota(arguments) => quota::quota(arguments, session),
        FilesystemVerb::Usage(arguments) => quota::usage(arguments, session),
        FilesystemVerb::Rename { name, to } => {
            check_name(session, NOUN, &name)?;
            check_new_name(&name, &to)?;
            let change = session.call(FilesystemRename { name: name.clone(), to })?;
            let now = &change.filesystem.name;
            session.say(&match change.outcome {
                Outcome::Unchanged => format!("the filesystem is called {now} already"),
                _ => format!("{name} is now {now}"),
            });
            session.print(&change, |_| String::new())
        }
        FilesystemVerb::Destroy { name, recursive, yes } => {
            check_name(session, NOUN, &name)?;
            if !yes {
                session.call(ShowFilesystem { name: name.clone() })?;
            }
            confirm::destruction(NOUN, &name, yes)?;
            let answer = session.call(FilesystemDestroy { name, recursive })?;
            session.say(&output::outcome(NOUN, &answer.name, answer.outcome));
            session.print(&answer, |_| String::new())
        }
    }
}

fn changed(session: &Session, change: &FilesystemChange) -> Result<(), ApiError> {
    session.say(&output::outcome(NOUN, &change.filesystem.name, change.outcome));
    session.print(change, |_| String::new())
}

/// Titles of the columns of `list`.
const TITLES: [&str; 8] =
    ["NAME", ">USED", ">AVAIL", ">DATA", ">RATIO", "COMPRESS", "MOUNTED AT", "ORIGIN"];

fn list(session: &Session, pool: Option<String>, list: &ListArgs) -> Result<(), ApiError> {
    let Some(list) = list.list(&TITLES, &[])? else { return Ok(()) };
    let answer = session.call(ListFilesystems { pool })?;
    if answer.filesystems.is_empty() {
        session.say("there are no filesystems");
    }
    session.print(&answer, |all| list.table(all.filesystems.iter().map(row)))
}

/// Returns the directory of the filesystem's own mount.
pub(crate) fn directory(filesystem: &Filesystem) -> Option<&str> {
    let own = |mount: &&Mount| mount.name == filesystem.name;
    filesystem.mounts.iter().find(own).map(|mount| &*mount.directory)
}

fn row(filesystem: &Filesystem) -> [Cell; 8] {
    [
        filesystem.name.clone().into(),
        Cell::Size(filesystem.space.used_bytes),
        Cell::Size(filesystem.space.available_bytes),
        Cell::Size(filesystem.used_bytes),
        Cell::ratio(filesystem.compression_ratio),
        filesystem.compression.name().into(),
        Cell::or_dash(directory(filesystem)),
        Cell::or_dash(filesystem.origin.as_deref()),
    ]
}

fn show(filesystem: &Filesystem) -> String {
    let human = |bytes: u64| format!("{} ({bytes} bytes)", size::Human(bytes));
    let on = |is_on: bool| if is_on { "on" } else { "off" }.to_owned();
    let mut lines = vec![
        ("filesystem", filesystem.name.clone()),
        ("record", human(filesystem.record_bytes)),
        ("case", filesystem.case.name().to_owned()),
        ("compression", filesystem.compression.name().to_owned()),
        ("dedupe", on(filesystem.dedupe)),
        ("data", human(filesystem.used_bytes)),
        ("stored", human(filesystem.stored_bytes)),
        ("ratio", format!("{:.2}", filesystem.compression_ratio)),
        ("used", human(filesystem.space.used_bytes)),
        ("available", human(filesystem.space.available_bytes)),
        ("created", output::date(filesystem.created_unix_ms)),
    ];
    lines.extend(filesystem.origin.iter().map(|origin| ("origin", origin.clone())));
    lines.extend([
        ("snapshots", filesystem.snapshots.to_string()),
        ("in snapshots", human(filesystem.space.by_snapshots_bytes)),
        ("mountpoint", filesystem.mountpoint.clone().unwrap_or_else(|| "none".to_owned())),
    ]);
    for Mount { name, directory, read_only } in &filesystem.mounts {
        let rights = if *read_only { ", read-only" } else { "" };
        lines.push(("mounted", format!("{name} at {directory}{rights}")));
    }
    let lines: Vec<_> = lines.iter().map(|(label, text)| (*label, text.as_str())).collect();
    output::labelled(&lines)
}
