//! Errors that end a session with a target, or prevent the session.
//!
//! A failed command is a [`Reply`](crate::Reply), not an error, unless the caller requires that the
//! command succeeds.
//!
//! Invariant: no error contains a secret.

use weir_base::ErrorKind;

use crate::sense::{Sense, Status};

/// Error that ends a session or prevents the login.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitiatorError {
    /// The address does not name a logical unit.
    #[error("bad address {text:?}: {why}")]
    Url {
        /// Address as the user wrote it.
        text: String,
        /// Reason why the address is invalid.
        why: String,
    },
    /// The file of a secret cannot be read or has invalid content.
    #[error("secret file {file}: {why}")]
    Secret {
        /// Path of the file.
        file: String,
        /// Reason why the file is invalid.
        why: String,
    },
    /// The connection to the host could not be established.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Host and port of the target.
        address: String,
        /// Error that the operating system returned.
        source: std::io::Error,
    },
    /// The socket failed.
    #[error("socket: {source}")]
    Socket {
        /// Error that the operating system returned.
        #[from]
        source: std::io::Error,
    },
    /// The target closed the connection.
    #[error("the target closed the connection")]
    Closed,
    /// An operation took longer than its time limit.
    #[error("no answer within {seconds} s: {what}")]
    Timeout {
        /// Name of the operation.
        what: &'static str,
        /// Time limit in seconds.
        seconds: u64,
    },
    /// The target violated the protocol; the session is lost.
    #[error("the target violates the protocol: {why}")]
    Protocol {
        /// Description of the violation.
        why: &'static str,
    },
    /// A PDU header does not match its digest.
    #[error("bad header digest from the target")]
    HeaderDigest,
    /// A data segment does not match its digest.
    #[error("bad data digest from the target")]
    DataDigest,
    /// The target refused the login.
    #[error("the target rejects the login: {} ({:?})", meaning(*status), status)]
    Refused {
        /// Status class and detail of the login response (RFC 7143 11.13.5).
        status: [u8; 2],
    },
    /// The target did not authenticate, or requires a secret that the initiator lacks.
    #[error("authentication: {why}")]
    Authentication {
        /// Reason why the authentication failed.
        why: &'static str,
    },
    /// The target did not accept a parameter that the initiator requires.
    #[error("the target answers {value:?} to the required key {key}")]
    NotAgreed {
        /// Name of the key in the negotiation.
        key: &'static str,
        /// Value that the target sent.
        value: String,
    },
    /// The target rejected a PDU.
    #[error("the target rejects a PDU of opcode {opcode:#04x}, reason {reason:#04x}")]
    Rejected {
        /// Reason code of the Reject PDU (RFC 7143 11.17.1).
        reason: u8,
        /// Opcode of the rejected PDU.
        opcode: u8,
    },
    /// The target ended the session.
    #[error("the target ends the session: {why}")]
    Ended {
        /// Reason that the target gave for the end.
        why: &'static str,
    },
    /// A command failed although the caller required its success.
    #[error("{command}: {status}{}", sense.as_ref().map(|s| format!(", {s}")).unwrap_or_default())]
    Command {
        /// Name of the command.
        command: &'static str,
        /// Status of the command.
        status: Status,
        /// Sense data of the command.
        sense: Option<Sense>,
    },
    /// A command returned invalid data.
    #[error("{command}: {why}")]
    Answer {
        /// Name of the command.
        command: &'static str,
        /// Reason why the data is invalid.
        why: &'static str,
    },
    /// The operating system supplies no random numbers, so the initiator cannot create a session
    /// identifier.
    #[error("the system has no random numbers")]
    NoRandomness,
}

impl InitiatorError {
    /// Kind of the error, for callers outside this crate.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Url { .. } | Self::Secret { .. } | Self::NotAgreed { .. } => ErrorKind::Invalid,
            Self::Authentication { .. } | Self::Refused { status: [2, 1 | 2] } => {
                ErrorKind::Permission
            }
            Self::Refused { status: [2, 3 | 4] } => ErrorKind::NotFound,
            Self::HeaderDigest | Self::DataDigest => ErrorKind::Data,
            Self::NoRandomness => ErrorKind::Internal,
            Self::Command { status, sense, .. } => kind_of(*status, sense.as_ref()),
            Self::Connect { .. }
            | Self::Socket { .. }
            | Self::Closed
            | Self::Timeout { .. }
            | Self::Protocol { .. }
            | Self::Refused { .. }
            | Self::Rejected { .. }
            | Self::Ended { .. }
            | Self::Answer { .. } => ErrorKind::Unavailable,
        }
    }

    /// Action that the user should take.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Url { .. } => {
                "write iscsi://HOST[:PORT]/TARGET/LUN, with ?initiator=NAME and chap=FILE if the \
                 target requires them"
            }
            Self::Secret { .. } => "write 12 to 255 bytes into a file that only you can read",
            Self::Connect { .. } | Self::Socket { .. } | Self::Closed | Self::Timeout { .. } => {
                "check that the target is running and can be reached"
            }
            Self::Refused { status: [2, 1] } | Self::Authentication { .. } => {
                "check the names and secrets: ?chap=FILE&chap-user=NAME, mutual=FILE for both ways"
            }
            Self::Refused { status: [2, 2] } => {
                "add this initiator to the target's allow list, or use an allowed name: \
                 ?initiator=NAME"
            }
            Self::Refused { status: [2, 3 | 4] } => "check the name of the target",
            Self::Refused { .. } | Self::Ended { .. } => "check the target's logs; try again",
            Self::NotAgreed { .. } => "use an option that the target supports",
            Self::Command { .. } | Self::Answer { .. } => "check the target's logs",
            Self::Protocol { .. }
            | Self::HeaderDigest
            | Self::DataDigest
            | Self::Rejected { .. } => "check that this is an iSCSI target, and check its logs",
            Self::NoRandomness => "check the random number generator of this system",
        }
    }
}

fn kind_of(status: Status, sense: Option<&Sense>) -> ErrorKind {
    match (status, sense.map(|sense| (sense.key, sense.asc))) {
        (Status::BUSY | Status::TASK_SET_FULL | Status::RESERVATION_CONFLICT, _) => ErrorKind::Busy,
        (_, Some((0x3, _))) => ErrorKind::Data,
        (_, Some((0x5, 0x25))) => ErrorKind::NotFound,
        (_, Some((0x5, _))) => ErrorKind::Invalid,
        (_, Some((0x7, 0x27))) => ErrorKind::ReadOnly,
        _ => ErrorKind::Unavailable,
    }
}

/// Meaning of a login status (RFC 7143 11.13.5), as text.
fn meaning(status: [u8; 2]) -> &'static str {
    match status {
        [1, _] => "it has moved and gives no new address",
        [2, 0] => "the initiator violated the protocol",
        [2, 1] => "authentication failed",
        [2, 2] => "this initiator has no access",
        [2, 3] => "the target does not exist",
        [2, 4] => "the target was removed",
        [2, 5] => "no common protocol version",
        [2, 6] => "too many connections",
        [2, 7] => "a parameter is missing",
        [2, 8] => "the connection does not match the session",
        [2, 9] => "it does not support this type of session",
        [2, 10] => "the session does not exist",
        [2, 11] => "the request is invalid",
        [3, 1] => "the service is not available now",
        [3, 2] => "it is out of resources",
        [3, _] => "internal error",
        _ => "vendor-specific reason",
    }
}
