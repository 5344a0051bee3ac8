//! The difference that a change of a tree makes to the space of its dataset.
//!
//! Not here: the trees (`radix_tree`), the accounts (weir-dataset).
//!
//! Invariant: a delta of several changes is the sum of their deltas.

use std::ops::AddAssign;

use weir_format::{BlockPtr, PtrKind};

/// What a set of changes did to a tree's use of space: gained less lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Blocks of 4 KiB.
    pub blocks: i64,
    /// Stored units, nodes not counted.
    pub stored_units: i64,
    /// Of those, what was there before and is referred to.
    pub shared_units: i64,
    /// Stored units, nodes included.
    pub tree_units: i64,
    /// Of those, what was born after everything earlier versions hold: what is not freed leaves
    /// them behind.
    pub born_units: i64,
    /// Freed of a version that is being destroyed: it was passed there, so nothing else holds it.
    pub leaving_units: i64,
    /// What the newest snapshot has for itself now that the tree has it no more.
    pub unique_units: i64,
    /// What was inherited from the line it was cloned from.
    pub inherited_units: i64,
}

impl Delta {
    pub(crate) fn gain(&mut self, ptr: &BlockPtr) {
        self.count(ptr, 1);
        if ptr.leads_to_block() {
            self.born_units += i64::from(ptr.stored_units);
        }
    }

    /// Counts what a walk found.
    pub fn count_found(&mut self, ptr: &BlockPtr) {
        self.count(ptr, 1);
    }

    pub(crate) fn count(&mut self, ptr: &BlockPtr, sign: i64) {
        if !ptr.leads_to_block() {
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
