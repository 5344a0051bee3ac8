//! Errors that end a connection.
//!
//! A failed request does not end the connection: the client gets an error reply (`request`,
//! `reply`).
//!
//! Invariant: clients never see the text of these errors; the server logs it.

use weir_base::ErrorKind;

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// The client sent flags that the server did not offer; such a client is usually no NBD client.
    #[error("unknown client flags {flags:#010x}: not an NBD client?")]
    ClientFlags {
        /// Flags that the client sent.
        flags: u32,
    },
    /// Without fixed newstyle negotiation, the client sent an option other than `EXPORT_NAME`.
    #[error("option {option} without fixed newstyle")]
    NotFixed {
        /// Number of the option.
        option: u32,
    },
    /// An option starts with a wrong magic number.
    #[error("bad option magic {magic:#018x}: not an NBD client?")]
    OptionMagic {
        /// Magic number that the client sent.
        magic: u64,
    },
    /// The data of an option exceeds the limit.
    #[error("option {option} has {len} bytes of data, more than the limit")]
    OptionTooLong {
        /// Number of the option.
        option: u32,
        /// Length of the option data, from the option header.
        len: u32,
    },
    /// `EXPORT_NAME` requested an unavailable export. The protocol has no error reply to this
    /// option.
    #[error("export {name:?}: {why}")]
    NoExport {
        /// Requested export name, lossily decoded.
        name: String,
        /// Reason why the export is unavailable.
        why: String,
    },
    /// The client sent `EXPORT_NAME` before `STARTTLS`, but the server requires TLS. The protocol
    /// has no error reply to this option.
    #[error("export name before STARTTLS: the server accepts TCP clients only with TLS")]
    NotEncrypted,
    /// Unencrypted bytes arrived after `STARTTLS`, from the client or from an attacker.
    #[error("unencrypted bytes after STARTTLS")]
    BytesBeforeTls,
    /// The TLS handshake failed.
    #[error("TLS handshake: {source}")]
    Tls {
        /// Error that the TLS library or the socket returned.
        source: std::io::Error,
    },
    /// A request starts with a wrong magic number.
    #[error("bad request magic {magic:#010x}")]
    RequestMagic {
        /// Magic number that the client sent.
        magic: u32,
    },
    /// The client sent an invalid write whose payload is too long to read and discard.
    #[error("write of {len} bytes, more than the limit")]
    WriteTooLong {
        /// Length of the payload, from the request header.
        len: u32,
    },
    /// The client did not complete the handshake within the time limit.
    #[error("handshake not finished within {seconds} s")]
    HandshakeTimeout {
        /// Time limit of the handshake, in seconds.
        seconds: u64,
    },
    /// The client closed the connection in the middle of a message.
    #[error("connection closed in the middle of a message")]
    Truncated,
    /// The client held memory that other connections waited for, and made too little progress.
    #[error(
        "ended: the client reads no replies or leaves a request incomplete, and others wait for \
         its memory"
    )]
    Stalled,
    /// A read failed after a part of its data was sent. The protocol cannot report this error.
    #[error("ended: a read failed after a part of it was sent")]
    HalfRead,
    /// The socket failed.
    #[error("socket: {source}")]
    Socket {
        /// Error that the operating system returned.
        #[from]
        source: std::io::Error,
    },
}

impl NbdError {
    /// Maps the error to an [`ErrorKind`], for other crates.
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
