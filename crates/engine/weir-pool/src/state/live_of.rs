//! Which owner a live block has, for reports of damage.
//!
//! Not here: finding live blocks (`tree::live`).
//!
//! Invariant: a block has one owner, or is shared.

use weir_base::{DatasetId, Txg};
use weir_format::PoolPart;

/// What is lost with something that lives in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiveOf {
    /// A record or node of a volume, in the version that ended with this txg and maybe later ones.
    Volume { volume: DatasetId, level: u8, index: u64, birth: Txg, version: Txg },
    /// A block with several references, by its address.
    Shared(u64),
    /// A part of the pool's own structures.
    Part(PoolPart, u64),
}
