//! All vdevs of a pool, by number.
//!
//! Not here: a single vdev (`vdev`), its legs (`legs`).
//!
//! Invariants:
//! - a vdev stays in memory until the pool is closed, even after its removal;
//! - a vdev keeps its number, because on-disk addresses contain it.

use std::ops::Index;
use std::sync::Arc;

use weir_format::VdevRole;

use crate::disks::leg::Leg;
use crate::disks::owner_guard::OwnerGuard;
use crate::disks::vdev::Vdev;

/// Vdevs of a pool, by number. Boxed, because the struct is passed by value.
pub(crate) struct Vdevs(Box<Inner>);

pub(crate) struct Inner {
    pub(crate) list: boxcar::Vec<Vdev>,
    guard: Arc<OwnerGuard>,
}

impl Vdevs {
    pub(crate) fn new(vdevs: Vec<Vdev>, guard: Arc<OwnerGuard>) -> Self {
        Self(Box::new(Inner { list: vdevs.into_iter().collect(), guard }))
    }

    /// Owner check that runs before each write to the disks.
    pub(crate) fn guard(&self) -> &Arc<OwnerGuard> {
        &self.0.guard
    }

    /// All vdevs, including removed ones.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Vdev> {
        self.0.list.iter().map(|(_, vdev)| vdev)
    }

    /// Vdevs that were not removed, including spares.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Vdev> {
        self.all().filter(|vdev| vdev.role() != VdevRole::Removed)
    }

    /// Vdevs that commits write to.
    pub(crate) fn in_service(&self) -> impl Iterator<Item = &Vdev> {
        self.iter().filter(|vdev| vdev.role() != VdevRole::Spare)
    }

    /// Vdevs that hold segments.
    pub(crate) fn with_segments(&self) -> impl Iterator<Item = &Vdev> {
        self.iter().filter(|vdev| vdev.role().holds_segments())
    }

    /// Legs of all vdevs that were not removed.
    pub(crate) fn legs(&self) -> impl Iterator<Item = &Leg> {
        self.iter().flat_map(|vdev| &vdev.legs)
    }

    /// Number that the next new vdev gets.
    pub(crate) fn count(&self) -> usize {
        self.0.list.count()
    }

    /// Adds a vdev under its own number.
    pub(crate) fn push(&self, vdev: Vdev) -> &Vdev {
        let number = usize::from(vdev.index);
        let index = self.0.list.push(vdev);
        assert_eq!(index, number, "one vdev is added at a time");
        &self.0.list[index]
    }
}

impl Index<usize> for Vdevs {
    type Output = Vdev;

    fn index(&self, index: usize) -> &Vdev {
        &self.0.list[index]
    }
}
