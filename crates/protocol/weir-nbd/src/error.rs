//! Why a connection ended.
//!
//! Not here: errors of single requests; those are answered to the client (`export`, `request`).
//!
//! Invariant: nothing in an error is shown to a client; it goes to the log.

use weir_base::ErrorKind;

/// What ends a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// The client set flags nobody offered; most often it is no NBD client.
    #[error("unknown client flags {flags:#010x}: not an NBD client?")]
    ClientFlags {
        /// What it sent.
        flags: u32,
    },
    /// The client does not speak fixed newstyle and asked for more than an export.
    #[error("option {option} without fixed newstyle")]
    NotFixed {
        /// The option's number.
        option: u32,
    },
    /// What should be an option is none.
    #[error("bad option magic {magic:#018x}: not an NBD client?")]
    OptionMagic {
        /// What it sent.
        magic: u64,
    },
    /// An option with more data than any option needs.
    #[error("option {option} with {len} bytes of data")]
    OptionTooLong {
        /// The option's number.
        option: u32,
        /// Bytes announced.
        len: u32,
    },
    /// `EXPORT_NAME` asked for an export that cannot be had; the protocol has no answer to it.
    #[error("export {name:?}: {why}")]
    NoExport {
        /// The name asked for, or what of it is text.
        name: String,
        /// Why it cannot be had.
        why: String,
    },
    /// `EXPORT_NAME` before `STARTTLS`, where that comes first; the protocol has no answer to it.
    #[error("export name before STARTTLS: the server takes TCP clients only with TLS")]
    NotEncrypted,
    /// Bytes behind `STARTTLS` that the client did not encrypt, or that another put there.
    #[error("bytes in clear text behind STARTTLS")]
    BytesBeforeTls,
    /// TLS could not be agreed on.
    #[error("TLS handshake: {source}")]
    Tls {
        /// Why.
        source: std::io::Error,
    },
    /// What should be a request is none.
    #[error("bad request magic {magic:#010x}")]
    RequestMagic {
        /// What it sent.
        magic: u32,
    },
    /// A write so long that reading it to throw it away is not worth it.
    #[error("write of {len} bytes")]
    WriteTooLong {
        /// Bytes announced.
        len: u32,
    },
    /// The handshake took too long.
    #[error("handshake not finished within {seconds} s")]
    HandshakeTimeout {
        /// The limit.
        seconds: u64,
    },
    /// The peer went away in the middle of a message.
    #[error("connection closed in the middle of a message")]
    Truncated,
    /// The client held memory that others waited for, and took or sent too little.
    #[error("ended: the client takes no replies or sends no rest of a request, and others wait")]
    Stalled,
    /// A read failed after a part of it was sent; the protocol has no way to say so.
    #[error("ended: a read failed after a part of it was sent")]
    HalfRead,
    /// The socket failed.
    #[error("socket: {source}")]
    Socket {
        /// What the system said.
        #[from]
        source: std::io::Error,
    },
}

impl NbdError {
    /// The kind this folds into at a border.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::ClientFlags { .. }
            | Self::NotFixed { .. }
            | Self::OptionMagic { .. }
            | Self::OptionTooLong { .. }
            | Self::NotEncrypted
            | Self::BytesBeforeTls
            | Self::Tls { .. }
            | Self::RequestMagic { .. }
            | Self::WriteTooLong { .. } => ErrorKind::Invalid,
            Self::NoExport { .. } => ErrorKind::NotFound,
            Self::HalfRead => ErrorKind::Data,
            Self::HandshakeTimeout { .. }
            | Self::Truncated
            | Self::Stalled
            | Self::Socket { .. } => ErrorKind::Unavailable,
        }
    }
}
