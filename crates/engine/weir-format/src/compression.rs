//! Compression codes: the `compression` property of a dataset, and the codec of one stored block.
//!
//! The compressors are in weir-codec; weir-pool decides when a block is stored uncompressed.
//!
//! Invariants:
//! - a block pointer stores the codec only. The compression level matters to the writer alone, and
//!   a change of the property changes no stored block;
//! - a code never gets another meaning.

use weir_base::Compression;

use crate::error::FormatError;

/// Storage format of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Uncompressed.
    #[default]
    Raw,
    /// A length, followed by one LZ4 block.
    Lz4,
    /// A length, followed by one zstd frame.
    Zstd,
}

impl Codec {
    /// The code of this codec in a block pointer.
    pub const fn code(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// Returns the codec for a code of a block pointer.
    ///
    /// # Errors
    /// The code is unknown.
    pub const fn from_code(code: u8) -> Result<Self, FormatError> {
        match code {
            0 => Ok(Self::Raw),
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            _ => Err(FormatError::Field { what: "block", field: "codec", value: code as u64 }),
        }
    }
}

/// Returns the compression for an on-disk code.
///
/// # Errors
/// The code is unknown.
pub fn compression_of_code(code: u8) -> Result<Compression, FormatError> {
    let field = FormatError::Field { what: "compression", field: "code", value: u64::from(code) };
    Compression::of_code(code).ok_or(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compression_codes_round_trip_and_unknown_codes_are_refused() {
        let known: Vec<u8> = Compression::all().map(Compression::code).collect();
        for code in 0..=u8::MAX {
            let found = compression_of_code(code);
            assert_eq!(found.is_ok(), known.contains(&code), "{code}");
            assert!(found.is_err() || found.unwrap().code() == code);
            let codec = Codec::from_code(code);
            assert_eq!(codec.is_ok(), code < 3, "{code}");
            assert!(codec.is_err() || codec.unwrap().code() == code);
        }
        assert_eq!(known.len(), 22);
    }
}
