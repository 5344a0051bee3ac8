//! `weir volume`: the verbs of volumes.
//!
//! Not here: the data of a volume, which clients read and write through its exports.
//!
//! Invariant: each verb checks its arguments as far as possible, and then makes one call.

use clap::{Args, Subcommand};
use weir_api::ApiError;
use weir_api::types::{
    ListVolumes, Outcome, ShowVolume, Volume, VolumeChange, VolumeCopy, VolumeCreate,
    VolumeDestroy, VolumePromote, VolumeRename, VolumeResize, VolumeSet, VolumeSpace,
};
use weir_base::{ErrorKind, names, size};

use crate::cli::base::list::{Cell, ListArgs, Set};
use crate::cli::base::output::Style;
use crate::cli::base::session::Session;
use crate::cli::base::sizes::{
    check_order, check_percentage, check_size_once, check_unit, new_size, record_bytes,
    whole_records,
};
use crate::cli::base::{confirm, output, typed};
use crate::cli::{advise, property};

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeVerb {
    /// Create a thin volume
    #[command(after_help = RECORDS_HELP)]
    Create {
        /// Full name, such as tank/vm1
        name: String,
        #[command(flatten)]
        size: SizeArgs,
        /// Size of a record, the unit of checksums, compression and allocation; cannot be changed
        /// later
        #[arg(
            short = 'b',
            long,
            value_name = "SIZE",
            default_value = "4KiB",
            allow_hyphen_values = true
        )]
        record_size: String,
        /// Set a property, such as refreservation=auto; weir set --help lists the properties
        #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
        properties: Vec<String>,
    },
    /// List volumes
    List {
        /// List only volumes of this pool
        pool: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show all details of a volume
    Show {
        /// Full name, such as tank/vm1
        name: String,
    },
    /// Set properties of a volume, as `weir set` does
    Set {
        /// Properties to set, such as compression=zstd; weir set --help lists the properties
        #[arg(required = true, value_name = "PROPERTY=VALUE")]
        properties: Vec<String>,
        /// Full name, such as tank/vm1
        name: String,
    },
    /// Change the size of a volume, as `weir set size=` does; it never shrinks below written data
    Resize {
        /// Full name, such as tank/vm1
        name: String,
        #[command(flatten)]
        size: SizeArgs,
    },
    /// Rename a volume; its exports keep their names and stay connected
    Rename {
        /// Full name, such as tank/vm1
        name: String,
        /// New full name, such as tank/web
        to: String,
    },
    /// Create a copy of a volume or snapshot that shares its blocks; no data is copied, and the
    /// copy is independent
    Copy {
        /// Full name of a volume or snapshot, such as tank/vm1 or tank/vm1@monday
        name: String,
        /// Full name of the new volume, such as tank/vm2
        to: String,
    },
    /// Promote a clone, so that the volume it was cloned from becomes its clone and can be
    /// destroyed
    Promote {
        /// Full name of the clone, such as tank/new
        name: String,
    },
    /// Measure the size and speed of a volume with other settings
    Advise {
        /// Full name, such as tank/vm1
        name: String,
    },
    /// Destroy a volume and its data
    Destroy {
        /// Full name, such as tank/vm1
        name: String,
        /// Also destroy the volume's snapshots
        #[arg(short, long)]
        recursive: bool,
        /// Skip the confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// The size of a volume: the word after its name, or an option as in `zfs create -V`.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct SizeArgs {
    /// Size that clients see, such as 10GiB; a multiple of the record size. `resize` also accepts
    /// +1GiB to grow
    #[arg(value_name = "SIZE")]
    word: Option<String>,
    /// Size as an option, instead of the argument
    #[arg(
        short = 's',
        short_alias = 'V',
        long = "size",
        value_name = "SIZE",
        allow_hyphen_values = true
    )]
    option: Option<String>,
}

impl SizeArgs {
    fn text(self) -> String {
        self.word.or(self.option).expect("the group requires one of both")
    }
}

/// Help text about the choice of a record size.
const RECORDS_HELP: &str = "\
A record is a power of two from 4KiB to 1MiB. Large ones suit data that is written and read in long
runs: they compress better, and the map of the volume is smaller. Small random writes get slower:
each of them reads a record and stores a new copy of it. 4KiB to 16KiB suit databases and the disks
of virtual machines, 128KiB to 1MiB backups and media. 'weir volume advise' measures other record
sizes on a volume that has data.";

