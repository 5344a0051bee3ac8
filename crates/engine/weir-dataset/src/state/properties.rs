//! Values of properties that nothing sets.
//!
//! Not here: changing properties (`properties`).
//!
//! Invariant: a clone begins with the properties of its source.

use weir_format::{Compression, Properties};

/// How blocks are compressed where nobody said so.
pub const DEFAULT_COMPRESSION: Compression = Compression::Lz4;

/// What a clone keeps of what was set on its origin's volume: how blocks are stored.
pub(crate) fn of_clone(origin: &Properties) -> Properties {
    Properties { compression: origin.compression, dedupe: origin.dedupe, ..Properties::default() }
}
