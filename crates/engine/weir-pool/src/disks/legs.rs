//! The legs of a vdev: a list that grows, and whose members leave, while others read it.
//!
//! Not here: when that may be done (`topology`), one leg (`leg`), the vdevs of a pool (`vdevs`).
//!
//! Invariants:
//! - who somebody looks at stays where it is until the pool is closed, in use or not;
//! - a position keeps its number, because rows of raidz are laid out by it.

use std::ops::Index;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::disks::leg::Leg;

/// One position: who has it now, and who had it before.
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

/// The legs of a vdev.
pub(crate) struct Legs(boxcar::Vec<Position>);

impl Legs {
    pub(crate) fn new(legs: Vec<Leg>) -> Self {
        Self(legs.into_iter().map(Position::of).collect())
    }

    /// Those that belong to the vdev now.
    pub(crate) fn iter(&self) -> Iter<'_> {
        Iter { legs: self, next: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    /// Adds one.
    pub(crate) fn push(&self, leg: Leg) -> &Leg {
        let index = self.0.push(Position::of(leg));
        &self[index]
    }

    /// Puts another in the place of `old`.
    pub(crate) fn replace(&self, old: &Leg, new: Leg) -> &Leg {
        let position = self.position(old);
        position.holders.push(new);
        position.holder()
    }

    /// Takes one out of the list.
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
