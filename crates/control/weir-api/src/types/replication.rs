//! Replication: the server sends a volume to another server at regular intervals.
//!
//! The server schedules replication runs; the types of streams are in `transfer`.
//!
//! Invariant: requests may contain secrets, responses never do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::page::paged;
use super::request::{names_nothing_else, no_rules, one_name};
use super::{Answer, Outcome, Page, Request, page};
use crate::Error;
use crate::access::Scope;
use crate::peer::PeerAddress;
use crate::token::SecretText;
use crate::wire::ApiError;

/// Prefix of the names of snapshots that replication takes.
pub const REPLICATION_PREFIX: &str = "repl-";

/// Tag of the hold on the newest snapshot that exists on both servers, on the server that sends.
pub const REPLICATION_TAG: &str = "replication";

/// Tag of the hold on the same snapshot on the server that receives. The tags differ, so that
/// neither of two servers that replicate to each other releases the holds of the other server.
pub const REPLICA_TAG: &str = "replica";

/// User property of volumes and snapshots that other servers sent: the addresses of these servers,
/// separated by commas. A server with one of these addresses may send more streams to the volume,
/// abort its own unfinished stream, and hold and destroy the snapshots.
pub const RECEIVED_FROM: &str = "weir:received-from";

/// Minimum interval between the starts of two replication runs.
const EVERY_SECONDS_MIN: u64 = 5;

/// Request to replicate a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationCreate {
    /// Full name of the volume, such as `tank/vm1`.
    pub volume: String,
    /// Destination, such as `https://host:7118/backup/vm1`.
    pub to: String,
    /// Seconds from the start of one replication run to the start of the next.
    pub every_seconds: u64,
    /// Bandwidth limit of this replication in bytes per second; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_bytes: Option<u64>,
    /// CA certificate (PEM) that signed the other server's certificate. Give either this field or
    /// `ca_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// File on this server with the CA certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// The secret that the other server requires. Give either this field or `secret_file`. No call
    /// returns it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, write_only)]
    pub secret: Option<SecretText>,
    /// File on this server with the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<String>,
}

impl Request for ReplicationCreate {
    fn check(&self) -> Result<(), Error> {
        names::volume(&self.volume)?;
        self.to.parse::<PeerAddress>()?;
        if self.every_seconds < EVERY_SECONDS_MIN {
            return Err(Error::TooOften { seconds: self.every_seconds });
        }
        if self.bandwidth_bytes == Some(0) {
            return Err(Error::NoBandwidth);
        }
        one_of("ca", self.ca.is_some(), self.ca_file.is_some())?;
        one_of("secret", self.secret.is_some(), self.secret_file.is_some())
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.volume]
    }

    fn details(&self) -> String {
        format!("to {} every {} s", self.to, self.every_seconds)
    }
}

/// Checks that a request contains either a value or the path of a file with the value.
pub(super) fn one_of(field: &'static str, sent: bool, named: bool) -> Result<(), Error> {
    if sent != named {
        return Ok(());
    }
    let why = format!("must be given in either {field} or {field}_file");
    Err(Error::Field { field, why })
}

/// Action on a replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplicationAction {
    /// Start a replication run now.
    Run,
    /// Stop the current replication run and start no other. The destination keeps the data that it
    /// received.
    Pause,
    /// Start replication runs again.
    Resume,
    /// Compare the newest replicated snapshot of this server with that of the other server.
    Verify,
}

/// Request for an action on a replication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationAct {
    /// Full name of the volume.
    pub volume: String,
    /// The action.
    pub action: ReplicationAction,
}

impl Request for ReplicationAct {
    fn check(&self) -> Result<(), Error> {
        names::volume(&self.volume)?;
        Ok(())
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.volume]
    }

    fn kind(&self) -> Option<&'static str> {
        Some(match self.action {
            ReplicationAction::Run => "replication_run",
            ReplicationAction::Pause => "replication_pause",
            ReplicationAction::Resume => "replication_resume",
            ReplicationAction::Verify => "replication_verify",
        })
    }
}

/// Request to delete a replication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationDelete {
    /// Full name of the volume.
    pub volume: String,
}

one_name!(names::volume, volume: ReplicationDelete);

/// Request to list all replications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListReplications {}

no_rules!(ListReplications);

/// State of a replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplicationState {
    /// The next replication run is not due yet.
    Waiting,
    /// A replication run is due. It starts within a second, or when another run to the same server
    /// ends.
    Queued,
    /// A replication run sends a stream.
    Sending,
    /// A comparison of the two servers' data is running.
    Verifying,
    /// The last replication run failed; the server will retry it.
    Failing,
    /// Paused until an administrator resumes it.
    Paused,
}

