//! The version of a volume that a tree belongs to.
//!
//! Not here: the trees (`radix_tree`), the chain of versions (`snapshot_chain`).
//!
//! Invariant: volume and txg name at most one version.

use weir_base::{DatasetId, Txg};

/// The version of a volume that a tree belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeOf {
    /// The volume.
    pub volume: DatasetId,
    /// The last txg that the version shows; [`Version::NOW`](crate::Version::NOW) of a volume as it
    /// is.
    pub version: Txg,
}
