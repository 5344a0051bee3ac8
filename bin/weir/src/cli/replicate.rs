//! `weir replicate`: volumes that the server replicates to another server in the background.
//!
//! Not here: streams through files and pipes (transfer).
//!
//! Invariant: each verb checks its arguments as far as possible, and then makes one call.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use weir_api::ApiError;
use weir_api::peer::Secret;
use weir_api::types::{
    ListReplications, Replication, ReplicationAct, ReplicationAction, ReplicationChange,
    ReplicationCreate, ReplicationDelete, ReplicationState, ReplicationWait, VerifyFailure,
};
use weir_base::ErrorKind;
use weir_base::size::{self, Human};

use crate::cli::base::list::{Cell, ListArgs};
use crate::cli::base::output;
use crate::cli::base::output::Style;
use crate::cli::base::session::Session;

#[derive(Debug, Subcommand)]
pub(crate) enum ReplicateVerb {
    /// Replicate a volume to another server; the first run starts immediately
    Create {
        /// Full name, such as tank/vm1
        volume: String,
        /// URL of the replica, such as https://host:7118/backup/vm1
        #[arg(long, value_name = "URL")]
        to: String,
        /// Interval between the starts of two runs, such as 15m
        #[arg(long, value_name = "TIME")]
        every: String,
        /// Bandwidth limit in bytes per second, such as 50MiB
        #[arg(long, value_name = "SIZE")]
        bandwidth: Option<String>,
        /// File with the CA certificate that signed the other server's certificate (PEM)
        #[arg(long, value_name = "FILE")]
        ca: PathBuf,
        /// File with the secret that the other server was started with
        #[arg(long, value_name = "FILE")]
        secret_file: PathBuf,
    },
    /// List replicated volumes: their state, and the data that a loss of this server would lose now
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Start a run now
    Run {
        /// Full name, such as tank/vm1
        volume: String,
    },
    /// Pause a replication: abort the current run and start no other until `resume`
    Pause {
        /// Full name, such as tank/vm1
        volume: String,
    },
    /// Resume a paused replication
    Resume {
        /// Full name, such as tank/vm1
        volume: String,
    },
    /// Compare the newest replicated snapshot on both servers; `list` shows the result
    Verify {
        /// Full name, such as tank/vm1
        volume: String,
    },
    /// Delete a replication; the data on the other server stays
    Delete {
        /// Full name, such as tank/vm1
        volume: String,
    },
}

pub(crate) fn run(verb: ReplicateVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        ReplicateVerb::Create { volume, to, every, bandwidth, ca, secret_file } => {
            let request = ReplicationCreate {
                volume,
                to,
                every_seconds: seconds(&every)?,
                bandwidth_bytes: bandwidth.as_deref().map(bytes).transpose()?,
                ca: Some(certificates(&ca)?),
                ca_file: None,
                secret: Some(Secret::read(&secret_file)?.into()),
                secret_file: None,
            };
            changed(session, &session.call(request)?)
        }
        ReplicateVerb::List { list } => self::list(session, &list),
        ReplicateVerb::Run { volume } => act(session, volume, ReplicationAction::Run),
        ReplicateVerb::Pause { volume } => act(session, volume, ReplicationAction::Pause),
        ReplicateVerb::Resume { volume } => act(session, volume, ReplicationAction::Resume),
        ReplicateVerb::Verify { volume } => act(session, volume, ReplicationAction::Verify),
        ReplicateVerb::Delete { volume } => {
            let gone = session.call(ReplicationDelete { volume })?;
            session.say(&output::outcome("replication", &gone.name, gone.outcome));
            gone.warnings.iter().for_each(|warning| session.say(&format!("warning: {warning}")));
            session.print(&gone, |_| String::new())
        }
    }
}

fn seconds(text: &str) -> Result<u64, ApiError> {
    let time = humantime::parse_duration(text);
    time.map(|time| time.as_secs()).map_err(|error| {
        ApiError::new(ErrorKind::Invalid, format!("bad time {text:?}: {error}"))
            .with_action("write a number and a unit, such as 15m, 1h or 30s")
    })
}

fn bytes(text: &str) -> Result<u64, ApiError> {
    size::parse(text).map_err(|error| ApiError::new(ErrorKind::Invalid, error.to_string()))
}

fn certificates(path: &Path) -> Result<String, ApiError> {
    std::fs::read_to_string(path).map_err(|error| {
        let kind = ErrorKind::of_file(error.kind());
        ApiError::new(kind, format!("cannot read {}: {error}", path.display()))
            .with_action("name the file with the certificate (PEM)")
    })
}

