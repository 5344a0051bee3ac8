//! Owner of a live block, for reports of damage.
//!
//! The search for live blocks is in `tree::live`.
//!
//! Invariant: a block has one owner, or is shared.

use weir_base::{DatasetId, ObjectId, Txg};
use weir_format::PoolPart;

/// Owner of a block of a segment: the data that is lost if the block is unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiveOf {
    /// A record or node of an object of a volume, in the version that ended with txg `version`, and
    /// possibly in later versions.
    Volume { volume: DatasetId, object: ObjectId, level: u8, index: u64, birth: Txg, version: Txg },
    /// A block with several references, by its address.
    Shared(u64),
    /// A block of a metadata tree, with the lowest dataset or segment number that the block covers.
    Part(PoolPart, u64),
}
