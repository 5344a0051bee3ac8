//! Errors of the decoders.
//!
//! The caller adds the disk and the offset of the bytes.
//!
//! Invariant: every variant names the structure and the fault.

use weir_base::{ErrorKind, Guid};

use crate::layout::{FORMAT_VERSION, OLDEST_VERSION};

/// Bytes that are not a valid structure of the expected type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The magic number is missing: the bytes are another structure or none.
    #[error("{what}: no Weir {what} here")]
    Magic {
        /// Name of the structure.
        what: &'static str,
    },
    /// The checksum does not match the bytes.
    #[error("{what}: checksum mismatch")]
    Checksum {
        /// Name of the structure.
        what: &'static str,
    },
    /// A newer Weir wrote the structure.
    #[error("{what}: format version {found} is newer than {supported}; use a newer weir")]
    Version {
        /// Name of the structure.
        what: &'static str,
        /// Version on disk.
        found: u32,
        /// Newest version that this program reads.
        supported: u32,
        /// Guid of the pool to which the structure belongs.
        pool: Guid,
    },
    /// An older Weir wrote the structure, in a format that this Weir no longer reads.
    #[error(
        "{what}: format version {found} is older than {supported}: the pool was made by an older \
         pre-release, which this weir cannot import; run that weir again and copy the data to a \
         new pool"
    )]
    OlderVersion {
        /// Name of the structure.
        what: &'static str,
        /// Version on disk.
        found: u32,
        /// Oldest version that this program reads.
        supported: u32,
    },
    /// The label has a feature flag that this Weir does not know.
    #[error("{what}: the pool uses a feature that this weir lacks: {needs}")]
    Feature {
        /// Name of the structure.
        what: &'static str,
        /// Text of the flag: the version of Weir that is needed.
        needs: Box<str>,
        /// Guid of the pool to which the label belongs.
        pool: Guid,
    },
    /// A dataset record or the pool record stores bytes that are no valid value of the property.
    #[error("record of {of}: property {property} has an invalid value of {bytes} bytes")]
    Property {
        /// Name of the dataset, or `the pool`.
        of: Box<str>,
        /// Name of the property.
        property: &'static str,
        /// Length of the stored value.
        bytes: u64,
    },
    /// The bytes end before the end of the structure.
    #[error("{what}: truncated")]
    Truncated {
        /// Name of the structure.
        what: &'static str,
    },
    /// A field has an invalid value.
    #[error("{what}: field {field} holds the impossible value {value}")]
    Field {
        /// Name of the structure.
        what: &'static str,
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
}

impl FormatError {
    /// True if another version of Weir wrote the structure and can read it.
    pub fn is_other_version(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::OlderVersion { .. } | Self::Feature { .. })
    }

    /// Guid of the pool, if a newer Weir wrote the structure. The guid is reliable: a checksum
    /// covers it, the version and the flags.
    pub fn newer_pool(&self) -> Option<Guid> {
        match self {
            Self::Version { pool, .. } | Self::Feature { pool, .. } => Some(*pool),
            _ => None,
        }
    }

    /// Refuses format versions that this program does not read.
    pub(crate) fn check_version(what: &'static str, found: u32, pool: Guid) -> Result<(), Self> {
        match found {
            OLDEST_VERSION..=FORMAT_VERSION => Ok(()),
            // No release ever wrote version 0.
            0 => Err(Self::Field { what, field: "version", value: 0 }),
            1..OLDEST_VERSION => Err(Self::OlderVersion { what, found, supported: OLDEST_VERSION }),
            _ => Err(Self::Version { what, found, supported: FORMAT_VERSION, pool }),
        }
    }

    /// Maps the error to its [`ErrorKind`], for callers outside the engine.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Magic { .. } => ErrorKind::NotFound,
            Self::Version { .. } | Self::OlderVersion { .. } | Self::Feature { .. } => {
                ErrorKind::Invalid
            }
            _ => ErrorKind::Data,
        }
    }
}
