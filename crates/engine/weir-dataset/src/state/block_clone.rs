//! Clones of ranges that no txg has committed.
//!
//! Not here: making them (`copy`).
//!
//! Invariant: a clone holds its source until it is committed.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use weir_base::RecordSize;

use crate::error::DatasetError;
use crate::state::volume::Volume;

/// A range that is to become what another one is.
pub(crate) struct RangeClone {
    pub(crate) source: Arc<Volume>,
    /// First record there.
    pub(crate) from: u64,
    /// Records here.
    pub(crate) to: Range<u64>,
    /// Of both volumes.
    pub(crate) size: RecordSize,
    /// Bytes of the pool's space that were promised to it.
    pub(crate) charge: u64,
    pub(crate) failed: Failure,
}

/// Why a clone came to nothing.
pub(crate) type Failure = Arc<Mutex<Option<DatasetError>>>;

impl RangeClone {
    /// The most that it can add to what its volume uses: references count there as blocks do.
    pub(crate) fn weight(&self) -> u64 {
        (self.to.end - self.to.start) * self.size.bytes() as u64 + self.charge
    }

    /// Where it is from: the volume, and the first record there.
    pub(crate) fn source(&self) -> (&Volume, u64) {
        (&self.source, self.from)
    }

    /// The records that it changes.
    pub(crate) fn range(&self) -> Range<u64> {
        self.to.clone()
    }

    pub(crate) fn fail(&self, error: DatasetError) {
        self.failed.lock().get_or_insert(error);
    }
}
