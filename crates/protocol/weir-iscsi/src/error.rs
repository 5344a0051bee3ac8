//! Why a connection ended.
//!
//! Not here: errors of single commands; those are answered to the initiator.
//!
//! Invariant: nothing in an error is shown to an initiator, and no secret is in one.

use weir_base::ErrorKind;
use weir_iscsi_wire::{Status, WireError};

/// What ends a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IscsiError {
    /// A login was refused.
    #[error("login of {initiator:?} to {target:?} refused ({status:?}): {why}")]
    LoginRefused {
        /// The target that it wants; empty where it did not say, or wants none.
        target: String,
        /// What it calls itself; empty where it did not say.
        initiator: String,
        /// What it was told.
        status: Status,
        /// What the log says.
        why: String,
    },
    /// The login took too long.
    #[error("login not finished within {seconds} s")]
    LoginTimeout {
        /// The limit.
        seconds: u64,
    },
    /// What should be a login request is none.
    #[error("opcode {opcode:#04x} instead of a login: not an iSCSI initiator?")]
    NoLogin {
        /// What it sent.
        opcode: u8,
    },
    /// A PDU that cannot be decoded.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// PDUs that came before their turn, more than are kept.
    #[error("commands out of order: {len} bytes wait for CmdSN {expected}")]
    OutOfOrder {
        /// Bytes of those that wait.
        len: usize,
        /// The command that is missing.
        expected: u32,
    },
    /// Data that came unasked and is not whole, while all memory is in use.
    #[error("{len} bytes of unfinished data that nobody asked for, and no memory is left")]
    Unasked {
        /// How much it is.
        len: usize,
    },
    /// The initiator broke the protocol in a way that only a new login mends.
    #[error("{why}")]
    Protocol {
        /// What it did.
        why: &'static str,
    },
    /// Nothing moved for too long: no whole PDU came, no data that was asked for, or no answer was
    /// taken.
    #[error("the initiator {what} for {seconds} s")]
    Stuck {
        /// What it does not do.
        what: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// The peer went away in the middle of a PDU.
    #[error("connection closed in the middle of a PDU")]
    Truncated,
    /// Another login took this session's place, or it was ended from outside.
    #[error("session ended: {why}")]
    Ended {
        /// By what.
        why: &'static str,
    },
    /// The socket failed.
    #[error("socket: {source}")]
    Socket {
        /// What the system said.
        #[from]
        source: std::io::Error,
    },
}

impl IscsiError {
    /// The kind this folds into at a border.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::LoginRefused { .. }
            | Self::NoLogin { .. }
            | Self::Wire(WireError::DataTooLong { .. })
            | Self::OutOfOrder { .. }
            | Self::Protocol { .. } => ErrorKind::Invalid,
            Self::Unasked { .. } => ErrorKind::NoSpace,
            Self::Wire(_) => ErrorKind::Data,
            Self::LoginTimeout { .. }
            | Self::Stuck { .. }
            | Self::Truncated
            | Self::Ended { .. }
            | Self::Socket { .. } => ErrorKind::Unavailable,
        }
    }
}