impl ReplicationState {
    /// Returns the name of the state in JSON and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Queued => "queued",
            Self::Sending => "sending",
            Self::Verifying => "verifying",
            Self::Failing => "failing",
            Self::Paused => "paused",
        }
    }
}

/// Result of a comparison of the data on both servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Verification {
    /// Name of the snapshot without the volume.
    pub snapshot: String,
    /// End time of the comparison.
    pub unix_ms: u64,
    /// Bytes of the volume that were compared.
    pub compared_bytes: u64,
    /// True if both servers have the same data.
    pub is_same: bool,
    /// Offset in the volume of the first difference, in bytes.
    #[serde(default)]
    pub differs_at: Option<u64>,
}

/// A comparison of the data on both servers that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VerifyFailure {
    /// Time of the failure.
    pub unix_ms: u64,
    /// Cause of the failure.
    pub error: String,
    /// Remedy: the next command to type.
    pub action: String,
}

/// A replicated volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replication {
    /// Full name of the volume.
    pub volume: String,
    /// Destination.
    pub to: String,
    /// Seconds from the start of one replication run to the start of the next.
    pub every_seconds: u64,
    /// Bandwidth limit of this replication in bytes per second.
    pub bandwidth_bytes: Option<u64>,
    /// State of the replication.
    pub state: ReplicationState,
    /// Name, without the volume, of the newest snapshot that exists on both servers.
    pub snapshot: Option<String>,
    /// Age of `snapshot`: the period of writes that a loss of this server would lose now (RPO).
    /// Absent while the clock of this server is behind the creation time of the snapshot.
    pub lag_ms: Option<u64>,
    /// Bytes of the current stream that were sent.
    pub sent_bytes: u64,
    /// Approximate length of the current stream.
    pub estimate_bytes: u64,
    /// Response of the other server for which the replication run waits; absent if it waits for
    /// none.
    #[serde(default)]
    pub waits_for: Option<ReplicationWait>,
    /// Error of the last replication run, if it failed.
    pub error: Option<String>,
    /// Remedy for `error`: the next command to type.
    #[serde(default)]
    pub action: Option<String>,
    /// Result of the last completed comparison of the data on both servers.
    pub verified: Option<Verification>,
    /// Failure of a later comparison, if there was one.
    #[serde(default)]
    pub verify_failed: Option<VerifyFailure>,
}

impl Replication {
    /// Removes names outside the scope from the error and its action.
    fn keep(&mut self, scope: &Scope) {
        for text in [&mut self.error, &mut self.action].into_iter().flatten() {
            *text = scope.cut_text(text);
        }
    }
}

/// Response of the other server for which a replication run waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicationWait {
    /// The requested operation, such as "list its snapshots".
    pub call: String,
    /// Time of the request, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Time since the request.
    pub waited_ms: u64,
}

/// Response of the call that deletes a replication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicationRemoved {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// Full name of the volume.
    pub name: String,
    /// Errors for holds on the volume's snapshots that could not be released, with the commands
    /// that release them.
    pub warnings: Vec<String>,
}

impl Answer for ReplicationRemoved {
    fn keep(&mut self, scope: &Scope) {
        for warning in &mut self.warnings {
            *warning = scope.cut_text(warning);
        }
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(self.outcome)
    }
}

/// Replicated volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicationList {
    /// The replications, by name of the volume.
    pub replications: Vec<Replication>,
    /// Value of `after` for the call that returns the next entries; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Answer for ReplicationList {
    const ENTRIES: Option<&'static str> = Some("replications");

    fn keep(&mut self, scope: &Scope) {
        self.replications.retain(|replication| scope.covers(&replication.volume));
        self.replications.iter_mut().for_each(|replication| replication.keep(scope));
    }

    fn page(self, page: &Page) -> Result<Self, ApiError> {
        page::cut(self, page)
    }
}

paged!(ReplicationList, replications: Replication, |entry| &entry.volume);

/// Response of a call that changes a replication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicationChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The replication after the call.
    pub replication: Replication,
}

impl Answer for ReplicationChange {
    fn keep(&mut self, scope: &Scope) {
        self.replication.keep(scope);
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(self.outcome)
    }
}

/// Request for digests of ranges of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DigestRequest {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// Index of the first range.
    pub first: u64,
    /// Number of ranges; the response has fewer at the end of the volume, or if more would take
    /// long.
    pub count: u64,
}

one_name!(names::snapshot, snapshot: DigestRequest);

/// Digests of ranges of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DigestList {
    /// Size of the volume at the snapshot.
    pub size_bytes: u64,
    /// Bytes of the volume that each digest covers.
    pub range_bytes: u64,
    /// XXH3-128 of all non-zero blocks of a range, in hexadecimal. Each block follows its number
    /// (u64, little endian).
    pub digests: Vec<String>,
}

names_nothing_else!(DigestList);
