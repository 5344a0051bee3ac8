//! Errors that end a connection.
//!
//! Errors of single commands are not here: the initiator gets them as SCSI status and sense data.
//!
//! Invariant: initiators never see the text of these errors, which contain no secrets.

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
        /// Name of the initiator; empty if it sent none.
        initiator: String,
        /// Login status that the initiator received.
        status: Status,
        /// Reason for the log.
        why: String,
    },
    /// The login exceeded its time limit.
    #[error("login not finished within {seconds} s")]
    LoginTimeout {
        /// The limit, in seconds.
        seconds: u64,
    },
    /// The first PDU of the connection is no Login Request.
    #[error("opcode {opcode:#04x} instead of a login: not an iSCSI initiator?")]
    NoLogin {
        /// Opcode of the first PDU.
        opcode: u8,
    },
    /// A PDU could not be decoded.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Requests ahead of their CmdSN exceed the memory limit.
    #[error("commands out of order: {len} bytes wait for CmdSN {expected}")]
    OutOfOrder {
        /// Bytes of the waiting requests.
        len: usize,
        /// CmdSN of the missing command.
        expected: u32,
    },
    /// Unsolicited data of a command arrived incompletely while all memory was in use.
    #[error("{len} bytes of incomplete unsolicited data, and the memory budget is exhausted")]
    UnsolicitedData {
        /// Length of that data, in bytes.
        len: usize,
    },
    /// A protocol error. At error recovery level 0 only a new login recovers from it.
    #[error("{why}")]
    Protocol {
        /// Description of the violation.
        why: &'static str,
    },
    /// The connection made no progress within the time limit: no complete PDU arrived, no solicited
    /// data arrived, or the initiator took no response.
    #[error("the initiator {what} for {seconds} s")]
    Stuck {
        /// Action that the initiator failed to take.
        what: &'static str,
        /// The limit, in seconds.
        seconds: u64,
    },
    /// The peer closed the connection in the middle of a PDU.
    #[error("connection closed in the middle of a PDU")]
    Truncated,
    /// The session was reinstated by another login, or the server ended it.
    #[error("session ended: {why}")]
    Ended {
        /// Reason for the end.
        why: &'static str,
    },
    /// The socket failed.
    #[error("socket: {source}")]
    Socket {
        /// Error of the operating system.
        #[from]
        source: std::io::Error,
    },
}

impl IscsiError {
    /// Maps the error to its [`ErrorKind`], for other crates.
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
