//! `weir pool`: verbs of pools, and the text of a pool's state.
//!
//! Not here: the grammar of layouts (`layout`).
//!
//! Invariant: each verb checks its arguments as far as possible, and then makes one call.

use std::collections::BTreeMap;

use clap::Subcommand;
use weir_api::ApiError;
use weir_api::types::{
    Allocated, DiskStatus, ErrorCounts, Evacuation, FlushCheck, ImportablePool, ListPools, Outcome,
    PoolChange, PoolCreate, PoolCreated, PoolDestroy, PoolExport, PoolImport, PoolScan, PoolStatus,
    ShowPool, VdevKind, VdevRole, VdevStatus,
};
use weir_base::size::Human;
use weir_base::{ErrorKind, names};

use crate::cli::base::list::{Cell, ListArgs};
use crate::cli::base::output::Style;
use crate::cli::base::pool_text::{scan_line, warn};
use crate::cli::base::session::Session;
use crate::cli::base::{confirm, layout, output, typed};
use crate::cli::maintenance::MaintenanceVerb;
use crate::cli::vdev::ShapeVerb;
use crate::cli::{cleaner, damage, events, iostat, maintenance, vdev};

#[derive(Debug, Subcommand)]
pub(crate) enum PoolVerb {
    /// Create a pool from disks
    Create {
        /// Use disks that contain another pool or a file system, except disks of a pool that a
        /// server has imported; also allow vdevs of different redundancy
        #[arg(short, long)]
        force: bool,
        /// Set a property of the new pool
        #[arg(short = 'o', value_name = "PROPERTY=VALUE")]
        properties: Vec<String>,
        /// Name of the pool
        name: String,
        /// Disks (block devices or files), `mirror DISK DISK...`, or `raidz1`, `raidz2` or `raidz3`
        /// followed by disks; may be repeated. After these, `log` followed by vdevs adds an intent
        /// log, and `spare` followed by disks adds spares
        #[arg(required = true, value_name = "VDEV")]
        layout: Vec<String>,
    },
    /// List pools
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show the state of one pool or of all pools, problems and the action to take
    #[command(after_help = include_str!("pool_states.txt"))]
    Status {
        /// List data without an intact copy: volumes, ranges, and the snapshots that share them
        #[arg(short, long)]
        verbose: bool,
        /// Name of the pool
        name: Option<String>,
    },
    /// Show I/O of disks and clients: operations and bytes per second, mean and p99 latency, and
    /// bytes written to disks per byte written by clients
    Iostat {
        /// Print for scripts: no header, tab-separated columns, bytes and microseconds
        #[arg(short = 'H')]
        script: bool,
        /// Name of the pool
        name: String,
        /// Seconds between reports; the first report covers the time since the pool was imported
        #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
        interval: Option<u64>,
        /// Number of reports
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
    /// Show the changes made to a pool or to all pools, their callers and their outcomes
    History {
        /// Show only the newest changes
        #[arg(short = 'n', long = "last", value_name = "COUNT")]
        last: Option<usize>,
        /// Name of the pool, also of an exported or destroyed one; without it all pools
        name: Option<String>,
    },
    /// Destroy a pool and everything in it
    Destroy {
        /// Name of the pool
        name: String,
        /// Skip the confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Import a pool, or list the pools available for import
    Import {
        /// Directory or device to search instead of the default locations
        #[arg(short = 'd', value_name = "DIR|DEVICE")]
        search: Vec<String>,
        /// Import the newest readable state, even if later acknowledged writes are lost, and take
        /// over a pool that another server has imported; that server stops using it
        #[arg(short, long, requires = "name")]
        force: bool,
        /// Name or guid of the pool; without it, list the available pools
        name: Option<String>,
    },
    #[command(flatten)]
    Care(MaintenanceVerb),
    #[command(flatten)]
    Shape(ShapeVerb),
    /// Close a pool, so that it can be imported elsewhere
    Export {
        /// Name of the pool
        name: String,
        /// Export the pool even if clients use its volumes; their connections are closed
        #[arg(long)]
        force: bool,
    },
}

pub(crate) fn run(verb: PoolVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        PoolVerb::Create { force, properties, name, layout } => {
            let words: Vec<&str> = layout.iter().map(String::as_str).collect();
            layout::check_pool_first(&name, &words)?;
            let properties = self::properties(&properties)?;
            let vdevs = layout::parse(&layout)?;
            let request = PoolCreate { name, vdevs, force, properties };
            created(session, &session.call(request)?)
        }
        PoolVerb::List { list } => self::list(session, &list),
        PoolVerb::Status { verbose, name: Some(name) } => {
            let answer = session.call(ShowPool { name })?;
            session.print(&answer, |pool| status(pool, verbose))
        }
        PoolVerb::Status { verbose, name: None } => {
            let answer = session.call(ListPools {})?;
            if answer.pools.is_empty() {
                session.say("there are no pools");
            }
            session.print(&answer, |all| {
                let pools = all.pools.iter().map(|pool| status(pool, verbose));
                pools.collect::<Vec<_>>().join("\n")
            })
        }
        PoolVerb::Destroy { name, yes } => {
            if let Err(error) = names::pool(&name) {
                let other = if name.contains('@') { "snapshot" } else { "volume" };
                let error = ApiError::from(weir_api::Error::from(error));
                return Err(typed::with_line(error, typed::line_of("pool", other)));
            }
            if !yes {
                session.call(ShowPool { name: name.clone() })?;
            }
            confirm::destruction("pool", &name, yes)?;
            let request = PoolDestroy { confirm: name.clone(), name };
            let answer = session.call(request)?;
            session.say(&output::outcome("pool", &answer.name, answer.outcome));
            session.print(&answer, |_| String::new())
        }
        PoolVerb::Iostat { script, name, interval, count } => {
            check_pool(session, &name)?;
            iostat::run(session, &name, interval, count, Style::new(script))
        }
        PoolVerb::History { last, name } => events::history(session, name, last),
        PoolVerb::Import { search, force, name } => import(session, &search, force, name),
        PoolVerb::Care(verb) => maintenance::run(verb, session),
        PoolVerb::Shape(verb) => vdev::run(verb, session),
        PoolVerb::Export { name, force } => {
            let request = PoolExport { name, force };
            let answer = session.call(request)?;
            session.say(&format!("pool {} exported", answer.name));
            session.print(&answer, |_| String::new())
        }
    }
}

/// Rejects a number in the place of a pool's name, as in `zpool iostat 1`.
fn check_pool(session: &Session, name: &str) -> Result<(), ApiError> {
    if !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(());
    }
    let pool = session.only_pool().unwrap_or_else(|| "POOL".to_owned());
    let line = typed::rewritten(|mut words| {
        let at = words.iter().position(|word| word == name).unwrap_or(words.len());
        words.insert(at, pool);
        words
    });
    let message = format!("{name} is no pool: the pool comes before the interval");
    Err(ApiError::new(ErrorKind::Invalid, message).with_action(line))
}

