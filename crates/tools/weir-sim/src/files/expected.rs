//! Expected state of the pool: a filesystem, its clone, their snapshots and a replica.
//!
//! `book` has the changes of one filesystem, `recovery` compares a recovered pool.
//!
//! Invariant: a call of the operator is recorded as pending before it starts, and as acknowledged
//! in the step of the executor in which it returns.

use std::ops::RangeInclusive;
use std::rc::Rc;

use super::book::Book;
use super::content::{Inode, State};
use super::sent::{FilesContent, no_replica};
use crate::history::Presence;
use crate::replication::replica::Replica;

/// Names of the filesystem and of its clone.
pub(super) const NAMES: [&str; 2] = ["files", "copy"];

/// Expected state of a filesystem.
#[derive(Clone)]
pub(super) struct Dataset {
    pub(super) presence: Presence,
    pub(super) book: Book,
    /// State to which a pending rollback returns.
    pub(super) rolling: Option<Rc<State>>,
}

/// Content of a snapshot.
#[derive(Clone)]
pub(super) enum Cut {
    /// The state after one of these changes.
    After(RangeInclusive<u64>),
    Known(Rc<State>),
}

/// Expected state of a snapshot.
#[derive(Clone)]
pub(super) struct Snapshot {
    pub(super) name: String,
    /// Index of its filesystem.
    pub(super) owner: usize,
    pub(super) presence: Presence,
    pub(super) cut: Cut,
}

/// Expected state of the pool.
#[derive(Clone)]
pub(super) struct Expected {
    pub(super) datasets: [Dataset; 2],
    /// Snapshots in the order of their creation.
    pub(super) snapshots: Vec<Snapshot>,
    pub(super) replica: Replica<FilesContent>,
}

impl Expected {
    /// A pool with an empty filesystem. `folds`: the filesystem is case-insensitive.
    pub(super) fn new(root: Inode, folds: bool) -> Self {
        let dataset = |presence| Dataset {
            presence,
            book: Book::of_state(root, folds, &State::default()),
            rolling: None,
        };
        let datasets = [Presence::There, Presence::Gone].map(dataset);
        Self { datasets, snapshots: Vec::new(), replica: no_replica() }
    }

    /// Finds a snapshot that exists.
    pub(super) fn snapshot(&self, name: &str) -> Option<&Snapshot> {
        let mut there = self.snapshots.iter().filter(|book| book.presence == Presence::There);
        there.find(|book| book.name == name)
    }

    /// Sets the presence of snapshots.
    pub(super) fn mark(&mut self, names: &[String], presence: Presence) {
        let named = self.snapshots.iter_mut().filter(|book| names.contains(&book.name));
        named.for_each(|book| book.presence = presence);
    }

    /// Names of the existing snapshots of the same filesystem that are newer than a snapshot.
    pub(super) fn newer_than(&self, snapshot: &Snapshot) -> Vec<String> {
        let after = self.snapshots.iter().skip_while(|book| book.name != snapshot.name).skip(1);
        let newer =
            after.filter(|book| (book.owner, book.presence) == (snapshot.owner, Presence::There));
        newer.map(|book| book.name.clone()).collect()
    }
}
