//! Why bytes were not what they should be.
//!
//! Not here: where the bytes came from; the caller adds disk and offset.
//!
//! Invariant: every variant names the structure and what was wrong with it.

use weir_base::ErrorKind;

use crate::layout::FORMAT_VERSION;

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
    /// Written by an older Weir in a format that is not read any more.
    #[error(
        "{what}: format version {found} is older than {supported}: the pool was made by an older \
         pre-release, which this weir cannot import; run that weir again and copy the data to a \
         new pool"
    )]
    OlderVersion {
        /// Structure.
        what: &'static str,
        /// Version on disk.
        found: u32,
        /// Oldest version this program reads.
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
    /// Whether another Weir than this one wrote it, and reads it.
    pub fn is_other_version(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::OlderVersion { .. })
    }

    /// Refuses what is not of this program's format.
    pub(crate) fn check_version(what: &'static str, found: u32) -> Result<(), Self> {
        let supported = FORMAT_VERSION;
        match found {
            FORMAT_VERSION => Ok(()),
            // No weir ever wrote that.
            0 => Err(Self::Field { what, field: "version", value: 0 }),
            _ if found > supported => Err(Self::Version { what, found, supported }),
            _ => Err(Self::OlderVersion { what, found, supported }),
        }
    }

    /// The kind this folds into at a border.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Magic { .. } => ErrorKind::NotFound,
            Self::Version { .. } | Self::OlderVersion { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Data,
        }
    }
}
