//! Errors that prevent the start of a server.
//!
//! Each protocol has its own error type for the end of a connection.
//!
//! Invariant: every error message names the action that the administrator must take.

use std::path::PathBuf;

use weir_base::ErrorKind;

/// Error that prevents the start of a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Invalid listening address.
    #[error("bad address {text:?}: {why}; write tcp:127.0.0.1:{port} or unix:PATH")]
    Address {
        /// Address as the administrator wrote it.
        text: String,
        /// Reason for which the address is invalid.
        why: String,
        /// Default port of the protocol.
        port: u16,
    },
    /// Another server listens on the address.
    #[error("{address} is in use by another server; stop it or choose another address")]
    InUse {
        /// Address on which the other server listens.
        address: String,
    },
    /// An entry of an allow list is invalid.
    #[error("bad network {text:?}: {why}; write ADDRESS or ADDRESS/BITS, such as 10.0.0.0/24")]
    Network {
        /// Entry as the administrator wrote it.
        text: String,
        /// Reason for which the entry is invalid.
        why: String,
    },
    /// Another user could replace the server's socket in this directory.
    #[error("cannot listen on {address}: the directory {} is not safe: {why}", path.display())]
    Directory {
        /// Listening address of the unix socket.
        address: String,
        /// Directory that contains the socket.
        path: PathBuf,
        /// Reason for which the directory is unsafe.
        why: String,
        /// Command that removes the unsafe permission.
        mend: String,
    },
    /// The file at the path of the unix socket is not a socket.
    #[error("cannot listen on unix:{}: the file there is not a socket", path.display())]
    NotASocket {
        /// Path of the file.
        path: PathBuf,
    },
    /// The operating system refused to listen on the address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Listening address.
        address: String,
        /// Error that the operating system returned.
        #[source]
        source: std::io::Error,
    },
    /// A worker thread could not be started.
    #[error("cannot start a serving thread: {source}")]
    Thread {
        /// Error that the operating system returned.
        #[source]
        source: std::io::Error,
    },
}

impl ServeError {
    /// Maps the error to an [`ErrorKind`], for other crates.
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

    /// Action for the administrator, if the error message does not contain one.
    pub fn action(&self) -> Option<String> {
        match self {
            Self::Directory { mend, .. } => {
                Some(format!("{mend}, or choose a socket in another directory"))
            }
            Self::NotASocket { .. } => {
                Some("move that file away, or choose another socket path".to_owned())
            }
            _ => None,
        }
    }
}
