//! List of the streams that the server currently sends or receives, for administrators.
//!
//! Requests that send and receive streams are in `transfer`.
//!
//! Invariant: responses do not contain the session id, which gives access to the data of a stream.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Answer;
use super::request::no_rules;
use crate::access::Scope;

/// Direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamDirection {
    /// The server sends a snapshot.
    Send,
    /// The server receives a stream into a volume.
    Receive,
}

impl StreamDirection {
    /// Returns the name of the direction in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }
}

/// A stream that the server sends or receives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stream {
    /// Number of the stream, unique until the server restarts.
    pub id: u64,
    /// Direction of the stream.
    pub direction: StreamDirection,
    /// Full name of the sent snapshot, or of the receiving volume.
    pub name: String,
    /// The token, user or server that started the stream.
    pub caller: String,
    /// Start time.
    pub begun_unix_ms: u64,
    /// Bytes sent or received.
    pub moved_bytes: u64,
    /// Time since the caller last downloaded or uploaded a part of the stream.
    pub idle_ms: u64,
}

/// Streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamList {
    /// The streams, oldest first.
    pub streams: Vec<Stream>,
}

impl Answer for StreamList {
    fn keep(&mut self, scope: &Scope) {
        self.streams.retain(|stream| scope.covers(&stream.name));
    }
}

/// Request to cancel a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamCancel {
    /// Number of the stream.
    pub id: u64,
}

no_rules!(StreamCancel);

/// Request to list all streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListStreams {}

no_rules!(ListStreams);
