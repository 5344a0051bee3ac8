//! `weir status`, `weir list` and `weir version`: an overview of the whole server.
//!
//! Not here: the verbs of pools, volumes, exports and targets (one file for each noun).
//!
//! Invariants: pools with problems come first. If a call fails, the command fails, so that its
//! output is never incomplete without an error.

use serde::Serialize;
use weir_api::ApiError;
use weir_api::types::{
    Export, Filesystem, Health, ListExports, ListFilesystems, ListPools, ListTargets, ListVolumes,
    PoolList, PoolStatus, ServerInfo, ShowServer, Target, Volume, VolumeList,
};
use weir_base::ErrorKind;
use weir_base::size::Human;

use crate::cli::base::list::{Cell, ListArgs};
use crate::cli::base::output;
use crate::cli::base::session::Session;
use crate::cli::filesystem::verbs;
use crate::cli::pool;

/// Version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Prints all pools, those with problems first. If no pool has a problem, prints only one line.
pub(crate) fn status(session: &Session) -> Result<(), ApiError> {
    let mut answer = session.call(ListPools {})?;
    answer.pools.sort_by_key(|pool| (is_well(pool), pool.name.clone()));
    if answer.pools.is_empty() {
        session.say("there are no pools; the first: weir pool create NAME DISK...");
    }
    session.print(&answer, |all: &PoolList| {
        let (well, ill): (Vec<_>, Vec<_>) = all.pools.iter().partition(|pool| is_well(pool));
        let mut parts: Vec<String> = ill.iter().map(|pool| pool::status(pool, false)).collect();
        if !well.is_empty() {
            parts.push(well.iter().map(|pool| line(pool)).collect());
        }
        parts.join("\n")
    })
}

/// True for a pool that needs no action of an administrator.
fn is_well(pool: &PoolStatus) -> bool {
    pool.state == Health::Online && pool.status.is_none()
}

fn line(pool: &PoolStatus) -> String {
    let (used, size) = (Human(pool.allocated_bytes), Human(pool.size_bytes));
    format!("pool {} is online, {used} of {size} used\n", output::clean(&pool.name))
}

/// All objects of a server, as `weir list` prints them.
#[derive(Serialize)]
struct Everything {
    pools: Vec<PoolStatus>,
    volumes: Vec<Volume>,
    filesystems: Vec<Filesystem>,
    exports: Vec<Export>,
    targets: Vec<Target>,
}

/// Prints a line for each pool, volume, filesystem, export and logical unit.
pub(crate) fn list(session: &Session, list: &ListArgs) -> Result<(), ApiError> {
    let Some(list) = list.list(&["KIND", "NAME", ">SIZE", ">USED", "STATE"], &[])? else {
        return Ok(());
    };
    let VolumeList { volumes, .. } = session.call(ListVolumes { pool: None })?;
    let everything = Everything {
        pools: session.call(ListPools {})?.pools,
        volumes,
        filesystems: session.call(ListFilesystems { pool: None })?.filesystems,
        exports: session.call(ListExports {})?.exports,
        targets: session.call(ListTargets {})?.targets,
    };
    if everything.pools.is_empty() {
        session.say("there are no pools; the first: weir pool create NAME DISK...");
    }
    session.print(&everything, |all| list.table(rows(all)))
}

fn rows(all: &Everything) -> Vec<[Cell; 5]> {
    let row = |kind: &str, name: &str, size: Cell, used: Cell, state: &str| {
        [kind.into(), name.into(), size, used, state.into()]
    };
    let none = || Cell::or_dash(None);
    let mut rows = Vec::new();
    for pool in &all.pools {
        let (size, used) = (Cell::Size(pool.size_bytes), Cell::Size(pool.allocated_bytes));
        rows.push(row("pool", &pool.name, size, used, pool.state.name()));
    }
    for volume in &all.volumes {
        let (size, used) = (Cell::Size(volume.size_bytes), Cell::Size(volume.used_bytes));
        rows.push(row("volume", &volume.name, size, used, "-"));
    }
    for filesystem in &all.filesystems {
        let used = Cell::Size(filesystem.used_bytes);
        let place = match verbs::directory(filesystem) {
            Some(directory) => format!("mounted at {directory}"),
            None => "not mounted".to_owned(),
        };
        rows.push(row("filesystem", &filesystem.name, none(), used, &place));
    }
    for export in &all.exports {
        let clients =
            format!("nbd, {} of {}", counted(export.connections, "client"), export.volume);
        rows.push(row("export", &export.name, none(), none(), &clients));
    }
    for target in &all.targets {
        let sessions = counted(target.sessions.len() as u32, "session");
        rows.push(row("target", &target.name, none(), none(), &format!("iscsi, {sessions}")));
        for lun in &target.luns {
            let name = format!("{} LUN {}", target.name, lun.number);
            let size = if lun.is_available { Cell::Size(lun.size_bytes) } else { none() };
            rows.push(row("lun", &name, size, none(), &format!("shows {}", lun.volume)));
        }
    }
    rows
}

fn counted(count: u32, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Versions of this command and of the server, as `weir version` prints them.
#[derive(Serialize)]
struct Versions {
    command: &'static str,
    /// Version of the server; `None` if no server responds.
    server: Option<String>,
}

/// Prints the version of this command and, if a server responds, the version of the server.
pub(crate) fn version(session: &Session) -> Result<(), ApiError> {
    let server = match session.call(ShowServer {}) {
        Ok(ServerInfo { version, .. }) => Some(version),
        Err(error) if error.kind == ErrorKind::Unavailable => {
            session.say(&format!("no server answers: {}", error.message));
            None
        }
        Err(error) => return Err(error),
    };
    session.print(&Versions { command: VERSION, server }, |versions| {
        let server = versions.server.as_deref().unwrap_or("-");
        output::labelled(&[("command", versions.command), ("server", server)])
    })
}
