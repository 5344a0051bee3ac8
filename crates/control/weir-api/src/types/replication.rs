//! Replication: a volume that the server sends to another server by itself, again and again.
//!
//! Not here: when one is due (the server), the streams (transfer).
//!
//! Invariant: a secret may come in, and never goes out.

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

/// What names of snapshots begin with that replication takes by itself.
pub const REPLICATION_PREFIX: &str = "repl-";

/// The tag that holds the newest snapshot that both sides have.
pub const REPLICATION_TAG: &str = "replication";

/// Tag of the holds that another server has on what it sent here. It is not that of this server's
/// own replications: neither side releases what the other one needs.
pub const REPLICA_TAG: &str = "replica";

/// User property of the volumes and snapshots that other servers sent: their addresses, with commas
/// between them. Such a server may send more to the volume, give up what it sent half, and hold and
/// destroy the snapshot.
pub const RECEIVED_FROM: &str = "weir:received-from";

/// Shortest time between two runs.
const EVERY_SECONDS_MIN: u64 = 5;

/// A volume to be replicated from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationCreate {
    /// Full name of the volume, such as `tank/vm1`.
    pub volume: String,
    /// Where to, such as `https://host:7118/backup/vm1`.
    pub to: String,
    /// Seconds from the start of one run to that of the next.
    pub every_seconds: u64,
    /// Most bytes of streams per second; no limit without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_bytes: Option<u64>,
    /// The certificate that the other server's was signed with (PEM); this, or `ca_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// File on the server with that certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// The secret that the other server asks for; this, or `secret_file`. No call shows it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, write_only)]
    pub secret: Option<SecretText>,
    /// File on the server with that secret.
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

/// Checks that something was either sent or named.
pub(super) fn one_of(field: &'static str, sent: bool, named: bool) -> Result<(), Error> {
    if sent != named {
        return Ok(());
    }
    let why = format!("comes in {field} or in {field}_file, one of the two");
    Err(Error::Field { field, why })
}

/// What to do with a replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplicationAction {
    /// Start a run now.
    Run,
    /// Start no run, and cut one under way off; what came of it is kept.
    Pause,
    /// Go on.
    Resume,
    /// Compare the newest replicated snapshot on both sides.
    Verify,
}

/// An action for one replication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationAct {
    /// Full name of the volume.
    pub volume: String,
    /// What to do.
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

/// A replication to be deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicationDelete {
    /// Full name of the volume.
    pub volume: String,
}

one_name!(names::volume, volume: ReplicationDelete);

/// All replications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListReplications {}

no_rules!(ListReplications);

/// What a replication is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplicationState {
    /// The next run is not due yet.
    Waiting,
    /// A run is due: it begins within a second, or when another one to the same server ends.
    Queued,
    /// A stream is under way.
    Sending,
    /// Both sides are being compared.
    Verifying,
    /// The last run failed; it is tried again.
    Failing,
    /// Until somebody resumes it.
    Paused,
}

impl ReplicationState {
    /// The word as JSON and tables have it.
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

/// What a comparison of both sides found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Verification {
    /// The snapshot's own name.
    pub snapshot: String,
    /// When it ended.
    pub unix_ms: u64,
    /// Bytes of the volume that were compared.
    pub compared_bytes: u64,
    /// Whether both sides hold the same.
    pub is_same: bool,
    /// Where they first differ, in bytes of the volume.
    #[serde(default)]
    pub differs_at: Option<u64>,
}

/// A comparison of both sides that did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VerifyFailure {
    /// When it failed.
    pub unix_ms: u64,
    /// Why.
    pub error: String,
    /// What to do about it: the next command to type.
    pub action: String,
}

/// A volume that is replicated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replication {
    /// Full name of the volume.
    pub volume: String,
    /// Where to.
    pub to: String,
    /// Seconds from the start of one run to that of the next.
    pub every_seconds: u64,
    /// Most bytes of streams per second.
    pub bandwidth_bytes: Option<u64>,
    /// What it is doing.
    pub state: ReplicationState,
    /// The newest snapshot that both sides have: its own name.
    pub snapshot: Option<String>,
    /// Age of that snapshot: the time of writes that a loss of this side would cost now (RPO).
    /// Unknown while the clock of this server is behind the time of the snapshot.
    pub lag_ms: Option<u64>,
    /// Bytes of the stream under way that were sent.
    pub sent_bytes: u64,
    /// About how long it is.
    pub estimate_bytes: u64,
    /// The other server's answer that the run waits for; absent while it waits for none.
    #[serde(default)]
    pub waits_for: Option<ReplicationWait>,
    /// Why the last run failed.
    pub error: Option<String>,
    /// What to do about that error: the next command to type.
    #[serde(default)]
    pub action: Option<String>,
    /// The last comparison of both sides that came to its end.
    pub verified: Option<Verification>,
    /// A newer comparison, if it failed.
    #[serde(default)]
    pub verify_failed: Option<VerifyFailure>,
}

impl Replication {
    /// Removes from its texts the names outside of the scope.
    fn keep(&mut self, scope: &Scope) {
        for text in [&mut self.error, &mut self.action].into_iter().flatten() {
            *text = scope.cut_text(text);
        }
    }
}

/// An answer of the other server that a run waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicationWait {
    /// What the other server was asked to do, such as "list its snapshots".
    pub call: String,
    /// When it was asked, ms since 1970.
    pub since_unix_ms: u64,
    /// How long ago that is.
    pub waited_ms: u64,
}

/// The answer of a call that deletes a replication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicationRemoved {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// Full name of the volume.
    pub name: String,
    /// Holds of its snapshots that could not be released, with the calls that release them.
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
    /// By name of the volume.
    pub replications: Vec<Replication>,
    /// Where the list continues: `after` of the call for the next entries. Absent at its end.
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

/// The answer of a call that changes a replication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicationChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The replication as it is now.
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

/// A part of a snapshot to be digested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DigestRequest {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// Number of the first range.
    pub first: u64,
    /// Ranges; fewer come where the volume ends, or where that would take long.
    pub count: u64,
}

one_name!(names::snapshot, snapshot: DigestRequest);

/// Digests of ranges of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DigestList {
    /// Size of the volume at the snapshot.
    pub size_bytes: u64,
    /// Bytes of the volume that each digest is of.
    pub range_bytes: u64,
    /// XXH3-128 of all blocks of a range that are not zeros, each behind its number (u64, little
    /// endian), in hexadecimal.
    pub digests: Vec<String>,
}

names_nothing_else!(DigestList);