/// Titles of the columns of `list`.
const TITLES: [&str; 17] = [
    "NAME",
    ">SIZE",
    ">RECORD",
    ">DATA",
    ">AVAIL",
    ">USED",
    ">USEDSNAP",
    ">USEDDS",
    ">USEDREFRESERV",
    ">REFER",
    ">WRITTEN",
    ">STORED",
    ">RATIO",
    "COMPRESS",
    ">DEDUPE",
    ">EXPORTS",
    "ORIGIN",
];

/// Sets of columns for `list`; the first set is printed by default.
const SETS: [Set; 3] = [
    (
        "default",
        &["name", "size", "data", "stored", "ratio", "compress", "dedupe", "exports", "origin"],
    ),
    (
        "space",
        &["name", "avail", "used", "usedsnap", "usedds", "usedrefreserv", "refer", "written"],
    ),
    ("records", &["name", "size", "record", "data", "stored", "ratio", "compress"]),
];

pub(crate) fn run(verb: VolumeVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        VolumeVerb::Create { name, size, record_size, properties } => {
            create(session, name, &size.text(), &record_size, &properties)
        }
        VolumeVerb::List { pool: Some(name), .. } if names::volume(&name).is_ok() => {
            let message = format!("{name} is a volume, and the list takes a pool");
            Err(ApiError::new(ErrorKind::Invalid, message)
                .with_action(format!("weir volume show {name}")))
        }
        VolumeVerb::List { pool, list } => self::list(session, pool, &list),
        VolumeVerb::Show { name } if names::dataset(&name).is_err() => {
            check_name(session, "volume", &name)
        }
        VolumeVerb::Show { name } => session.print(&session.call(ShowVolume { name })?, show),
        VolumeVerb::Set { properties, name } => {
            check_name(session, "volume", &name)?;
            let properties = property::values(&properties)?;
            let request = VolumeSet { name, properties };
            changed(session, &session.call(request)?)
        }
        VolumeVerb::Resize { name, size } => {
            let size = size.text();
            check_order("resize", &name, &size)?;
            check_name(session, "volume", &name)?;
            let size_bytes = new_size(&name, &size, session)?;
            let request = VolumeResize { name, size_bytes };
            sized(session, &session.call(request)?)
        }
        VolumeVerb::Rename { name, to } => {
            check_name(session, "volume", &name)?;
            check_new_name(&name, &to)?;
            let request = VolumeRename { name: name.clone(), to };
            renamed(session, &name, &session.call(request)?)
        }
        VolumeVerb::Copy { name, to } => {
            check_new_name(&name, &to)?;
            let of = format!("a copy of {name}");
            derived(session, &session.call(VolumeCopy { name, to })?, &of)
        }
        VolumeVerb::Promote { name } => {
            check_name(session, "volume", &name)?;
            let change = session.call(VolumePromote { name })?;
            let name = &change.volume.name;
            session.say(&match change.outcome {
                Outcome::Unchanged => format!("volume {name} is no clone already"),
                _ => {
                    format!("volume {name} is promoted; the volume it was cloned from is its clone")
                }
            });
            session.print(&change, |_| String::new())
        }
        VolumeVerb::Advise { name } => advise::advise(name, session),
        VolumeVerb::Destroy { name, recursive, yes } => {
            check_name(session, "volume", &name)?;
            if !yes {
                session.call(ShowVolume { name: name.clone() })?;
            }
            confirm::destruction("volume", &name, yes)?;
            let request = VolumeDestroy { name, recursive };
            let answer = session.call(request)?;
            session.say(&output::outcome("volume", &answer.name, answer.outcome));
            session.print(&answer, |_| String::new())
        }
    }
}

fn create(
    session: &Session,
    name: String,
    size: &str,
    record_size: &str,
    properties: &[String],
) -> Result<(), ApiError> {
    check_order("create", &name, size)?;
    check_name(session, "volume", &name)?;
    check_size_once(properties)?;
    check_percentage(&name, size, session)?;
    let record_bytes = record_bytes(record_size, size)?;
    let size_bytes = whole_records(size, record_bytes)?;
    if !size_bytes.is_multiple_of(record_bytes) {
        check_unit(size)?;
    }
    let properties = property::values(properties)?;
    let request = VolumeCreate { name, size_bytes, record_bytes, properties };
    let change = session.call(request)?;
    sized(session, &change)?;
    let available = change.volume.space.available_bytes;
    if change.outcome == Outcome::Created && change.volume.size_bytes > available {
        session.say(&format!(
            "note: the volume is thin and larger than the available space, {}; writes fail \
             when the pool is full",
            size::Human(available)
        ));
    }
    if change.outcome == Outcome::Created {
        let name = &change.volume.name;
        session.say(&format!("next: weir export create nbd {name}"));
    }
    Ok(())
}

