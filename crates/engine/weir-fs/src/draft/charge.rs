//! Blocks and inodes that an inode adds to the usage of its user, group and project.
//!
//! `usage` changes the stored usage.
//!
//! Invariant: the charge is a function of the inode alone, so the check computes the same usage.

use std::collections::BTreeMap;

use weir_base::ObjectId;
use weir_format::files::{Inode, InodeState, OwnerId, OwnerKind};

use crate::layout::{FIRST, ROOT};

/// Blocks and inodes that an inode adds to the usage of its owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) owners: [Option<OwnerId>; 3],
    blocks: u64,
    inodes: u64,
}

impl Charge {
    /// Computes the charge of an inode; `None` for an internal inode.
    pub(crate) fn of(number: ObjectId, inode: &Inode) -> Option<Self> {
        if number != ROOT && number < FIRST {
            return None;
        }
        let of = |kind, id| Some(OwnerId { kind, id });
        // Project 0 means no project.
        let project = of(OwnerKind::Project, inode.project).filter(|owner| owner.id > 0);
        let owners = [of(OwnerKind::User, inode.uid), of(OwnerKind::Group, inode.gid), project];
        let is_file = inode.state != InodeState::Attributes;
        Some(Self { owners, blocks: inode.blocks, inodes: u64::from(is_file) })
    }

    /// Adds the charge to the usage of its owners.
    pub(crate) fn add_to(&self, usage: &mut UsageChanges, sign: i64) {
        for owner in self.owners.into_iter().flatten() {
            let change = usage.entry(owner).or_default();
            change.0 = change.0.wrapping_add(self.blocks.cast_signed().wrapping_mul(sign));
            change.1 = change.1.wrapping_add(self.inodes.cast_signed().wrapping_mul(sign));
        }
    }
}

/// Changes of blocks and inodes, by owner.
pub(crate) type UsageChanges = BTreeMap<OwnerId, (i64, i64)>;
