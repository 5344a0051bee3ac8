//! All vdevs of a pool, in the order of their numbers.
//!
//! Not here: one vdev (`vdev`), the legs of one (`legs`).
//!
//! Invariants:
//! - a vdev stays in memory until the pool is closed, in use or not;
//! - a vdev keeps its number, because places on disk are named by it.

use std::ops::Index;
use std::sync::Arc;

use weir_format::VdevRole;

use crate::disks::leg::Leg;
use crate::disks::owner_guard::OwnerGuard;
use crate::disks::vdev::Vdev;

/// The vdevs of a pool, by number; boxed, because they are handed on by value.
pub(crate) struct Vdevs(Box<Inner>);

pub(crate) struct Inner {
    pub(crate) list: boxcar::Vec<Vdev>,
    guard: Arc<OwnerGuard>,
}

impl Vdevs {
    pub(crate) fn new(vdevs: Vec<Vdev>, guard: Arc<OwnerGuard>) -> Self {
        Self(Box::new(Inner { list: vdevs.into_iter().collect(), guard }))
    }

    /// The owner check before each write to their disks.
    pub(crate) fn guard(&self) -> &Arc<OwnerGuard> {
        &self.0.guard
    }

    /// Every number ever given out.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Vdev> {
        self.0.list.iter().map(|(_, vdev)| vdev)
    }

    /// Those that were not removed, spares among them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Vdev> {
        self.all().filter(|vdev| vdev.role() != VdevRole::Removed)
    }

    /// Those that commits write to.
    pub(crate) fn in_service(&self) -> impl Iterator<Item = &Vdev> {
        self.iter().filter(|vdev| vdev.role() != VdevRole::Spare)
    }

    /// Those that hold segments.
    pub(crate) fn with_segments(&self) -> impl Iterator<Item = &Vdev> {
        self.iter().filter(|vdev| vdev.role().holds_segments())
    }

    /// Every disk of the pool.
    pub(crate) fn legs(&self) -> impl Iterator<Item = &Leg> {
        self.iter().flat_map(|vdev| &vdev.legs)
    }

    /// Number of the next one.
    pub(crate) fn count(&self) -> usize {
        self.0.list.count()
    }

    /// Adds one, under the number it was made with.
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
