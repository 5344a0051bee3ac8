//! How blocks are compressed: what is asked of a dataset, and how one block was stored.
//!
//! Not here: the compressors (weir-codec), and when a block is stored raw all the same (weir-pool).
//!
//! Invariants:
//! - a block pointer names its codec alone: the level was the writer's matter, and changing the
//!   property changes no block that is stored;
//! - codes are never given another meaning.

use weir_base::Compression;

use crate::error::FormatError;

/// How one block is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Codec {
    /// As it is.
    #[default]
    Raw,
    /// One LZ4 block behind its length.
    Lz4,
    /// One zstd frame behind its length.
    Zstd,
}

impl Codec {
    /// Code in a block pointer.
    pub const fn code(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// From the code in a block pointer.
    ///
    /// # Errors
    /// An unknown code.
    pub const fn from_code(code: u8) -> Result<Self, FormatError> {
        match code {
            0 => Ok(Self::Raw),
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            _ => Err(FormatError::Field { what: "block", field: "codec", value: code as u64 }),
        }
    }
}

/// The compression of a code on disk.
///
/// # Errors
/// An unknown code.
pub fn compression_of_code(code: u8) -> Result<Compression, FormatError> {
    let field = FormatError::Field { what: "compression", field: "code", value: u64::from(code) };
    Compression::of_code(code).ok_or(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back_as_what_they_were_of_and_no_others_do() {
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
