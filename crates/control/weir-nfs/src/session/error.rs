//! Reasons for which the server drops a connection.
//!
//! Invariant: no reason contains bytes of the client.

use weir_oncrpc::record::RecordError;

/// Reason for which the server dropped a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The socket failed, or the client read no reply for a minute.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The client sent a record that is too long.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The client sent a record that is no call.
    #[error("the client sent a record that is no RPC call")]
    NoCall,
    /// The connection ended inside a record.
    #[error("the connection ended inside a record")]
    Truncated,
    /// The client held memory for which other clients waited, and transferred too little.
    #[error("the client held memory for which others waited, and read too slowly")]
    Stalled,
    /// NFS needs the address of the client, which a unix socket lacks.
    #[error("NFS has no unix sockets")]
    NoAddress,
}
