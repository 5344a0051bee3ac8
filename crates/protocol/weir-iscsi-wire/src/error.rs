//! Errors of bytes that are no PDU.
//!
//! Not here: the end of a connection (weir-iscsi).
//!
//! Invariant: no error holds bytes of the peer.

/// A PDU that cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A header whose checksum is wrong: what follows cannot be told from it.
    #[error("bad header digest")]
    HeaderDigest,
    /// A data segment longer than was declared.
    #[error("data segment of {len} bytes, at most {max} were declared")]
    DataTooLong {
        /// Bytes announced.
        len: usize,
        /// The limit.
        max: usize,
    },
}
