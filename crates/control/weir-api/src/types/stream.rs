//! Streams that are sent and received at this moment, for those who look after the server.
//!
//! Not here: sending and receiving (`transfer`).
//!
//! Invariant: the name of a session, with which its bytes are taken and given, is not shown.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Answer;
use super::request::no_rules;
use crate::access::Scope;

/// Whether a stream leaves the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamDirection {
    /// A snapshot is sent.
    Send,
    /// A stream is received into a volume.
    Receive,
}

impl StreamDirection {
    /// The direction as tables print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }
}

/// A stream that is sent or received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stream {
    /// Its number in this run of the server.
    pub id: u64,
    /// Whether it leaves the server.
    pub direction: StreamDirection,
    /// Full name of the snapshot that is sent, or of the volume that is received into.
    pub name: String,
    /// The token, user or server that began it.
    pub caller: String,
    /// When that was.
    pub begun_unix_ms: u64,
    /// Bytes that were sent or came.
    pub moved_bytes: u64,
    /// Time since the caller last took or gave a part.
    pub idle_ms: u64,
}

/// Streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamList {
    /// The oldest first.
    pub streams: Vec<Stream>,
}

impl Answer for StreamList {
    fn keep(&mut self, scope: &Scope) {
        self.streams.retain(|stream| scope.covers(&stream.name));
    }
}

/// A stream to be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamCancel {
    /// Number of the stream.
    pub id: u64,
}

no_rules!(StreamCancel);

/// All streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListStreams {}

no_rules!(ListStreams);
