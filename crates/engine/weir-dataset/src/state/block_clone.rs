//! Block clones that no txg has committed yet.
//!
//! `copy` creates the block clones.
//!
//! Invariant: a clone keeps its source volume alive until the clone is committed.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use weir_base::RecordSize;

use crate::error::DatasetError;
use crate::state::volume::Volume;

/// A range of records that becomes a reference to a range of another volume.
pub(crate) struct BlockClone {
    pub(crate) source: Arc<Volume>,
    /// First record in the source.
    pub(crate) from: u64,
    /// Destination records.
    pub(crate) to: Range<u64>,
    /// Record size of both volumes.
    pub(crate) size: RecordSize,
    /// Bytes of pool space reserved for the clone.
    pub(crate) charge: u64,
    pub(crate) failed: Failure,
}

/// Error of a failed clone.
pub(crate) type Failure = Arc<Mutex<Option<DatasetError>>>;

impl BlockClone {
    /// Upper bound of the bytes that the clone can add to the used space of its volume: references
    /// count like blocks.
    pub(crate) fn weight(&self) -> u64 {
        (self.to.end - self.to.start) * self.size.bytes() as u64 + self.charge
    }

    /// Source volume and first source record.
    pub(crate) fn source(&self) -> (&Volume, u64) {
        (&self.source, self.from)
    }

    /// Destination records.
    pub(crate) fn range(&self) -> Range<u64> {
        self.to.clone()
    }

    pub(crate) fn fail(&self, error: DatasetError) {
        self.failed.lock().get_or_insert(error);
    }
}
