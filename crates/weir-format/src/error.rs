//! Why bytes were not what they should be.
//!
//! Not here: where the bytes came from; the caller adds disk and offset.
//!
//! Invariant: every variant names the structure and what was wrong with it.

use weir_base::ErrorKind;

/// Bytes that are not the structure they were read as.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The structure's mark is missing: something else is there, or nothing.
    #[error("{what}: no Weir {what} here")]
    Magic {
        /// Structure.
        what: &'static str,
    },
    /// The checksum does not match the bytes.
    #[error("{what}: checksum mismatch")]
    Checksum {
        /// Structure.
        what: &'static str,
    },
    /// Written by a newer Weir.
    #[error("{what}: format version {found} is newer than {supported}; use a newer weir")]
    Version {
        /// Structure.
        what: &'static str,
        /// Version on disk.
        found: u32,
        /// Newest version this program reads.
        supported: u32,
    },
    /// The bytes end too early.
    #[error("{what}: truncated")]
    Truncated {
        /// Structure.
        what: &'static str,
    },
    /// A field holds a value that cannot be.
    #[error("{what}: field {field} holds the impossible value {value}")]
    Field {
        /// Structure.
        what: &'static str,
        /// Field.
        field: &'static str,
        /// What it holds.
        value: u64,
    },
}

impl FormatError {
    /// The kind this folds into at a border.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Magic { .. } => ErrorKind::NotFound,
            Self::Version { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Data,
        }
    }
}
