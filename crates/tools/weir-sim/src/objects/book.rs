//! Expected state of the datasets with many objects of a scenario: a dataset, a clone of one of its
//! snapshots, the snapshots of both, and a replica.
//!
//! Invariant: a call is recorded as pending before it starts, and as acknowledged right after it
//! returns.

use std::sync::Arc;

use weir_dataset::{Engine, SnapshotId};

use super::content::{ObjectsState, read_state};
use super::model::ObjectsHistory;
use super::sent::{ObjectsContent, REPLICA, no_replica};
use crate::coverage::{CoveragePoint, note};
use crate::history::Presence;
use crate::replication::replica::{FoundReplica, Replica};

/// Names of the first dataset, and of the clone of one of its snapshots.
pub(crate) const NAMES: [&str; 2] = ["files", "copy"];

/// Expected state of one dataset.
#[derive(Clone, Debug)]
pub(crate) struct DatasetBook {
    pub(super) presence: Presence,
    pub(super) history: ObjectsHistory,
    /// State to which the pending rollback returns; `None` if no rollback is pending.
    pub(super) rolling: Option<ObjectsState>,
    /// Number of rollbacks of the dataset, and of clones created under its name. A sync during
    /// which this number changes guarantees nothing about the new history.
    pub(super) generation: u64,
}

impl Default for DatasetBook {
    fn default() -> Self {
        Self {
            presence: Presence::Gone,
            history: ObjectsHistory::default(),
            rolling: None,
            generation: 0,
        }
    }
}

/// Expected state of a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotOfObjects {
    /// Name, unique among all snapshots of the scenario.
    pub(super) name: String,
    /// Index in [`NAMES`] of the dataset that has the snapshot.
    pub(super) owner: usize,
    pub(super) presence: Presence,
    pub(super) state: ObjectsState,
}

/// Expected state of all datasets with many objects.
#[derive(Clone, Debug)]
pub(crate) struct ObjectsBook {
    /// Numbers of the objects that operations use.
    pub(super) numbers: Vec<u64>,
    pub(super) datasets: [DatasetBook; 2],
    /// Snapshots in order of creation.
    pub(super) snapshots: Vec<SnapshotOfObjects>,
    pub(super) next_snapshot: u64,
    /// Name of the snapshot from which one of the datasets was cloned.
    pub(super) origin: Option<String>,
    /// If true, a promotion is pending, and either dataset may have the older snapshots.
    pub(super) promoting: bool,
    pub(super) replica: Replica<ObjectsContent>,
}

/// Recovered datasets and snapshots.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoundObjects {
    datasets: [Option<ObjectsState>; 2],
    /// Recovered snapshots in order of creation.
    snapshots: Vec<SnapshotOfObjects>,
    replica: Option<FoundReplica>,
}

impl FoundObjects {
    /// Number of datasets.
    pub(crate) fn count(&self) -> usize {
        self.datasets.iter().flatten().count() + usize::from(self.replica.is_some())
    }
}

/// True if a dataset of this name is one of the datasets with many objects of a scenario.
pub(crate) fn is_of_objects(name: &str) -> bool {
    NAMES.contains(&name) || name == REPLICA
}

impl ObjectsBook {
    /// Expected state of a pool without datasets. `numbers`: objects that operations will use.
    pub(crate) fn new(numbers: Vec<u64>) -> Self {
        Self {
            numbers,
            datasets: <[DatasetBook; 2]>::default(),
            snapshots: Vec::new(),
            next_snapshot: 0,
            origin: None,
            promoting: false,
            replica: no_replica(),
        }
    }

    /// Index of the dataset that is a clone; `None` if none is.
    pub(super) fn clone_index(&self) -> Option<usize> {
        let origin = self.origin.as_ref()?;
        let found = self.snapshots.iter().find(|book| book.name == *origin);
        found.map(|book| 1 - book.owner)
    }

    /// Records that the clone was promoted: the clone now has the origin and all older snapshots.
    pub(super) fn promoted(&mut self) {
        let Some(clone) = self.clone_index() else { return };
        let at = self.snapshots.iter().position(|book| Some(&book.name) == self.origin.as_ref());
        let older = &mut self.snapshots[..=at.expect("the clone has an origin")];
        older.iter_mut().for_each(|book| book.owner = clone);
    }

