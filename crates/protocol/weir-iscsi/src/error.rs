//! Errors that end a connection.
//!
//! A failed command does not end the connection: the initiator gets SCSI status and sense data.
//!
//! Invariant: initiators never see the text of these errors, and the text contains no secrets.

use weir_base::ErrorKind;
use weir_iscsi_wire::{Status, WireError};

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IscsiError {
    /// The target refused the login.
    #[error("login of {initiator:?} to {target:?} refused ({status:?}): {why}")]
    LoginRefused {
        /// Requested target; empty if the initiator named none.
        target: String,
        /// Name of the initiator; empty if the initiator sent none.
        initiator: String,
        /// Login status that the initiator received.
        status: Status,
        /// Reason for the refusal, for the server's log.
        why: String,
    },
    /// The initiator did not complete its login within the time limit.
    #[error("login not finished within {seconds} s")]
    LoginTimeout {
        /// Time limit of a login, in seconds.
        seconds: u64,
    },
    /// The first PDU of the connection is not a Login Request.
    #[error("opcode {opcode:#04x} instead of a login: not an iSCSI initiator?")]
    NoLogin {
        /// Opcode of the first PDU.
        opcode: u8,
    },
    /// A PDU could not be decoded.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Requests that wait for their CmdSN exceed the memory limit.
    #[error("commands out of order: {len} bytes wait for CmdSN {expected}")]
    OutOfOrder {
        /// Bytes of the waiting requests.
        len: usize,
        /// CmdSN of the command that has not arrived.
        expected: u32,
    },
    /// Only a part of a command's unsolicited data arrived while all memory was in use.
    #[error("{len} bytes of incomplete unsolicited data, and the memory budget is exhausted")]
    UnsolicitedData {
        /// Length of the unsolicited data, in bytes.
        len: usize,
    },
    /// The initiator violated the protocol. At error recovery level 0 it must log in again.
    #[error("{why}")]
    Protocol {
        /// Description of the violation.
        why: &'static str,
    },
    /// The connection made no progress within the time limit: no complete PDU arrived, solicited
    /// data did not arrive, or the initiator received no response data.
    #[error("the initiator {what} for {seconds} s")]
    Stuck {
        /// Action that the initiator did not take in time.
        what: &'static str,
        /// Time limit of the action, in seconds.
        seconds: u64,
    },
    /// The peer closed the connection in the middle of a PDU.
    #[error("connection closed in the middle of a PDU")]
    Truncated,
    /// Another login reinstated the session, or the server ended the session.
    #[error("session ended: {why}")]
    Ended {
        /// Reason for the end of the session.
        why: &'static str,
    },
    /// The socket failed.
    #[error("socket: {source}")]
    Socket {
        /// Error that the operating system returned.
        #[from]
        source: std::io::Error,
    },
}

impl IscsiError {
    /// Maps the error to an [`ErrorKind`], for other crates.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::LoginRefused { .. }
            | Self::NoLogin { .. }
            | Self::Wire(WireError::DataTooLong { .. })
            | Self::OutOfOrder { .. }
            | Self::Protocol { .. } => ErrorKind::Invalid,
            Self::UnsolicitedData { .. } => ErrorKind::NoSpace,
            Self::Wire(_) => ErrorKind::Data,
            Self::LoginTimeout { .. }
            | Self::Stuck { .. }
            | Self::Truncated
            | Self::Ended { .. }
            | Self::Socket { .. } => ErrorKind::Unavailable,
        }
    }
}