fn properties(given: &[String]) -> Result<BTreeMap<String, String>, ApiError> {
    let mut properties = BTreeMap::new();
    for text in given {
        let (name, value) = split_property(text)?;
        if properties.insert(name.to_owned(), value.to_owned()).is_some() {
            let message = format!("property {name:?} is given twice");
            return Err(ApiError::new(ErrorKind::Invalid, message));
        }
    }
    Ok(properties)
}

/// Splits `property=value` into the name and the value.
pub(crate) fn split_property(text: &str) -> Result<(&str, &str), ApiError> {
    text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
        ApiError::new(ErrorKind::Invalid, format!("bad property {text:?}: there is no '='"))
            .with_action("write PROPERTY=VALUE, such as compression=lz4")
    })
}

/// Prints the outcome of the creation of a pool, and whether its disks passed the flush test.
fn created(session: &Session, made: &PoolCreated) -> Result<(), ApiError> {
    let PoolChange { pool, outcome, .. } = &made.change;
    warn(session, &made.change);
    session.say(&output::outcome("pool", &pool.name, *outcome));
    session.print(made, |made| flush_checks(&made.flush_checks))
}

fn flush_checks(checks: &[FlushCheck]) -> String {
    let row = |check: &FlushCheck| {
        [
            check.disk.clone(),
            output::micros(check.write_us),
            output::micros(check.flush_us),
            output::micros(check.sync_write_us),
            check.verdict.name().to_owned(),
            check.medium.clone(),
        ]
    };
    let rows: Vec<_> = checks.iter().map(row).collect();
    let header = ["DISK", ">WRITE", ">FLUSH", ">SYNC", "FLUSHES ARE", "MEDIUM"];
    if rows.is_empty() { String::new() } else { output::table(header, &rows, Style::People) }
}

fn import(
    session: &Session,
    search: &[String],
    force: bool,
    name: Option<String>,
) -> Result<(), ApiError> {
    let search = search.iter().map(|path| layout::absolute(path)).collect::<Result<Vec<_>, _>>()?;
    let Some(pool) = name else {
        let answer = session.call(PoolScan { search })?;
        if answer.pools.is_empty() {
            session.say(
                "no disk with a pool to import was found; to search elsewhere: weir pool import -d \
                 DIR",
            );
        }
        return session
            .print(&answer, |all| all.pools.iter().map(importable).collect::<Vec<_>>().join("\n"));
    };
    let change = session.call(PoolImport { pool, search, force })?;
    warn(session, &change);
    let name = &change.pool.name;
    session.say(&match change.outcome {
        Outcome::Unchanged => format!("pool {name} is imported already"),
        _ => format!("pool {name} imported"),
    });
    session.print(&change, |_| String::new())
}