/// Checks the name of a volume or filesystem (`noun`). If the name has the form of another kind of
/// object, the error has the command for that object, unless the command would remove a pool.
pub(crate) fn check_name(session: &Session, noun: &str, name: &str) -> Result<(), ApiError> {
    let Err(error) = names::volume(name) else { return Ok(()) };
    let mut error = ApiError::from(weir_api::Error::from(error));
    let words = typed::words();
    let is_new = words.iter().any(|word| word == "create");
    let is_pool = names::pool(name).is_ok();
    let known = || session.only_volume(name).filter(|_| is_pool && !is_new);
    if is_pool && typed::is_removal() {
        if let Some(known) = known() {
            error.message = format!("{}; there is {known}", error.message);
        }
        return Err(error.with_action(format!("weir {noun} list")));
    }
    let has_size = words.iter().any(|word| size::parse(word).is_ok());
    let line = if names::snapshot(name).is_ok() {
        typed::line_of(noun, "snapshot")
    } else if let Some(relative) = name.strip_prefix('/').filter(|name| names::volume(name).is_ok())
    {
        typed::line_with(name, relative)
    } else if let (true, Some(known)) = (is_pool, known()) {
        typed::line_with(name, &known)
    } else if let (true, false, Some(line)) = (is_pool, has_size, typed::line_of(noun, "pool")) {
        Some(line)
    } else {
        let pool = session.only_pool().filter(|_| is_pool);
        pool.and_then(|pool| typed::line_with(name, &format!("{pool}/{name}")))
    };
    Err(typed::with_line(error, line))
}

/// Rejects a new name that lacks its pool, as in `volume rename tank/vm1 vm2`.
pub(crate) fn check_new_name(name: &str, to: &str) -> Result<(), ApiError> {
    let Some((pool, _)) = name.split_once('/') else { return Ok(()) };
    let full = format!("{pool}/{to}");
    if to.contains('/') || names::volume(&full).is_err() {
        return Ok(());
    }
    let error = names::volume(to).err().map(weir_api::Error::from).map(ApiError::from);
    let line = typed::rewritten(|mut words| {
        if let Some(at) = words.iter().rposition(|word| word == to) {
            words[at].clone_from(&full);
        }
        words
    });
    Err(error.expect("a name without '/' is no volume").with_action(line))
}

/// Prints the outcome of a call for a volume, with the volume's size in a unit and in bytes.
fn sized(session: &Session, change: &VolumeChange) -> Result<(), ApiError> {
    let size = size::both_forms(change.volume.size_bytes);
    let outcome = output::outcome("volume", &change.volume.name, change.outcome);
    session.say(&format!("{outcome}: {size}"));
    session.print(change, |_| String::new())
}

/// Prints the outcome of a call that created a volume from another object; `of` names that object.
pub(crate) fn derived(session: &Session, change: &VolumeChange, of: &str) -> Result<(), ApiError> {
    let outcome = output::outcome(change.volume.kind.name(), &change.volume.name, change.outcome);
    let is_new = change.outcome == Outcome::Created;
    session.say(&if is_new { format!("{outcome}, {of}") } else { outcome });
    session.print(change, |_| String::new())
}

/// Prints the new name of a volume, and the exports that have kept the old name.
fn renamed(session: &Session, old: &str, change: &VolumeChange) -> Result<(), ApiError> {
    let Volume { name, exports, .. } = &change.volume;
    let kept = exports.iter().any(|export| export == old);
    let kept = if kept { format!("; its export is still called {old}") } else { String::new() };
    session.say(&match change.outcome {
        Outcome::Unchanged => format!("the volume is called {name} already"),
        _ => format!("{old} is now {name}{kept}"),
    });
    session.print(change, |_| String::new())
}

