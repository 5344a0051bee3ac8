//! Errors of XDR decoding.
//!
//! Invariant: no error contains bytes of strings or opaques that the peer sent.

/// Error of bytes that are no valid XDR of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum XdrError {
    /// The input ends inside a value.
    #[error("input ends inside a value")]
    Truncated,
    /// An opaque, string or array is longer than its type allows.
    #[error("length {len} exceeds the maximum of {max}")]
    TooLong {
        /// Length on the wire: bytes, or elements of an array.
        len: usize,
        /// Maximum of the type.
        max: usize,
    },
    /// A number denotes no value of the enumeration.
    #[error("{value} is no value of {name}")]
    UnknownValue {
        /// Name of the enumeration.
        name: &'static str,
        /// Number on the wire.
        value: u32,
    },
    /// A message states the number of elements of an array, and the array has another number.
    #[error("the array has {len} elements, the message states {count}")]
    WrongCount {
        /// Number of elements of the array.
        len: usize,
        /// Stated number.
        count: usize,
    },
    /// Bytes follow the last value.
    #[error("{bytes} bytes follow the last value")]
    Trailing {
        /// Number of these bytes.
        bytes: usize,
    },
}
