//! Sending snapshots as streams, and receiving them a part at a time.
//!
//! Not here: the stream itself, which is bytes to this crate.
//!
//! Invariants:
//! - a session is named by a random number and ends by itself when nobody uses it;
//! - a part that is received is at most [`REQUEST_BYTES_MAX`](crate::limits::REQUEST_BYTES_MAX)
//!   long.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::request::{names_nothing_else, no_rules, one_name};
use super::{Answer, Outcome, Request};
use crate::Error;
use crate::access::{Role, Scope};

/// A snapshot to be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SendStart {
    /// Full name, such as `tank/vm1@tuesday`.
    pub snapshot: String,
    /// Full name of an older one that the other side has, or of a bookmark of it such as
    /// `tank/vm1#monday`: only what changed since is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Where a stream that was cut off goes on, as the receiving side told it; it says by itself
    /// what the stream is a difference to.
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

/// A stream that can be fetched now, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SendStarted {
    /// Names the session.
    pub session: String,
    /// Identity of the snapshot.
    pub guid: String,
    /// Identity of the snapshot it is a difference to.
    pub from_guid: Option<String>,
    /// Where it goes on, in bytes of the volume; 0 for a stream from the start.
    pub first_byte: u64,
    /// Size of the volume at the snapshot.
    pub size_bytes: u64,
    /// About how long a stream from the start is.
    pub estimate_bytes: u64,
}

/// The session whose progress to show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowSend {
    /// The session.
    pub session: String,
}

no_rules!(ShowSend);

/// A session to be ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SendStop {
    /// The session.
    pub session: String,
}

no_rules!(SendStop);

/// How far a stream is that is fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SendProgress {
    /// Bytes of the stream that were given out; the last of them may still be on their way.
    pub sent_bytes: u64,
}

/// A stream to be received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiveStart {
    /// Full name of the volume, such as `tank/copy`. A stream that is no difference makes it.
    pub volume: String,
    /// Roll the volume back to the snapshot that the stream is a difference to, if it was changed
    /// since; newer snapshots are destroyed.
    #[serde(default)]
    pub roll_back: bool,
    /// Only read and check the stream: nothing is changed, and the end tells what would be.
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
        // A rollback destroys data of the volume.
        if self.roll_back { Role::Admin } else { operations }
    }
}

/// A stream that can be given now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiveStarted {
    /// Names the session.
    pub session: String,
}

/// A session whose stream is at its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiveFinish {
    /// The session.
    pub session: String,
}

no_rules!(ReceiveFinish);

/// A session whose stream is cut off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiveStop {
    /// The session.
    pub session: String,
}

no_rules!(ReceiveStop);

/// The volume whose unfinished stream to show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShowReceive {
    /// Full name of the volume, such as `tank/copy`.
    pub volume: String,
}

one_name!(names::volume, volume: ShowReceive);

/// The volume whose unfinished stream is given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiveAbort {
    /// Full name of the volume, such as `tank/copy`.
    pub volume: String,
}

one_name!(names::volume, volume: ReceiveAbort);

/// How far a stream is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiveProgress {
    /// Bytes of the stream that were taken in.
    pub received_bytes: u64,
}

/// A stream that was received whole, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiveDone {
    /// Full name of the snapshot that is there now.
    pub snapshot: String,
    /// Its identity, the same as on the sending side.
    pub guid: String,
    /// Bytes of the stream.
    pub received_bytes: u64,
    /// Blocks with data in it, in bytes of the volume.
    pub data_bytes: u64,
    /// Holes in it, in bytes of the volume.
    pub hole_bytes: u64,
    /// Whether it was only read and checked.
    pub dry_run: bool,
    /// Whether the stream made the volume.
    pub is_new: bool,
    /// Whether the volume was rolled back first; of a stream that went on after a cut, false.
    pub rolled_back: bool,
}

/// Where the stream into a volume goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiveToken {
    /// Full name of the volume.
    pub volume: String,
    /// Name of the snapshot that is being received.
    pub snapshot: String,
    /// What to give to `weir send -t`.
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
