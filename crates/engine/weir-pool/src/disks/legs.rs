//! Legs of a vdev: a list that tasks can read while legs join and leave.
//!
//! Not here: the conditions for such a change (`topology`), a single leg (`leg`), the vdevs of a
//! pool (`vdevs`).
//!
//! Invariants:
//! - a leg stays at its memory address until the pool is closed, even after it left, so that
//!   references to it stay valid;
//! - the index of a leg's position in its vdev never changes, even if other legs leave or the leg
//!   is replaced: the strips of a raidz leg depend on the index.

use std::ops::Index;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::disks::leg::Leg;

/// One position of a vdev: its current leg, and the legs that were replaced there.
struct Position {
    holders: boxcar::Vec<Leg>,
    left: AtomicBool,
}

impl Position {
    fn of(leg: Leg) -> Self {
        Self { holders: boxcar::vec![leg], left: AtomicBool::new(false) }
    }

    fn holder(&self) -> &Leg {
        let newest = self.holders.iter().last();
        newest.map(|(_, leg)| leg).expect("a position begins with a leg")
    }
}

/// Legs of a vdev.
pub(crate) struct Legs(boxcar::Vec<Position>);

impl Legs {
    pub(crate) fn new(legs: Vec<Leg>) -> Self {
        Self(legs.into_iter().map(Position::of).collect())
    }

    /// Current legs of the vdev.
    pub(crate) fn iter(&self) -> Iter<'_> {
        Iter { legs: self, next: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    /// Appends a leg.
    pub(crate) fn push(&self, leg: Leg) -> &Leg {
        let index = self.0.push(Position::of(leg));
        &self[index]
    }

    /// Puts another leg at the position of `old`.
    pub(crate) fn replace(&self, old: &Leg, new: Leg) -> &Leg {
        let position = self.position(old);
        position.holders.push(new);
        position.holder()
    }

    /// Removes a leg from the list.
    pub(crate) fn remove(&self, leg: &Leg) {
        self.position(leg).left.store(true, Ordering::Release);
    }

    fn position(&self, leg: &Leg) -> &Position {
        let mut all = self.0.iter().map(|(_, position)| position);
        all.find(|position| std::ptr::eq(position.holder(), leg)).expect("a leg of this vdev")
    }
}

impl Index<usize> for Legs {
    type Output = Leg;

    fn index(&self, index: usize) -> &Leg {
        self.0[index].holder()
    }
}

/// Legs in the order of their positions.
pub(crate) struct Iter<'a> {
    legs: &'a Legs,
    next: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Leg;

    fn next(&mut self) -> Option<&'a Leg> {
        loop {
            let position = self.legs.0.get(self.next)?;
            self.next += 1;
            if !position.left.load(Ordering::Acquire) {
                return Some(position.holder());
            }
        }
    }
}

impl<'a> IntoIterator for &'a Legs {
    type Item = &'a Leg;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}
