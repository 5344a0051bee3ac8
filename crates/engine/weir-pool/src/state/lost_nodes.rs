//! Unreadable tree nodes, and the counters that are wrong because of them.
//!
//! Not here: the search for them (`tree`), the recount (`damage`).
//!
//! Invariant: one piece of work tries an unreadable node once.

use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;
use weir_base::hash::{HashMap, HashSet};
use weir_base::{Txg, VsegId};
use weir_block::BlockMut;
use weir_format::{BlockPtr, set_node_pointer};

use crate::error::PoolError;

/// Nodes that were found unreadable in one piece of work, by address, so that each is tried once.
pub(crate) type Unreadable = HashMap<u64, PoolError>;

/// Where stored bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskPlace {
    /// Vdev, by place in the label.
    pub vdev: u16,
    /// Byte offset on each of its disks.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
}

/// What a pool knows of its damaged trees.
#[derive(Default)]
pub(crate) struct LostNodes {
    /// Txg; 0: none.
    pub(crate) since: AtomicU64,
    /// Counts up whenever damage is met by something that changes the pool.
    pub(crate) met: AtomicU64,
    /// Whether something went since the last recount.
    pub(crate) recount: AtomicBool,
    /// What the next write-out takes from counters.
    pub(crate) excess: Mutex<Vec<Excess>>,
    /// Copies of the pool's own trees that were bad at the last look, by segment and place there.
    pub(crate) bad_roots: Mutex<HashSet<(VsegId, u64)>>,
}

/// A node in which the first `slots` are this marker. The others are holes.
pub(crate) fn node_of_markers(marker: &BlockPtr, slots: usize) -> BlockMut {
    assert!(marker.is_damaged(), "{marker:?} is no marker");
    let mut node = BlockMut::zeroed();
    (0..slots).for_each(|slot| set_node_pointer(&mut node, slot, marker));
    node
}

/// What damage markers tell of a node that is not at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Marker {
    /// None needs it.
    None,
    /// One may need it: that cannot be told before the node that it names is read.
    Unknown,
    /// One names it.
    Names,
}

/// What a segment counts beyond what lives of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Excess {
    pub(crate) vseg: VsegId,
    pub(crate) bytes: u64,
    /// As of this commit.
    pub(crate) seen: Txg,
}

/// A count of references that is not what the trees say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongCount {
    /// Of one block.
    References {
        /// Segment that pointers to it name.
        vseg: VsegId,
        /// Byte offset in it.
        offset: u64,
        /// As the segment's table says; 0 if the block is not in it.
        counted: u64,
        /// Pointers that lead to it.
        found: u64,
    },
    /// Of all: the bytes that sharing saves.
    Saved {
        /// As the pool says.
        counted: u64,
        /// As the trees say.
        found: u64,
    },
}

impl WrongCount {
    /// Whether more is counted than was found.
    pub(crate) fn exceeds(&self) -> bool {
        match self {
            Self::References { counted, found, .. } | Self::Saved { counted, found } => {
                counted > found
            }
        }
    }
}