fn act(session: &Session, volume: String, action: ReplicationAction) -> Result<(), ApiError> {
    changed(session, &session.call(ReplicationAct { volume, action })?)
}

fn changed(session: &Session, change: &ReplicationChange) -> Result<(), ApiError> {
    let name = &change.replication.volume;
    session.say(&output::outcome("replication", name, change.outcome));
    session.print(change, |_| String::new())
}

/// The list shows a request that has waited this long for the other server. A server that is only
/// busy responds sooner.
const LONG_WAIT_MS: u64 = 2_000;

/// Formats a duration for users, with at most two units.
fn time(ms: u64) -> String {
    let text = humantime::format_duration(Duration::from_secs(ms / 1000)).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Returns the request of a replication that has waited longer than [`LONG_WAIT_MS`] for the other
/// server; `None` if there is none.
fn long_wait(replication: &Replication) -> Option<&ReplicationWait> {
    replication.waits_for.as_ref().filter(|wait| wait.waited_ms >= LONG_WAIT_MS)
}

fn progress(replication: &Replication) -> String {
    let Replication { state, sent_bytes, estimate_bytes, .. } = replication;
    match state {
        ReplicationState::Sending | ReplicationState::Verifying => {
            let sent = format!("{} of about {}", Human(*sent_bytes), Human(*estimate_bytes));
            let waits = long_wait(replication).map(|wait| time(wait.waited_ms));
            waits.map_or(sent.clone(), |waits| format!("{sent}, no answer for {waits}"))
        }
        _ => "-".to_owned(),
    }
}

fn verified(replication: &Replication) -> String {
    if let Some(failed) = &replication.verify_failed {
        return format!("FAILED {}", output::date(failed.unix_ms));
    }
    match &replication.verified {
        None => "never".to_owned(),
        Some(found) if found.is_same => format!("same {}", output::date(found.unix_ms)),
        Some(found) => {
            let at = found.differs_at.unwrap_or_default();
            format!("DIFFERS at {at} {}", output::date(found.unix_ms))
        }
    }
}

/// Returns the age of the newest snapshot that the other server has. Returns `unknown` if the age
/// is not known, and `-` if the other server has no snapshot.
fn age(replication: &Replication) -> Result<u64, &'static str> {
    let none = if replication.snapshot.is_some() { "unknown" } else { "-" };
    replication.lag_ms.ok_or(none)
}

/// Formats the error of a volume's replication, with the command that the user should type next.
fn problem(volume: &str, error: &str, action: Option<&str>) -> String {
    let next = action.map(|action| format!("\n  try: {}", output::clean(action)));
    format!("{volume}: {}{}", output::clean(error), next.unwrap_or_default())
}

fn list(session: &Session, list: &ListArgs) -> Result<(), ApiError> {
    let titles = ["VOLUME", "TO", "STATE", "PROGRESS", "SNAPSHOT", ">RPO", "VERIFIED"];
    let style = list.style();
    let Some(list) = list.list(&titles, &[])? else { return Ok(()) };
    let answer = session.call(ListReplications {})?;
    if answer.replications.is_empty() {
        session.say("there are no replications");
    }
    for replication in &answer.replications {
        if let Some(wait) = long_wait(replication) {
            let Replication { volume, to, .. } = replication;
            let since = output::date(wait.since_unix_ms);
            let call = &wait.call;
            session.say(&format!(
                "{volume}: {to} has not answered the request to {call} since {since}"
            ));
        }
        if let Some(error) = &replication.error {
            session.say(&problem(&replication.volume, error, replication.action.as_deref()));
        }
        if let Some(VerifyFailure { error, action, .. }) = &replication.verify_failed {
            let error = format!("verification failed: {error}");
            session.say(&problem(&replication.volume, &error, Some(action)));
        }
    }
    let lag = |ms: u64| match style {
        Style::People => Cell::Keyed(time(ms), ms as f64),
        Style::Script => Cell::number(ms / 1000),
    };
    let row = |replication: &Replication| {
        [
            replication.volume.clone().into(),
            replication.to.clone().into(),
            replication.state.name().into(),
            progress(replication).into(),
            Cell::or_dash(replication.snapshot.as_deref()),
            age(replication).map_or_else(Cell::from, lag),
            verified(replication).into(),
        ]
    };
    session.print(&answer, |all| list.table(all.replications.iter().map(row)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_shown_in_units() {
        assert_eq!(seconds("15m").unwrap(), 900);
        assert!(seconds("often").is_err());
        assert_eq!(time(3_723_000), "1h 2m");
        assert_eq!(time(0), "0s");
    }
}
