//! Units and identifiers as newtypes, so that a txg cannot be passed in place of a block number.
//!
//! weir-format encodes these values on disk.
//!
//! Invariant: in memory, identifiers are plain numbers. The widths in the comments are on-disk
//! widths.

use std::fmt;

/// Length of a volume block in bytes. The block is the unit of checksums, compression and mapping.
pub const BLOCK_BYTES: usize = 4096;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// Transaction group number; each commit increments it (44 bits on disk).
    Txg, u64
);
id!(
    /// Block number in a dataset: byte offset divided by [`BLOCK_BYTES`].
    BlockId, u64
);
id!(
    /// Number of a dataset in its pool; never reused.
    DatasetId, u64
);
id!(
    /// Object number in a dataset (44 bits on disk). A volume has only [`ObjectId::VOLUME`].
    ObjectId, u64
);
id!(
    /// Log sequence number: the position of a write in the order in which the pool acknowledged
    /// writes since the pool's import.
    Lsn, u64
);
id!(
    /// Number of a virtual segment; never reused (40 bits on disk). Block pointers contain this
    /// number, and the segment table has the location of the segment.
    VsegId, u64
);
id!(
    /// Number of a physical segment: its position in one vdev.
    PsegIndex, u32
);
id!(
    /// Random identity of a pool or a disk, chosen at creation.
    Guid, u64
);

impl ObjectId {
    /// The only object of a volume: its records.
    pub const VOLUME: Self = Self(0);
    /// The object table of a dataset with many objects. It has a slot for each other object.
    pub const TABLE: Self = Self(0);
}

impl Txg {
    /// Returns the number of the transaction group after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
