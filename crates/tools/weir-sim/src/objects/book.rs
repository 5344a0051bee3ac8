//! Expected state of the datasets with many objects of a scenario: a dataset, its snapshots, and a
//! clone of one of them.
//!
//! Invariant: a call is recorded as pending before it starts, and as acknowledged right after it
//! returns.

use weir_dataset::{Engine, SnapshotId};

use super::content::{ObjectsState, read_state};
use super::model::ObjectsHistory;
use crate::coverage::{CoveragePoint, note};
use crate::history::Presence;

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

/// Expected state of a snapshot of the first dataset.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotOfObjects {
    pub(super) name: String,
    pub(super) presence: Presence,
    pub(super) state: ObjectsState,
}

/// Expected state of all datasets with many objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectsBook {
    /// Numbers of the objects that operations use.
    pub(super) numbers: Vec<u64>,
    pub(super) datasets: [DatasetBook; 2],
    pub(super) snapshots: Vec<SnapshotOfObjects>,
    pub(super) next_snapshot: u64,
}

/// Recovered datasets and snapshots.
#[derive(Clone, Debug, Default)]
pub(crate) struct FoundObjects {
    datasets: [Option<ObjectsState>; 2],
    snapshots: Vec<(String, ObjectsState)>,
}

impl FoundObjects {
    /// Number of datasets.
    pub(crate) fn count(&self) -> usize {
        self.datasets.iter().flatten().count()
    }
}

/// True if a dataset of this name is one of the datasets with many objects of a scenario.
pub(crate) fn is_of_objects(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Identity of a snapshot of the first dataset.
pub(super) fn snapshot_id(name: &str) -> SnapshotId {
    SnapshotId { volume: NAMES[0].to_owned(), name: name.to_owned() }
}

impl ObjectsBook {
    /// Expected state of a pool without datasets. `numbers`: objects that operations will use.
    pub(crate) fn new(numbers: Vec<u64>) -> Self {
        Self { numbers, ..Self::default() }
    }

    /// Checks all datasets and snapshots of a recovered pool.
    ///
    /// # Errors
    /// The first difference from the allowed states.
    pub(crate) async fn judge(&self, engine: &Engine) -> Result<FoundObjects, String> {
        let mut found = FoundObjects::default();
        for ((name, book), found) in NAMES.iter().zip(&self.datasets).zip(&mut found.datasets) {
            *found =
                self.judge_one(engine, name, book).await.map_err(|w| format!("{name}: {w}"))?;
        }
        if found.datasets[0].is_some() {
            found.snapshots = self.judge_snapshots(engine).await?;
        }
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
    ) -> Result<Vec<(String, ObjectsState)>, String> {
        let listed = engine.snapshots(NAMES[0]).await.map_err(|error| error.to_string())?;
        let mut found = Vec::new();
        for info in listed {
            let book = self.snapshots.iter().find(|book| book.name == info.name);
            let book = book.filter(|book| book.presence != Presence::Gone);
            let book = book.ok_or_else(|| format!("unexpected snapshot {}", info.name))?;
            let view = engine.open_snapshot(&snapshot_id(&info.name));
            let view = view.map_err(|error| error.to_string())?;
            let state = read_state(&view, &self.numbers).await;
            let state = state.map_err(|error| format!("{}: {error}", info.name))??;
            if state != book.state {
                let wanted = &book.state;
                return Err(format!("snapshot {} is {state:?}, not {wanted:?}", info.name));
            }
            found.push((info.name, state));
        }
        let is_lost = |book: &&SnapshotOfObjects| {
            let is_found = found.iter().any(|(name, _)| *name == book.name);
            book.presence == Presence::There && !is_found
        };
        match self.snapshots.iter().find(is_lost) {
            Some(book) => Err(format!("snapshot {} of objects is missing", book.name)),
            None => Ok(found),
        }
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
        let snapshot = |(name, state)| SnapshotOfObjects { name, presence: Presence::There, state };
        self.snapshots = found.snapshots.into_iter().map(snapshot).collect();
    }
}
