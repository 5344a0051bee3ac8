//! Errors that end a connection.
//!
//! Errors of single requests are not here: the client gets them as error replies (`request`,
//! `reply`).
//!
//! Invariant: clients never see the text of these errors; it goes to the log.

use weir_base::ErrorKind;

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// The client set flags that the server did not offer; in most cases it is not an NBD client.
    #[error("unknown client flags {flags:#010x}: not an NBD client?")]
    ClientFlags {
        /// Flags that the client sent.
        flags: u32,
    },
    /// The client sent an option other than `EXPORT_NAME` without fixed newstyle negotiation.
    #[error("option {option} without fixed newstyle")]
    NotFixed {
        /// Option number.
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
        /// Option number.
        option: u32,
        /// Length from the option header.
        len: u32,
    },
    /// `EXPORT_NAME` asked for an unavailable export; the protocol has no error reply to this
    /// option.
    #[error("export {name:?}: {why}")]
    NoExport {
        /// Requested name, lossily decoded.
        name: String,
        /// Reason why the export is unavailable.
        why: String,
    },
    /// `EXPORT_NAME` before `STARTTLS` on a server that requires TLS; the protocol has no error
    /// reply to this option.
    #[error("export name before STARTTLS: the server accepts TCP clients only with TLS")]
    NotEncrypted,
    /// Unencrypted bytes after `STARTTLS`, from the client or from an attacker.
    #[error("unencrypted bytes after STARTTLS")]
    BytesBeforeTls,
    /// The TLS handshake failed.
    #[error("TLS handshake: {source}")]
    Tls {
        /// Error of the TLS library or the socket.
        source: std::io::Error,
    },
    /// A request starts with a wrong magic number.
    #[error("bad request magic {magic:#010x}")]
    RequestMagic {
        /// Magic number that the client sent.
        magic: u32,
    },
    /// An invalid write that is too long to read and discard its payload.
    #[error("write of {len} bytes, more than the limit")]
    WriteTooLong {
        /// Length from the request header.
        len: u32,
    },
    /// The handshake exceeded its time limit.
    #[error("handshake not finished within {seconds} s")]
    HandshakeTimeout {
        /// The limit, in seconds.
        seconds: u64,
    },
    /// The peer closed the connection in the middle of a message.
    #[error("connection closed in the middle of a message")]
    Truncated,
    /// The client held memory for which others waited, and made too little progress.
    #[error(
        "ended: the client reads no replies or leaves a request incomplete, and others wait for \
         its memory"
    )]
    Stalled,
    /// A read failed after a part of its data was sent; the protocol cannot report that.
    #[error("ended: a read failed after a part of it was sent")]
    HalfRead,
    /// The socket failed.
    #[error("socket: {source}")]
    Socket {
        /// Error of the operating system.
        #[from]
        source: std::io::Error,
    },
}

impl NbdError {
    /// Maps the error to its [`ErrorKind`], for other crates.
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
