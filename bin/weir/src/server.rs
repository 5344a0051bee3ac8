//! `weir server`: looking at the running server.
//!
//! Not here: running it (`serve`).
//!
//! Invariant: nothing here changes anything.

use clap::Subcommand;
use weir_api::types::ServerInfo;
use weir_api::{ApiError, Control};
use weir_base::size::Human;

use crate::output;
use crate::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum ServerVerb {
    /// Show what the server is and uses
    Show,
}

pub(crate) fn run(verb: &ServerVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        ServerVerb::Show => session.print(&session.call(|client| client.server_info())?, show),
    }
}

fn show(info: &ServerInfo) -> String {
    let memory = format!("{} of {}", Human(info.memory_used_bytes), Human(info.memory_cap_bytes));
    output::labelled(&[
        ("version", &info.version),
        ("process", &info.pid.to_string()),
        ("uptime", &output::duration(info.uptime_ms)),
        ("memory", &memory),
        ("nbd", &info.nbd_addresses.join(" ")),
        ("iscsi", &info.iscsi_portals.join(" ")),
        ("disk I/O", &info.io_backend),
    ])
}
