//! Requests that send snapshots as streams and receive streams in parts.
//!
//! For this crate, a stream is a sequence of opaque bytes.
//!
//! Invariants:
//! - a random number identifies a session; an idle session ends by itself;
//! - a part that the server receives has at most
//!   [`REQUEST_BYTES_MAX`](crate::limits::REQUEST_BYTES_MAX) bytes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::request::{names_nothing_else, no_rules, one_name};
use super::{Answer, Outcome, Request};
use crate::Error;
use crate::access::{Role, Scope};

/// Request to send a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SendStart {
    /// Full name, such as `tank/vm1@tuesday`.
    pub snapshot: String,
    /// Full name of an older snapshot that the receiver has, or of its bookmark such as
    /// `tank/vm1#monday`: the stream then contains only the changes since that snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Resume token of an interrupted stream, from the receiver. It already contains the source of
    /// an incremental stream, so `from` must be absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl Request for SendStart {
    fn check(&self) -> Result<(), Error> {
        names::snapshot(&self.snapshot)?;
        if let Some(from) = &self.from {
            if from.contains('#') {
                names::bookmark(from)?
            } else {
                names::snapshot(from)?
            };
            if self.token.is_some() {
                return Err(Error::FromAndToken);
            }
        }
        Ok(())
    }

    fn names(&self) -> Vec<&str> {
        std::iter::once(&self.snapshot).chain(&self.from).map(String::as_str).collect()
    }
}

/// A stream that the caller can download once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SendStarted {
    /// Session id.
    pub session: String,
    /// Identity of the sent snapshot.
    pub guid: String,
    /// Identity of the snapshot since which an incremental stream contains changes.
    pub from_guid: Option<String>,
    /// Offset in the volume at which the stream starts, in bytes; 0 for a stream from the start.
    pub first_byte: u64,
    /// Size of the volume at the snapshot.
    pub size_bytes: u64,
    /// Approximate length of a stream from the start.
    pub estimate_bytes: u64,
}

/// Request to show the progress of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowSend {
    /// Session id.
    pub session: String,
}

no_rules!(ShowSend);

/// Request to end a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SendStop {
    /// Session id.
    pub session: String,
}

no_rules!(SendStop);

/// Progress of a download.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SendProgress {
    /// Bytes of the stream that the server has sent. The last bytes may still be in transit.
    pub sent_bytes: u64,
}

/// Request to receive a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiveStart {
    /// Full name of the volume, such as `tank/copy`. A full stream creates the volume.
    pub volume: String,
    /// Roll the volume back to the source snapshot of an incremental stream if the volume has
    /// changed since that snapshot. This destroys newer snapshots.
    #[serde(default)]
    pub roll_back: bool,
    /// Read and check the stream without any change. The response to `finish` describes the changes
    /// that a receive would make.
    #[serde(default)]
    pub dry_run: bool,
}

impl Request for ReceiveStart {
    fn check(&self) -> Result<(), Error> {
        names::volume(&self.volume)?;
        Ok(())
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.volume]
    }

    fn details(&self) -> String {
        if self.roll_back { "-F".to_owned() } else { String::new() }
    }

    fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    fn role(&self, operations: Role) -> Role {
        // A rollback destroys data of the volume, which only admins may do.
        if self.roll_back { Role::Admin } else { operations }
    }
}

/// A session that is ready to receive a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiveStarted {
    /// Session id.
    pub session: String,
}

/// Request to finish a session at the end of its stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiveFinish {
    /// Session id.
    pub session: String,
}

no_rules!(ReceiveFinish);

/// Request to stop a session before the end of its stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiveStop {
    /// Session id.
    pub session: String,
}

no_rules!(ReceiveStop);

/// Request to show the unfinished receive of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowReceive {
    /// Full name of the volume, such as `tank/copy`.
    pub volume: String,
}

one_name!(names::volume, volume: ShowReceive);

/// Request to abort the unfinished receive of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiveAbort {
    /// Full name of the volume, such as `tank/copy`.
    pub volume: String,
}

one_name!(names::volume, volume: ReceiveAbort);

/// Progress of a receive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiveProgress {
    /// Bytes of the stream that the server has received.
    pub received_bytes: u64,
}

/// Result of a completed receive, or of its dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiveDone {
    /// Full name of the new snapshot.
    pub snapshot: String,
    /// Identity of the snapshot, the same on the sender and the receiver.
    pub guid: String,
    /// Bytes of the stream.
    pub received_bytes: u64,
    /// Size of the blocks with data in the stream, in bytes of the volume.
    pub data_bytes: u64,
    /// Size of the holes in the stream, in bytes of the volume.
    pub hole_bytes: u64,
    /// True if this was a dry run.
    pub dry_run: bool,
    /// True if the stream created the volume.
    pub is_new: bool,
    /// True if the volume was rolled back first; false for a resumed stream.
    pub rolled_back: bool,
}

/// Resume token of the unfinished receive of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiveToken {
    /// Full name of the volume.
    pub volume: String,
    /// Name of the snapshot that is being received.
    pub snapshot: String,
    /// The token for `weir send -t`.
    pub token: String,
}

names_nothing_else!(SendStarted, SendProgress, ReceiveProgress, ReceiveToken);

impl Answer for ReceiveStarted {
    fn keep(&mut self, _scope: &Scope) {}

    fn outcome(&self) -> Option<Outcome> {
        Some(Outcome::Changed)
    }
}

impl Answer for ReceiveDone {
    fn keep(&mut self, _scope: &Scope) {}

    fn outcome(&self) -> Option<Outcome> {
        Some(Outcome::Created)
    }
}