fn list(session: &Session, list: &ListArgs) -> Result<(), ApiError> {
    let titles = ["NAME", ">SIZE", ">ALLOC", ">FREE", ">CAP", "HEALTH"];
    let Some(list) = list.list(&titles, &[])? else { return Ok(()) };
    let answer = session.call(ListPools {})?;
    if answer.pools.is_empty() {
        session.say("there are no pools");
    }
    let row = |pool: &PoolStatus| {
        let percent = pool.allocated_bytes as f64 * 100.0 / pool.size_bytes.max(1) as f64;
        [
            pool.name.clone().into(),
            Cell::Size(pool.size_bytes),
            Cell::Size(pool.allocated_bytes),
            Cell::Size(pool.free_bytes),
            Cell::Keyed(format!("{percent:.0}%"), percent),
            pool.state.name().into(),
        ]
    };
    session.print(&answer, |all| list.table(all.pools.iter().map(row)))
}

/// Formats the state of a pool like `zpool status`.
pub(crate) fn status(pool: &PoolStatus, verbose: bool) -> String {
    let mut lines = vec![("pool", pool.name.as_str()), ("state", pool.state.name())];
    let optional = [("status", &pool.status), ("action", &pool.action), ("see", &pool.see)];
    for (label, text) in optional {
        if let Some(text) = text {
            lines.push((label, text));
        }
    }
    let scan = scan_line(pool.scan.as_ref());
    lines.extend(scan.iter().map(|text| ("scan", text.as_str())));
    let removals: Vec<String> = pool.vdevs.iter().filter_map(removal).collect();
    lines.extend(removals.iter().map(|text| ("remove", text.as_str())));
    let expand = (pool.expandable_bytes > 0).then(|| {
        let more = Human(pool.expandable_bytes);
        format!("the disks have {more} more space; to use it: weir pool expand {}", pool.name)
    });
    lines.extend(expand.iter().map(|text| ("expand", text.as_str())));
    let allocated = allocated(pool);
    lines.extend(allocated.iter().map(|text| ("alloc", text.as_str())));
    let space = cleaner::line(pool.cleaner.as_ref()).filter(|_| verbose);
    lines.extend(space.iter().map(|text| ("space", text.as_str())));
    let used_pct = pool.allocated_bytes as f64 * 100.0 / pool.size_bytes.max(1) as f64;
    let size = format!(
        "{}, {used_pct:.0} % used, compression {:.2}x",
        Human(pool.size_bytes),
        pool.compression_ratio
    );
    let dedupe = format!(
        "{:.2} ({} saved by dedupe and copies)",
        pool.dedupe_ratio,
        Human(pool.allocated.saved_bytes)
    );
    if pool.cleaner.is_some() {
        lines.push(("size", &size));
    }
    if pool.allocated.saved_bytes > 0 {
        lines.push(("dedupe", &dedupe));
    }
    let top = line(0, &pool.name, pool.state.name(), &pool.errors, "");
    let (head, tree) = (labelled(&lines), tree(&rows(top, &pool.vdevs)));
    let errors = labelled(&[("errors", &damage::line(pool, verbose))]);
    let list = if verbose { damage::list(&pool.damage) } else { String::new() };
    format!("{head}config:\n\n{tree}\n{errors}{list}")
}

/// Describes the used space of a pool by kind of owner; `None` for a pool that is not imported.
fn allocated(pool: &PoolStatus) -> Option<String> {
    let Allocated { volumes_bytes, snapshots_bytes, freeing_bytes, pool_bytes, saved_bytes } =
        pool.allocated;
    let (all, volumes) = (Human(pool.allocated_bytes), Human(volumes_bytes));
    let (snapshots, own) = (Human(snapshots_bytes), Human(pool_bytes));
    let freeing = match freeing_bytes {
        0 => String::new(),
        bytes => format!(", {} being freed", Human(bytes)),
    };
    let saved = match saved_bytes {
        0 => String::new(),
        bytes => format!(", less {} shared", Human(bytes)),
    };
    (pool.allocated_bytes > 0).then(|| {
        let only = format!("only in snapshots {snapshots}");
        format!("{all}: volumes {volumes}, {only}, pool {own}{freeing}{saved}")
    })
}

/// Describes the progress of the removal of a vdev.
fn removal(vdev: &VdevStatus) -> Option<String> {
    let Evacuation { live_bytes, stuck_segments } = vdev.leaving?;
    let stuck = match stuck_segments {
        0 => String::new(),
        count => format!("; {count} segments contain unreadable data and cannot be moved"),
    };
    Some(format!("{} is evacuating, {} still to move{stuck}", vdev.name, Human(live_bytes)))
}