    /// Checks all datasets and snapshots of a recovered pool.
    ///
    /// # Errors
    /// The first difference from the allowed states.
    pub(crate) async fn judge(&self, engine: &Arc<Engine>) -> Result<FoundObjects, String> {
        let mut found = FoundObjects::default();
        for ((name, book), found) in NAMES.iter().zip(&self.datasets).zip(&mut found.datasets) {
            *found =
                self.judge_one(engine, name, book).await.map_err(|w| format!("{name}: {w}"))?;
        }
        for owner in 0..NAMES.len() {
            if found.datasets[owner].is_some() {
                found.snapshots.extend(self.judge_snapshots(engine, owner).await?);
            }
        }
        let at = |name: &String| self.snapshots.iter().position(|book| book.name == *name);
        found.snapshots.sort_by_key(|book| at(&book.name));
        let is_lost = |book: &&SnapshotOfObjects| {
            let is_found = found.snapshots.iter().any(|found| found.name == book.name);
            book.presence == Presence::There && !is_found
        };
        if let Some(book) = self.snapshots.iter().find(is_lost) {
            return Err(format!("snapshot {} of objects is missing", book.name));
        }
        let replica = self.replica.judge(engine).await;
        found.replica = replica.map_err(|what| format!("{REPLICA}: {what}"))?;
        Ok(found)
    }

    async fn judge_one(
        &self,
        engine: &Engine,
        name: &str,
        book: &DatasetBook,
    ) -> Result<Option<ObjectsState>, String> {
        let volume = match engine.volume(name) {
            Ok(_) if book.presence == Presence::Gone => {
                return Err("it exists after its destruction".to_owned());
            }
            Ok(volume) => volume,
            Err(error) if book.presence == Presence::There => return Err(error.to_string()),
            Err(_) => return Ok(None),
        };
        let state = read_state(&volume, &self.numbers).await;
        let state = state.map_err(|error| format!("read: {error}"))??;
        if book.rolling.as_ref() != Some(&state) {
            book.history.judge(&state)?;
            if state != *book.history.now() {
                note(CoveragePoint::ObjectsCut);
            }
        }
        Ok(Some(state))
    }

    async fn judge_snapshots(
        &self,
        engine: &Engine,
        owner: usize,
    ) -> Result<Vec<SnapshotOfObjects>, String> {
        let listed = engine.snapshots(NAMES[owner]).await.map_err(|error| error.to_string())?;
        let mut found = Vec::new();
        for info in listed {
            let book = self.snapshots.iter().find(|book| book.name == info.name);
            let is_expected = |book: &&SnapshotOfObjects| {
                book.presence != Presence::Gone && (self.promoting || book.owner == owner)
            };
            let full = SnapshotId::new(NAMES[owner], &info.name);
            let book = book.filter(is_expected).ok_or_else(|| format!("unexpected {full:?}"))?;
            let view = engine.open_snapshot(&full);
            let view = view.map_err(|error| error.to_string())?;
            let state = read_state(&view, &self.numbers).await;
            let state = state.map_err(|error| format!("{}: {error}", info.name))??;
            if state != book.state {
                let wanted = &book.state;
                return Err(format!("snapshot {} is {state:?}, not {wanted:?}", info.name));
            }
            let (name, presence) = (info.name, Presence::There);
            found.push(SnapshotOfObjects { name, owner, presence, state });
        }
        Ok(found)
    }

    /// True if a recovery has all changes of the first dataset.
    #[cfg(test)]
    pub(super) fn is_whole(&self, found: &FoundObjects) -> bool {
        found.datasets[0].as_ref() == Some(self.datasets[0].history.now())
    }

    /// Makes the recovered state the expected state.
    pub(crate) fn rebase(&mut self, found: FoundObjects) {
        for (book, found) in self.datasets.iter_mut().zip(found.datasets) {
            *book = DatasetBook::default();
            if let Some(state) = found {
                book.presence = Presence::There;
                book.history = ObjectsHistory::of_state(state);
            }
        }
        self.snapshots = found.snapshots;
        self.promoting = false;
        let is_there = self.datasets[1].presence == Presence::There;
        self.origin.take_if(|_| !is_there);
        self.replica.rebase(found.replica);
    }
}
