//! Why a server does not start.
//!
//! Not here: why a connection ended (each protocol).
//!
//! Invariant: every text says what to do.

use weir_base::ErrorKind;

/// What keeps a server from starting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// An address that is none.
    #[error("bad address {text:?}: {why}; write tcp:127.0.0.1:{port} or unix:PATH")]
    Address {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: String,
        /// The protocol's usual port.
        port: u16,
    },
    /// Somebody else listens there.
    #[error("{address} is in use by another server; stop it or choose another address")]
    InUse {
        /// The address.
        address: String,
    },
    /// Listening failed.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A worker could not be started.
    #[error("cannot start a serving thread: {source}")]
    Thread {
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl ServeError {
    /// The kind this folds into at a border.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Address { .. } => ErrorKind::Invalid,
            Self::InUse { .. } => ErrorKind::Busy,
            Self::Listen { source, .. } | Self::Thread { source } => match source.kind() {
                std::io::ErrorKind::PermissionDenied => ErrorKind::Permission,
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                std::io::ErrorKind::AddrNotAvailable => ErrorKind::Invalid,
                _ => ErrorKind::Unavailable,
            },
        }
    }
}