fn importable(pool: &ImportablePool) -> String {
    let mut lines = vec![
        ("pool", pool.name.as_str()),
        ("id", pool.guid.as_str()),
        ("state", pool.state.name()),
    ];
    for (label, text) in [("status", &pool.status), ("action", &pool.action)] {
        if let Some(text) = text {
            lines.push((label, text));
        }
    }
    let top = line(0, &pool.name, pool.state.name(), &ErrorCounts::default(), "");
    let tree = tree(&rows(top, &pool.vdevs));
    format!("{}config:\n\n{tree}", labelled(&lines))
}

/// Formats lines like [`output::labelled`], with labels as wide as `config:` and `errors:`, so that
/// all lines of the status are aligned.
fn labelled(lines: &[(&str, &str)]) -> String {
    let widened: Vec<(String, &str)> =
        lines.iter().map(|(label, text)| (format!("{label:>6}"), *text)).collect();
    let borrowed: Vec<(&str, &str)> = widened.iter().map(|(l, t)| (l.as_str(), *t)).collect();
    output::labelled(&borrowed)
}

fn vdev((header, vdev): (Option<&str>, &VdevStatus)) -> Vec<[String; 6]> {
    let header = header.map(|text| {
        let empty = String::new;
        [text.to_owned(), empty(), empty(), empty(), empty(), empty()]
    });
    header.into_iter().chain(vdev_lines(vdev)).collect()
}

fn vdev_lines(vdev: &VdevStatus) -> Vec<[String; 6]> {
    let evacuating = if vdev.leaving.is_some() { "evacuating" } else { "" };
    if let (VdevKind::Disk, [disk]) = (vdev.kind, vdev.disks.as_slice()) {
        let mut leaf = leaf(1, disk);
        let notes = [leaf[5].as_str(), evacuating];
        leaf[5] = notes.into_iter().filter(|note| !note.is_empty()).collect::<Vec<_>>().join("; ");
        return vec![leaf];
    }
    let mut lines = vec![line(1, &vdev.name, vdev.state.name(), &vdev.errors, evacuating)];
    lines.extend(vdev.disks.iter().map(|disk| leaf(2, disk)));
    lines
}

fn leaf(depth: usize, disk: &DiskStatus) -> [String; 6] {
    let note = disk.note.as_deref().unwrap_or_default();
    line(depth, &disk.path, disk.state.name(), &disk.errors, note)
}

fn rows(top: [String; 6], vdevs: &[VdevStatus]) -> Vec<[String; 6]> {
    // Vdevs are listed in the order of zpool: data vdevs, then logs and spares with a header for
    // each.
    let of = |role: VdevRole, header: Option<&'static str>| {
        let vdevs = vdevs.iter().filter(move |vdev| vdev.role == role).enumerate();
        vdevs.map(move |(n, vdev)| (header.filter(|_| n == 0), vdev))
    };
    let data = of(VdevRole::Data, None);
    let others = of(VdevRole::Log, Some("logs")).chain(of(VdevRole::Spare, Some("spares")));
    std::iter::once(top).chain(data.chain(others).flat_map(vdev)).collect()
}

fn line(depth: usize, name: &str, state: &str, errors: &ErrorCounts, note: &str) -> [String; 6] {
    [
        format!("{}{name}", "  ".repeat(depth)),
        state.to_owned(),
        errors.read.to_string(),
        errors.write.to_string(),
        errors.checksum.to_string(),
        note.to_owned(),
    ]
}

fn tree(rows: &[[String; 6]]) -> String {
    let header = ["NAME", "STATE", ">READ", ">WRITE", ">CKSUM", ""];
    let table = output::table(header, rows, Style::People);
    let mut indented = String::new();
    for line in table.lines() {
        indented = indented + "        " + line + "\n";
    }
    indented
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evacuating_vdev_is_marked_in_the_tree() {
        let errors = serde_json::json!({ "read": 0, "write": 0, "checksum": 0 });
        let disk = |note: Option<&str>| {
            serde_json::json!({
                "path": "/dev/sdb", "guid": "1", "state": "online", "errors": errors, "note": note,
            })
        };
        let marked = |kind: &str, disk: serde_json::Value| {
            let vdev = serde_json::json!({
                "name": "vdev-0", "kind": kind, "state": "online", "errors": errors,
                "disks": [disk], "leaving": { "live_bytes": 4096, "stuck_segments": 0 },
            });
            let vdev: VdevStatus = serde_json::from_value(vdev).unwrap();
            vdev_lines(&vdev)[0][5].clone()
        };
        assert_eq!(marked("mirror", disk(None)), "evacuating");
        assert_eq!(marked("disk", disk(None)), "evacuating");
        assert_eq!(marked("disk", disk(Some("slow"))), "slow; evacuating");
    }
}
