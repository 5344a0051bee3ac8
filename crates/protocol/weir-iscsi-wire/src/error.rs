//! Framing errors of a byte stream.
//!
//! The errors that end a connection are in weir-iscsi.
//!
//! Invariant: no error contains bytes that the peer sent.

/// Error of a PDU that cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The header does not match its digest, so the end of the PDU is unknown.
    #[error("bad header digest")]
    HeaderDigest,
    /// The data segment exceeds the declared maximum.
    #[error("data segment of {len} bytes, at most {max} were declared")]
    DataTooLong {
        /// Length of the data segment, from the header.
        len: usize,
        /// Declared maximum (MaxRecvDataSegmentLength).
        max: usize,
    },
}
