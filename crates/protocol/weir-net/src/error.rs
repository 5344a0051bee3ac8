//! Why a server does not start.
//!
//! Not here: why a connection ended (each protocol).
//!
//! Invariant: every text says what to do.

use std::path::PathBuf;

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
    /// An entry of a list of allowed addresses that is none.
    #[error("bad network {text:?}: {why}; write ADDRESS or ADDRESS/BITS, such as 10.0.0.0/24")]
    Network {
        /// What was given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// Another user could put a socket in the place of the server's.
    #[error("cannot listen on {address}: the directory {} is not safe: {why}", path.display())]
    Directory {
        /// The address.
        address: String,
        /// The directory of the socket.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// The command that mends it.
        mend: String,
    },
    /// A unix socket would replace a file that is no socket.
    #[error("cannot listen on unix:{}: there is a file that is not a socket", path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
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
            Self::Address { .. } | Self::Network { .. } => ErrorKind::Invalid,
            Self::Directory { .. } => ErrorKind::Permission,
            Self::InUse { .. } => ErrorKind::Busy,
            Self::NotASocket { .. } => ErrorKind::Exists,
            Self::Listen { source, .. } | Self::Thread { source } => match source.kind() {
                std::io::ErrorKind::PermissionDenied => ErrorKind::Permission,
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                std::io::ErrorKind::AddrNotAvailable => ErrorKind::Invalid,
                _ => ErrorKind::Unavailable,
            },
        }
    }

    /// What to do about it, where that is more than the text says.
    pub fn action(&self) -> Option<String> {
        match self {
            Self::Directory { mend, .. } => {
                Some(format!("{mend}, or name a socket in another directory"))
            }
            Self::NotASocket { .. } => {
                Some("move that file away, or name a socket elsewhere".to_owned())
            }
            _ => None,
        }
    }
}