fn changed(session: &Session, change: &VolumeChange) -> Result<(), ApiError> {
    session.say(&output::outcome("volume", &change.volume.name, change.outcome));
    session.print(change, |_| String::new())
}

fn list(session: &Session, pool: Option<String>, list: &ListArgs) -> Result<(), ApiError> {
    let style = list.style();
    let Some(list) = list.list(&TITLES, &SETS)? else { return Ok(()) };
    let answer = session.call(ListVolumes { pool })?;
    if answer.volumes.is_empty() {
        session.say("there are no volumes");
    }
    for volume in &answer.volumes {
        if let Some(part) = received_part(volume) {
            session.say(&format!("{} {part}", volume.name));
        }
    }
    session.print(&answer, |all| list.table(all.volumes.iter().map(|volume| row(volume, style))))
}

fn row(volume: &Volume, style: Style) -> [Cell; 17] {
    // Add the mark of an incomplete volume only for users: scripts rely on the columns.
    let mark = match &volume.receiving {
        Some(snapshot) if style == Style::People => format!(" (part of @{snapshot})"),
        _ => String::new(),
    };
    let VolumeSpace {
        available_bytes,
        used_bytes,
        by_snapshots_bytes,
        by_volume_bytes,
        referenced_bytes,
        written_bytes,
        by_refreservation_bytes,
    } = volume.space;
    [
        (volume.name.clone() + &mark).into(),
        Cell::Size(volume.size_bytes),
        Cell::Size(volume.record_bytes),
        Cell::Size(volume.used_bytes),
        Cell::Size(available_bytes),
        Cell::Size(used_bytes),
        Cell::Size(by_snapshots_bytes),
        Cell::Size(by_volume_bytes),
        Cell::Size(by_refreservation_bytes),
        Cell::Size(referenced_bytes),
        Cell::Size(written_bytes),
        Cell::Size(volume.stored_bytes),
        Cell::ratio(volume.compression_ratio),
        volume.compression.name().into(),
        dedupe_column(volume).into(),
        Cell::number(volume.exports.len() as u64),
        Cell::or_dash(volume.origin.as_deref()),
    ]
}

/// Returns a note for a volume that has received only a part of a stream, with the commands that
/// resume or abort the stream.
fn received_part(volume: &Volume) -> Option<String> {
    let (name, snapshot) = (&volume.name, volume.receiving.as_ref()?);
    Some(format!(
        "contains a part of @{snapshot}: its stream is in progress or was interrupted; to resume, \
         send with the token that this prints: weir receive --token {name}; to abort: weir receive \
         --abort {name}"
    ))
}

/// Returns the dedupe ratio of a volume. If the volume shares no blocks, returns whether dedupe is
/// on.
fn dedupe_column(volume: &Volume) -> String {
    match volume.shared_bytes {
        0 if !volume.dedupe => "off".to_owned(),
        _ => format!("{:.2}", volume.dedupe_ratio),
    }
}

fn show(volume: &Volume) -> String {
    let human = |bytes: u64| format!("{} ({bytes} bytes)", size::Human(bytes));
    let exports =
        if volume.exports.is_empty() { "none".to_owned() } else { volume.exports.join(" ") };
    let mut lines = vec![
        ("volume", volume.name.clone()),
        ("size", human(volume.size_bytes)),
        ("block", format!("{} bytes", volume.block_bytes)),
        ("record", human(volume.record_bytes)),
        ("compression", volume.compression.name().to_owned()),
        ("used", human(volume.used_bytes)),
        ("stored", human(volume.stored_bytes)),
        ("ratio", format!("{:.2}", volume.compression_ratio)),
        ("dedupe", if volume.dedupe { "on" } else { "off" }.to_owned()),
        ("shared", human(volume.shared_bytes)),
        ("dedupe ratio", format!("{:.2}", volume.dedupe_ratio)),
        ("created", output::date(volume.created_unix_ms)),
    ];
    lines.extend(volume.origin.iter().map(|origin| ("origin", origin.clone())));
    lines.extend(received_part(volume).map(|part| ("receiving", part)));
    lines.extend([
        ("snapshots", volume.snapshots.to_string()),
        ("in snapshots", human(volume.space.by_snapshots_bytes)),
        ("exports", exports),
    ]);
    let lines: Vec<_> = lines.iter().map(|(label, text)| (*label, text.as_str())).collect();
    output::labelled(&lines)
}
