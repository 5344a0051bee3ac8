//! Clones and rollbacks by the operator.
//!
//! Invariants:
//! - a clone begins with the exact content of its snapshot, and a filesystem that was rolled back
//!   has the exact content of its snapshot;
//! - a crash leaves a rollback complete or without effect.

use std::rc::Rc;

use weir_dataset::{DatasetError, SnapshotId};
use weir_fs::{Filesystem, FsError};

use super::book::Book;
use super::content::read_state;
use super::expected::{NAMES, Snapshot};
use super::operator::{Operator, told};
use super::pool::{LIMITS, clock};
use crate::history::Presence;

impl Operator {
    /// Opens a filesystem for clients. It must have the newest expected state.
    async fn open(&self, index: usize) -> Result<(), String> {
        let told = |error: FsError| format!("{}: {error}", NAMES[index]);
        let now = clock(&self.executor);
        let files = Filesystem::open_with(&self.engine, NAMES[index], LIMITS, now).await;
        let files = files.map_err(told)?;
        let found = read_state(&files).await.map_err(told)?;
        let expected = self.dataset(index, |of| of.book.state_at(of.book.seq()));
        found.compare(&expected).map_err(|what| format!("{}: {what}", NAMES[index]))?;
        self.accesses[index].open(files);
        Ok(())
    }

    pub(super) async fn clone_some(&mut self) -> Result<(), String> {
        let Some(snapshot) = self.some_snapshot() else { return Ok(()) };
        let Some(state) = snapshot.state() else { return Ok(()) };
        let (root, folds) = self.dataset(snapshot.owner, |of| (of.book.root, of.book.folds));
        self.dataset(1, |of| {
            (of.presence, of.book) = (Presence::Creating, Book::of_state(root, folds, &state));
        });
        let id = SnapshotId::new(NAMES[snapshot.owner], &snapshot.name);
        self.engine.clone_snapshot(&id, NAMES[1]).await.map_err(told)?;
        self.dataset(1, |of| of.presence = Presence::There);
        self.open(1).await
    }

    /// Destroys the clone with its snapshots.
    pub(super) async fn destroy_copy(&mut self) -> Result<(), String> {
        self.accesses[1].close(&self.executor).await;
        let own: Vec<String> = self.expected(|expected| {
            let is_own = |book: &&Snapshot| (book.owner, book.presence) == (1, Presence::There);
            expected.snapshots.iter().filter(is_own).map(|book| book.name.clone()).collect()
        });
        self.expected(|expected| expected.mark(&own, Presence::Destroying));
        self.dataset(1, |of| of.presence = Presence::Destroying);
        self.engine.destroy_volume(NAMES[1], true).await.map_err(told)?;
        self.expected(|expected| expected.mark(&own, Presence::Gone));
        self.dataset(1, |of| of.presence = Presence::Gone);
        Ok(())
    }

    /// Rolls a filesystem back while it is closed, as the server does.
    pub(super) async fn roll_back(&mut self) -> Result<(), String> {
        let Some(snapshot) = self.some_snapshot() else { return Ok(()) };
        let Some(state) = snapshot.state() else { return Ok(()) };
        let newer = self.expected(|expected| expected.newer_than(&snapshot));
        let owner = snapshot.owner;
        self.accesses[owner].close(&self.executor).await;
        self.dataset(owner, |of| of.rolling = Some(Rc::clone(&state)));
        self.expected(|expected| expected.mark(&newer, Presence::Destroying));
        let id = SnapshotId::new(NAMES[owner], &snapshot.name);
        let presence = match self.engine.rollback(&id, true).await {
            Ok(_) => {
                self.dataset(owner, |of| of.book.replace(&state));
                Presence::Gone
            }
            // The clone depends on a newer snapshot.
            Err(DatasetError::InUse { .. }) => Presence::There,
            Err(error) => return Err(told(error)),
        };
        self.dataset(owner, |of| of.rolling = None);
        self.expected(|expected| expected.mark(&newer, presence));
        self.open(owner).await
    }
}
