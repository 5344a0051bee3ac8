//! `weir export`: the verbs of exports.
//!
//! Not here: the data protocols.
//!
//! Invariant: a verb is one call; whatever can be judged here is judged before the call.

use clap::Subcommand;
use weir_api::types::{Export, ExportCreate, ExportKey, Protocol};
use weir_api::{ApiError, Control};
use weir_base::ErrorKind;

use crate::output::{self, Style};
use crate::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum ExportVerb {
    /// Offer a volume or a snapshot to clients
    Create {
        /// How: nbd
        protocol: String,
        /// Full name, such as tank/vm1, or tank/vm1@monday, which is always read-only
        volume: String,
        /// Name clients ask for [default: the same full name]
        #[arg(long)]
        name: Option<String>,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
    },
    /// List exports
    List {
        /// For scripts: no header, tabs
        #[arg(short = 'H')]
        script: bool,
    },
    /// Stop offering; connected clients are cut off
    Delete {
        /// Name of the export
        name: String,
    },
}

pub(crate) fn run(verb: &ExportVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        ExportVerb::Create { protocol, volume, name, read_only } => {
            let request = ExportCreate {
                protocol: self::protocol(protocol)?,
                volume: volume.clone(),
                name: name.clone(),
                read_only: *read_only,
            };
            let change = session.call(|client| client.export_create(request))?;
            session.say(&output::outcome("export", &change.export.name, change.outcome));
            session.print(&change, |change| lines(&change.export.uris))
        }
        ExportVerb::List { script } => list(session, Style::new(*script)),
        ExportVerb::Delete { name } => {
            let key = ExportKey { protocol: Protocol::Nbd, name: name.clone() };
            let answer = session.call(|client| client.export_delete(key))?;
            session.say(&output::outcome("export", &answer.name, answer.outcome));
            session.print(&answer, |_| String::new())
        }
    }
}

fn protocol(word: &str) -> Result<Protocol, ApiError> {
    if word == Protocol::Nbd.name() {
        return Ok(Protocol::Nbd);
    }
    let message = format!("this version does not serve {word:?}");
    Err(ApiError::new(ErrorKind::Invalid, message).with_action("write nbd"))
}

fn lines(texts: &[String]) -> String {
    texts.iter().map(|text| output::clean(text) + "\n").collect()
}

fn list(session: &Session, style: Style) -> Result<(), ApiError> {
    let answer = session.call(|client| client.export_list())?;
    if answer.exports.is_empty() {
        session.say("there are no exports");
    }
    let row = |export: &Export| {
        [
            export.name.clone(),
            export.protocol.name().to_owned(),
            export.volume.clone(),
            if export.read_only { "ro" } else { "rw" }.to_owned(),
            export.connections.to_string(),
            export.uris.join(" "),
        ]
    };
    session.print(&answer, |all| {
        let rows: Vec<_> = all.exports.iter().map(row).collect();
        let header = ["NAME", "PROTOCOL", "VOLUME", "MODE", ">CLIENTS", "URI"];
        if rows.is_empty() { String::new() } else { output::table(header, &rows, style) }
    })
}
