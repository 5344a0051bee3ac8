//! Delta: the effect of tree changes on the space of their dataset.
//!
//! The trees are in `radix_tree`, the dataset's counters in weir-dataset.
//!
//! Invariant: the delta of several changes is the sum of their deltas.

use std::ops::AddAssign;

use weir_format::{BlockPtr, PtrKind};

/// Space that a set of changes added to a tree, less the space that they removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Blocks of 4 KiB.
    pub blocks: i64,
    /// Stored units of data; tree nodes are not counted.
    pub stored_units: i64,
    /// Part of `stored_units` in shared references: the referenced blocks existed before the
    /// reference was made.
    pub shared_units: i64,
    /// Stored units, tree nodes included.
    pub tree_units: i64,
    /// Part of `tree_units` born after the newest earlier version of the volume ended. Older units
    /// that the tree drops stay allocated for the earlier versions.
    pub born_units: i64,
    /// Units that the tree frees on behalf of a version that is being destroyed: only that version
    /// references the units, and its freeing has already passed their index.
    pub leaving_units: i64,
    /// Units that only the newest snapshot still references, because the tree dropped them.
    pub unique_units: i64,
    /// Units inherited from the snapshot chain of the clone's origin.
    pub inherited_units: i64,
}

impl Delta {
    pub(crate) fn gain(&mut self, ptr: &BlockPtr) {
        self.count(ptr, 1);
        if ptr.is_stored() {
            self.born_units += i64::from(ptr.stored_units);
        }
    }

    /// Counts a pointer that a tree diff returned.
    pub fn count_found(&mut self, ptr: &BlockPtr) {
        self.count(ptr, 1);
    }

    pub(crate) fn count(&mut self, ptr: &BlockPtr, sign: i64) {
        if !ptr.is_stored() {
            return;
        }
        let units = sign * i64::from(ptr.stored_units);
        self.tree_units += units;
        if ptr.kind == PtrKind::Data {
            self.blocks += sign * ptr.record.blocks().cast_signed();
            self.stored_units += units;
            self.shared_units += if ptr.shared { units } else { 0 };
        }
    }
}

impl AddAssign for Delta {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.stored_units += other.stored_units;
        self.shared_units += other.shared_units;
        self.tree_units += other.tree_units;
        self.born_units += other.born_units;
        self.leaving_units += other.leaving_units;
        self.unique_units += other.unique_units;
        self.inherited_units += other.inherited_units;
    }
}
