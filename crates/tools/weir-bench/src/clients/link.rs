//! Link: a connection that carries length-prefixed JSON messages, with a time limit for every wait.
//!
//! ```text
//! 0  length of the JSON in bytes (u32, big-endian)
//! 4  JSON
//! ```
//! `wire` has the messages; `session` and `coordinator` have their order.
//!
//! Invariants: a message never exceeds the size limit in force, and memory grows only with received
//! data; after an error, the connection is not used again.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::SILENCE_MAX;

/// Maximum size of a message until the other side has authenticated.
pub(super) const GREETING_BYTES_MAX: u32 = 4 << 10;
/// Maximum size of a message after the authentication: the result of a run of one day has 86,400
/// seconds of about 150 bytes each.
pub(super) const MESSAGE_BYTES_MAX: u32 = 64 << 20;
/// Size of one read from the socket.
const READ_BYTES: usize = 64 << 10;

/// Reason for which a connection can no longer be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    #[error("the connection was closed")]
    Closed,
    #[error("no message arrived for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("a message has {bytes} bytes, the maximum is {max}")]
    TooLong { bytes: u32, max: u32 },
    #[error("malformed message: {0}")]
    Nonsense(serde_json::Error),
    #[error("unexpected message")]
    Unexpected,
}

/// Connection between coordinator and agent that carries messages.
pub(super) struct Link {
    stream: TcpStream,
    bytes_max: u32,
}

impl Link {
    pub(super) fn new(stream: TcpStream) -> Result<Self, LinkError> {
        let set = stream.set_nodelay(true).and_then(|()| {
            stream.set_nonblocking(false)?;
            stream.set_write_timeout(Some(SILENCE_MAX))
        });
        set.map_err(LinkError::Broken)?;
        Ok(Self { stream, bytes_max: GREETING_BYTES_MAX })
    }

    /// Raises the maximum message size, after the other side has authenticated.
    pub(super) fn trust(&mut self) {
        self.bytes_max = MESSAGE_BYTES_MAX;
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), LinkError> {
        let mut frame = vec![0; 4];
        serde_json::to_writer(&mut frame, message).map_err(LinkError::Nonsense)?;
        let bytes = u32::try_from(frame.len() - 4).unwrap_or(u32::MAX);
        if bytes > MESSAGE_BYTES_MAX {
            return Err(LinkError::TooLong { bytes, max: MESSAGE_BYTES_MAX });
        }
        frame[..4].copy_from_slice(&bytes.to_be_bytes());
        self.stream.write_all(&frame).map_err(|error| broken(error, SILENCE_MAX))
    }

    /// Receives a message. Also returns the time at which the last byte of the message arrived.
    pub(super) fn receive<T: DeserializeOwned>(
        &mut self,
        within: Duration,
    ) -> Result<(T, Instant), LinkError> {
        let deadline = Instant::now() + within;
        let mut head = Vec::new();
        self.read(&mut head, 4, deadline, within)?;
        let bytes = u32::from_be_bytes(head.try_into().expect("4 bytes were read"));
        if bytes > self.bytes_max {
            return Err(LinkError::TooLong { bytes, max: self.bytes_max });
        }
        let mut json = Vec::new();
        self.read(&mut json, bytes as usize, deadline, within)?;
        let at = Instant::now();
        serde_json::from_slice(&json).map(|message| (message, at)).map_err(LinkError::Nonsense)
    }

    fn read(
        &mut self,
        into: &mut Vec<u8>,
        bytes: usize,
        deadline: Instant,
        within: Duration,
    ) -> Result<(), LinkError> {
        let mut buffer = vec![0; bytes.min(READ_BYTES)];
        while into.len() < bytes {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LinkError::Silent(within));
            }
            self.stream.set_read_timeout(Some(left)).map_err(LinkError::Broken)?;
            let wanted = (bytes - into.len()).min(buffer.len());
            match self.stream.read(&mut buffer[..wanted]) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(read) => into.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error, within)),
            }
        }
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Shut the socket down, because closing this handle would not end the connection: other
        // threads keep handles of the same socket, so that they can interrupt waits for messages.
        self.stream.shutdown(Shutdown::Both).ok();
    }
}

fn broken(error: io::Error, within: Duration) -> LinkError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => LinkError::Silent(within),
        _ => LinkError::Broken(error),
    }
}
