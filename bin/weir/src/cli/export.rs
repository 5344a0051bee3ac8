//! `weir export`: the verbs of exports.
//!
//! Not here: the data protocols through which clients use an export.
//!
//! Invariant: each verb checks its arguments as far as possible, and then makes one call.

use clap::Subcommand;
use weir_api::ApiError;
use weir_api::types::{Export, ExportCreate, ExportDelete, ExportSet, ListExports, Protocol};
use weir_base::ErrorKind;
use weir_net::AllowList;

use crate::cli::base::leave::LeaveArgs;
use crate::cli::base::list::{Cell, ListArgs, Set};
use crate::cli::base::output;
use crate::cli::base::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum ExportVerb {
    /// Export a volume or a snapshot to clients
    Create {
        /// Protocol: nbd
        protocol: String,
        /// Full name, such as tank/vm1, or tank/vm1@monday, which is always read-only
        volume: String,
        /// Name under which clients open the export [default: the full name of the volume or
        /// snapshot]
        #[arg(long)]
        name: Option<String>,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
        /// Addresses whose clients may open the export over TCP: 10.0.0.7, or networks such as
        /// 10.0.0.0/24, separated by commas [default: all addresses that the server accepts]
        #[arg(long, value_name = "ADDRESS[/BITS]", value_delimiter = ',')]
        allow: Vec<String>,
    },
    /// Set the addresses whose clients may open an export over TCP; connected clients with other
    /// addresses are disconnected
    Set {
        /// Name of the export
        name: String,
        /// The complete list, such as 10.0.0.7,10.0.1.0/24, or any for all addresses that the
        /// server accepts
        #[arg(long, value_name = "ADDRESS[/BITS]", value_delimiter = ',', required = true)]
        allow: Vec<String>,
    },
    /// List exports
    List {
        /// Show the allowed addresses too
        #[arg(short = 'v')]
        verbose: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Delete an export; refused while clients are connected
    Delete {
        /// Name of the export
        name: String,
        #[command(flatten)]
        leave: LeaveArgs,
    },
}

pub(crate) fn run(verb: &ExportVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        ExportVerb::Create { protocol, volume, name, read_only, allow } => {
            let request = ExportCreate {
                protocol: self::protocol(session, protocol, volume)?,
                volume: volume.clone(),
                name: name.clone(),
                read_only: *read_only,
                allow: addresses(allow)?,
            };
            let change = session.call(request)?;
            session.say(&output::outcome("export", &change.export.name, change.outcome));
            session.print(&change, |change| lines(&change.export.uris))
        }
        ExportVerb::Set { name, allow } => {
            let (protocol, name) = (Protocol::Nbd, name.clone());
            let request = ExportSet { protocol, name, allow: addresses(allow)? };
            let change = session.call(request)?;
            session.say(&output::outcome("export", &change.export.name, change.outcome));
            session.print(&change, |_| String::new())
        }
        ExportVerb::List { list, verbose } => self::list(session, list, *verbose),
        ExportVerb::Delete { name, leave } => {
            let protocol = Protocol::Nbd;
            let answer = leave.call(session, |force| {
                session.call(ExportDelete { protocol, name: name.clone(), force })
            })?;
            session.say(&output::outcome("export", &answer.name, answer.outcome));
            session.print(&answer, |_| String::new())
        }
    }
}

fn protocol(session: &Session, word: &str, volume: &str) -> Result<Protocol, ApiError> {
    if word == Protocol::Nbd.name() {
        return Ok(Protocol::Nbd);
    }
    let (message, action) = match word {
        "iscsi" => (
            "iSCSI shows volumes at targets, not as exports".to_owned(),
            format!(
                "weir lun add {} {volume}",
                session.only_target().unwrap_or_else(|| "TARGET".to_owned())
            ),
        ),
        "nfs" | "smb" | "cifs" => {
            (format!("{word} is not in this version"), format!("weir export create nbd {volume}"))
        }
        // The user typed the protocol and the volume in the wrong order.
        _ if volume == Protocol::Nbd.name() => (
            format!("{word} is not an export protocol: the protocol comes first"),
            format!("weir export create nbd {word}"),
        ),
        _ => (
            format!("{word} is not an export protocol"),
            format!("weir export create nbd {volume}"),
        ),
    };
    Err(ApiError::new(ErrorKind::Invalid, message).with_action(action))
}

/// Checks a list of addresses before the call. The word `any` gives an empty list.
fn addresses(typed: &[String]) -> Result<Vec<String>, ApiError> {
    if typed == ["any"] {
        return Ok(Vec::new());
    }
    let list = AllowList::parse(typed.iter().map(String::as_str)).map_err(|error| {
        ApiError::new(error.kind(), format!("--allow: {error}"))
            .with_action("name clients by address: --allow 10.0.0.7,10.0.1.0/24, or --allow any")
    })?;
    Ok(list.entries())
}

fn lines(texts: &[String]) -> String {
    texts.iter().map(|text| output::clean(text) + "\n").collect()
}

/// Columns that `list` shows without -v and -o.
const SHORT: Set = ("default", &["name", "protocol", "volume", "mode", "clients", "uri"]);

fn list(session: &Session, list: &ListArgs, verbose: bool) -> Result<(), ApiError> {
    let titles = ["NAME", "PROTOCOL", "VOLUME", "MODE", ">CLIENTS", "ALLOW", "URI"];
    let sets: &[Set] = if verbose { &[] } else { &[SHORT] };
    let Some(list) = list.list(&titles, sets)? else { return Ok(()) };
    let answer = session.call(ListExports {})?;
    if answer.exports.is_empty() {
        session.say("there are no exports");
    }
    let row = |export: &Export| {
        let allow = if export.allow.is_empty() { "any".into() } else { export.allow.join(",") };
        [
            export.name.clone().into(),
            export.protocol.name().into(),
            export.volume.clone().into(),
            if export.read_only { "ro" } else { "rw" }.into(),
            Cell::number(export.connections.into()),
            allow.into(),
            export.uris.join(" ").into(),
        ]
    };
    session.print(&answer, |all| list.table(all.exports.iter().map(row)))
}
