//! Default values of properties, and the properties of a clone.
//!
//! Not here: changing properties (`properties`).
//!
//! Invariant: a clone has the compression and dedupe of its origin, and defaults otherwise.

use weir_format::{Compression, Properties};

/// How blocks are compressed where nobody said so.
pub const DEFAULT_COMPRESSION: Compression = Compression::Lz4;

/// What a clone keeps of what was set on its origin's volume: how blocks are stored.
pub(crate) fn of_clone(origin: &Properties) -> Properties {
    Properties { compression: origin.compression, dedupe: origin.dedupe, ..Properties::default() }
}
