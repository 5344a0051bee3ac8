//! Unreadable tree nodes, and the counters that are wrong because of them.
//!
//! The search for unreadable nodes is in `tree`, the recount in `damage`.
//!
//! Invariant: one operation tries to read an unreadable node only once.

use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;
use weir_base::hash::{HashMap, HashSet};
use weir_base::{Txg, VsegId};
use weir_block::BlockMut;
use weir_format::{BlockPtr, set_node_pointer};

use crate::error::PoolError;

/// Nodes that one operation found unreadable, by address. The operation tries each node once.
pub(crate) type Unreadable = HashMap<u64, PoolError>;

/// Location of stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskAddress {
    /// Number of the vdev in the label.
    pub vdev: u16,
    /// Byte offset on each disk of the vdev.
    pub offset: u64,
    /// Length of the stored bytes.
    pub len: usize,
}

/// State of a pool with damaged trees.
#[derive(Default)]
pub(crate) struct LostNodes {
    /// First txg in which a change found damage; 0: none.
    pub(crate) since: AtomicU64,
    /// Number of times that a change of the pool found damage.
    pub(crate) met: AtomicU64,
    /// Newest txg in which a change of the pool found damage.
    pub(crate) newest: AtomicU64,
    /// True if a recount was requested.
    pub(crate) recount: AtomicBool,
    /// Leaked bytes that the next write-out subtracts from counters.
    pub(crate) leaks: Mutex<Vec<Leak>>,
    /// Copies of metadata blocks that were bad at the last scan, by segment and offset.
    pub(crate) bad_roots: Mutex<HashSet<(VsegId, u64)>>,
}

/// Builds a node with this damage marker in the first `slots` slots and holes in the others.
pub(crate) fn node_of_markers(marker: &BlockPtr, slots: usize) -> BlockMut {
    assert!(marker.is_damaged(), "{marker:?} is no marker");
    let mut node = BlockMut::zeroed();
    (0..slots).for_each(|slot| set_node_pointer(&mut node, slot, marker));
    node
}

/// Result of searching a tree for damage markers that name a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Marker {
    /// No marker names the node.
    None,
    /// A marker may name the node indirectly. Only a read of the node that this marker names can
    /// decide.
    Unknown,
    /// A marker names the node.
    Names,
}

/// Space leak: bytes that a segment counts in addition to its live blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leak {
    pub(crate) vseg: VsegId,
    pub(crate) bytes: u64,
    /// Commit at which the leak was found.
    pub(crate) seen: Txg,
}

/// A stored count of references that disagrees with the trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongCount {
    /// The reference count of one block is wrong.
    References {
        /// Segment that the block's pointers name.
        vseg: VsegId,
        /// Byte offset of the block in the segment.
        offset: u64,
        /// Count in the segment's reference table; 0 if the table lacks the block.
        counted: u64,
        /// Number of pointers to the block.
        found: u64,
    },
    /// The pool's counter of the bytes that sharing saves is wrong.
    Saved {
        /// Value of the pool's counter.
        counted: u64,
        /// Sum of the saved bytes over the trees.
        found: u64,
    },
}

impl WrongCount {
    /// True if the stored count is too high.
    pub(crate) fn exceeds(&self) -> bool {
        match self {
            Self::References { counted, found, .. } | Self::Saved { counted, found } => {
                counted > found
            }
        }
    }
}
