//! References to shared blocks that a txg adds.
//!
//! The reference counts are in `segments::reference_counts`.
//!
//! Invariant: a reference is counted in the txg that commits its pointer.

use std::ops::Range;

use weir_base::VsegId;
use weir_format::layout::PACK_BYTES;
use weir_format::{BlockPtr, FormatError, PtrKind};

use crate::error::PoolError;
use crate::segments::reference_counts::Verdict;
use crate::state::pool::Pool;
use crate::txg::write_out::WriteOut;

/// Blocks that each gain one reference, sorted by address.
pub struct Sharing {
    /// Offsets of the blocks in their segments, one entry for each new reference.
    offsets: Vec<u32>,
    segments: Vec<OfSegment>,
}

/// The new references into one segment.
struct OfSegment {
    vseg: VsegId,
    /// Range of this segment's entries in `Sharing::offsets`.
    offsets: Range<usize>,
    /// Stored bytes of the blocks, counted once for each new reference.
    bytes: u64,
}

/// A block that gains one reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shared {
    vseg: VsegId,
    offset_units: u32,
    stored_units: u16,
}

impl From<&BlockPtr> for Shared {
    fn from(ptr: &BlockPtr) -> Self {
        assert!(ptr.kind == PtrKind::Data, "only data is shared: {ptr:?}");
        let BlockPtr { vseg, offset_units, stored_units, .. } = *ptr;
        Self { vseg, offset_units, stored_units }
    }
}

impl Sharing {
    /// Collects the blocks of these pointers, in any order.
    pub fn of<'p>(ptrs: impl IntoIterator<Item = &'p BlockPtr>) -> Self {
        Self::new(ptrs.into_iter().map(Shared::from).collect())
    }

    /// Collects these blocks, in any order.
    pub fn new(mut all: Vec<Shared>) -> Self {
        all.sort_unstable();
        let mut end = 0;
        let segments = all.chunk_by(|a, b| a.vseg == b.vseg).map(|same| {
            let units: u64 = same.iter().map(|shared| u64::from(shared.stored_units)).sum();
            let start = end;
            end += same.len();
            OfSegment { vseg: same[0].vseg, offsets: start..end, bytes: units * PACK_BYTES as u64 }
        });
        let segments = segments.collect();
        Self { offsets: all.iter().map(|shared| shared.offset_units).collect(), segments }
    }

    /// For each segment: the offsets of the blocks in it, and their stored bytes.
    fn by_segment(&self) -> impl Iterator<Item = (VsegId, &[u32], u64)> {
        let of = |same: &OfSegment| (same.vseg, &self.offsets[same.offsets.clone()], same.bytes);
        self.segments.iter().map(of)
    }
}

impl Pool {
    /// Checks that each of these live blocks can gain one reference.
    ///
    /// # Errors
    /// `TooManyReferences`; the counts cannot be read; a pointer is damaged. Nothing was changed.
    pub async fn check_share(&self, sharing: &Sharing) -> Result<(), PoolError> {
        for (vseg, offsets, _) in sharing.by_segment() {
            match self.translated(|segments| segments.judge(vseg, offsets)).await? {
                Verdict::Fits => {}
                Verdict::Full => {
                    return Err(PoolError::TooManyReferences { pool: self.label.name.clone() });
                }
                Verdict::NoSegment => {
                    let (what, field) = ("block pointer", "vseg");
                    let source = FormatError::Field { what, field, value: vseg.0 };
                    let pool = self.label.name.clone();
                    return Err(PoolError::Structure { pool, what, place: None, source });
                }
            }
        }
        Ok(())
    }
}

impl WriteOut<'_> {
    /// Counts one more reference for each of these blocks. [`Pool::check_share`] must have
    /// succeeded, with nothing freed since.
    ///
    /// # Errors
    /// The counts cannot be read: the write-out has failed.
    pub async fn share(&mut self, sharing: &Sharing) -> Result<(), PoolError> {
        for (vseg, offsets, bytes) in sharing.by_segment() {
            self.pool.translated(|segments| segments.share(vseg, offsets, bytes)).await?;
        }
        Ok(())
    }
}
