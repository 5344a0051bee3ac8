//! Identifies the volume version and the object that a tree belongs to.
//!
//! The trees are in `radix_tree`, the snapshot chains in `snapshot_chain`.
//!
//! Invariant: volume and txg name at most one version.

use weir_base::{DatasetId, ObjectId, Txg};

/// Volume version and object that a tree belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeOf {
    /// The volume.
    pub volume: DatasetId,
    /// Object of the volume.
    pub object: ObjectId,
    /// Last txg in the version; [`Version::HEAD`](crate::Version::HEAD) for the head of the volume.
    pub version: Txg,
}
