//! Operator of a run: takes and destroys snapshots, clones them, sends them, and rolls filesystems
//! back, while clients change the filesystems.
//!
//! `expected` has the expected state, `clones` has clones and rollbacks, `replicas` has streams.
//!
//! Invariants:
//! - one call runs at a time;
//! - no client uses a filesystem that is rolled back or destroyed;
//! - a snapshot is read after its acknowledgement, and its content never changes afterwards.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use weir_dataset::{DatasetError, Engine, SnapshotId};

use super::access::Access;
use super::content::State;
use super::expected::{Cut, Dataset, Expected, NAMES, Snapshot};
use super::pool::read_snapshot;
use crate::executor::Executor;
use crate::history::Presence;
use crate::rng::Rng;

/// Maximum number of snapshots of a filesystem.
const SNAPSHOTS_MAX: usize = 3;

#[expect(clippy::needless_pass_by_value, reason = "map_err passes the error by value")]
pub(super) fn told(error: DatasetError) -> String {
    format!("the operator received an error: {error}")
}

/// The operator.
pub(super) struct Operator {
    pub(super) rng: Rng,
    pub(super) engine: Arc<Engine>,
    pub(super) executor: Executor,
    pub(super) expected: Rc<RefCell<Expected>>,
    pub(super) accesses: [Rc<Access>; 2],
    /// Number of snapshots that were taken.
    pub(super) taken: u64,
}

impl Operator {
    pub(super) fn expected<T>(&self, of: impl FnOnce(&mut Expected) -> T) -> T {
        of(&mut self.expected.borrow_mut())
    }

    pub(super) fn dataset<T>(&self, index: usize, of: impl FnOnce(&mut Dataset) -> T) -> T {
        self.expected(|expected| of(&mut expected.datasets[index]))
    }

    /// Performs one call.
    ///
    /// # Errors
    /// An unexpected error, or a violation.
    pub(super) async fn step(&mut self) -> Result<(), String> {
        let has_copy = self.dataset(1, |of| of.presence) == Presence::There;
        let owner = usize::from(has_copy && self.rng.below(3) == 0);
        match self.rng.below(18) {
            0..2 => self.destroy_some().await,
            2..4 if has_copy => self.destroy_copy().await,
            2..6 if !has_copy => self.clone_some().await,
            6..8 => self.roll_back().await,
            8..14 => self.replicate().await,
            _ => self.take(owner).await,
        }
    }

    /// Draws a snapshot that exists.
    pub(super) fn some_snapshot(&mut self) -> Option<Snapshot> {
        let there: Vec<Snapshot> = self.expected(|expected| {
            let all = expected.snapshots.iter();
            all.filter(|book| book.presence == Presence::There).cloned().collect()
        });
        (!there.is_empty()).then(|| there[self.rng.index(there.len())].clone())
    }

    pub(super) async fn take(&mut self, owner: usize) -> Result<(), String> {
        let is_own = |book: &&Snapshot| (book.owner, book.presence) == (owner, Presence::There);
        let count = self.expected(|expected| expected.snapshots.iter().filter(is_own).count());
        if count >= SNAPSHOTS_MAX {
            return Ok(());
        }
        self.taken += 1;
        let (name, first) = (format!("s{}", self.taken), self.dataset(owner, |of| of.book.seq()));
        self.expected(|expected| {
            let (presence, cut) = (Presence::Creating, Cut::After(first..=u64::MAX));
            expected.snapshots.push(Snapshot { name: name.clone(), owner, presence, cut });
        });
        let id = SnapshotId::new(NAMES[owner], &name);
        self.engine.create_snapshots(std::slice::from_ref(&id)).await.map_err(told)?;
        let taken = first..=self.dataset(owner, |of| of.book.seq());
        self.expected(|expected| {
            // The commit of the snapshot made the changes before the call durable.
            expected.datasets[owner].book.set_durable(first);
            let book = expected.snapshots.last_mut().expect("just added");
            (book.presence, book.cut) = (Presence::There, Cut::After(taken.clone()));
        });
        let state = read_snapshot(&self.engine, &id, false).await?;
        let judged = self.dataset(owner, |of| of.book.judge_cut(taken, &state));
        judged.map_err(|what| format!("{id:?}: {what}"))?;
        self.expected(|expected| {
            let book = expected.snapshots.last_mut().expect("just added");
            book.cut = Cut::Known(Rc::new(state));
        });
        Ok(())
    }

    async fn destroy_some(&mut self) -> Result<(), String> {
        let Some(snapshot) = self.some_snapshot() else { return Ok(()) };
        let mut names = vec![snapshot.name.clone()];
        if self.rng.below(3) == 0 {
            names.extend(self.expected(|expected| expected.newer_than(&snapshot)));
        }
        self.expected(|expected| expected.mark(&names, Presence::Destroying));
        let presence = match self.engine.destroy_snapshots(NAMES[snapshot.owner], &names).await {
            Ok(_) => Presence::Gone,
            // A clone depends on one of them.
            Err(DatasetError::InUse { .. }) => Presence::There,
            Err(error) => return Err(told(error)),
        };
        self.expected(|expected| expected.mark(&names, presence));
        Ok(())
    }
}

impl Snapshot {
    /// Content of a snapshot that was read.
    pub(super) fn state(&self) -> Option<Rc<State>> {
        match &self.cut {
            Cut::After(_) => None,
            Cut::Known(state) => Some(Rc::clone(state)),
        }
    }
}
