//! `weir server`: state of the running server.
//!
//! Not here: the code that runs the server (`serve`).
//!
//! Invariant: the verbs of this noun change nothing.

use clap::Subcommand;
use weir_api::ApiError;
use weir_api::types::{ServerInfo, ShowServer};
use weir_base::size::Human;

use crate::cli::base::output;
use crate::cli::base::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum ServerVerb {
    /// Show version, settings and memory use of the server
    Show,
}

pub(crate) fn run(verb: &ServerVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        ServerVerb::Show => session.print(&session.call(ShowServer {})?, show),
    }
}

fn show(info: &ServerInfo) -> String {
    let memory = format!("{} of {}", Human(info.memory_used_bytes), Human(info.memory_cap_bytes));
    let weir_api::types::MemoryUse { resident_bytes, resident_max_bytes, parts } = &info.memory;
    let resident = format!("{} of at most {}", Human(*resident_bytes), Human(*resident_max_bytes));
    let part = |part: &weir_api::types::MemoryPart| match part.name.as_str() {
        "process" if part.used_bytes > 0 => format!(
            "in addition {} for the process ({} of it for connections)",
            Human(part.limit_bytes),
            Human(part.used_bytes)
        ),
        "process" => format!("in addition {} for the process", Human(part.limit_bytes)),
        name => format!("{name} {} of {}", Human(part.used_bytes), Human(part.limit_bytes)),
    };
    let split: Vec<String> = parts.iter().map(part).collect();
    let nfs = info.nfs_addresses.join(" ");
    let nfs = match info.nfs_group_failures {
        0 => nfs,
        failures => format!("{nfs} ({failures} failed lookups of groups)"),
    };
    output::labelled(&[
        ("version", &info.version),
        ("process", &info.pid.to_string()),
        ("uptime", &output::duration(info.uptime_ms)),
        ("memory", &memory),
        ("split", &split.join(", ")),
        ("resident", &resident),
        ("nbd", &info.nbd_addresses.join(" ")),
        ("iscsi", &info.iscsi_portals.join(" ")),
        ("nfs", &nfs),
        ("disk I/O", &info.io_backend),
    ])
}
