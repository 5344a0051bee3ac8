//! Slots and records that can be read from damaged datasets with many objects.
//!
//! `book` checks intact datasets.
//!
//! Invariants, for a damaged pool:
//! - a read returns an error or content that was once written to that slot or record;
//! - slots and records that do not depend on a lost block or node have their exact content.

use std::collections::{BTreeMap, BTreeSet};

use weir_base::ObjectId;
use weir_dataset::{DatasetError, Engine, SnapshotId, Volume};

use super::book::{ObjectsBook, is_of_objects};
use super::content::{DIRECTORY, RECORDS, seed_of, size_of, slot_state};
use crate::coverage::{CoveragePoint, note};

/// A slot (`record` is `None`) or record of a dataset or snapshot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    /// Name of the dataset or of the snapshot (dataset@snapshot).
    view: String,
    object: u64,
    record: Option<u64>,
}

/// Content that a read returned; `None` for an unused object or a hole.
type Words = Option<Vec<u64>>;

/// All slots and records that can be read, by name of the dataset or snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readable {
    views: BTreeSet<String>,
    items: BTreeMap<Item, Words>,
}

impl ObjectsBook {
    /// Reads all datasets with many objects and their snapshots, as far as possible.
    ///
    /// # Errors
    /// A slot or record with content that was never written to it.
    pub(crate) async fn readable(&self, engine: &Engine) -> Result<Readable, String> {
        let mut found = Readable::default();
        for volume in engine.volumes() {
            let name = volume.info().name;
            if !is_of_objects(&name) {
                continue;
            }
            self.read_view(&volume, &name, &mut found).await?;
            for snapshot in engine.snapshot_names(&name).unwrap_or_default() {
                let Ok(view) = engine.open_snapshot(&SnapshotId::new(&name, &snapshot)) else {
                    continue;
                };
                self.read_view(&view, &format!("{name}@{snapshot}"), &mut found).await?;
            }
        }
        Ok(found)
    }

    async fn read_view(
        &self,
        volume: &Volume,
        view: &str,
        found: &mut Readable,
    ) -> Result<(), String> {
        found.views.insert(view.to_owned());
        for object in self.numbers.iter().copied().chain([DIRECTORY.0]) {
            let item = |record| Item { view: view.to_owned(), object, record };
            let slot = volume.object_slot(ObjectId(object)).await;
            let slot = slot.map(|slot| slot.map(|(_, body)| slot_state(&body)).transpose());
            found.add(item(None), slot.map(|state| state.map(|state| Some(state?.words()))))?;
            for record in RECORDS {
                let size = size_of(object);
                let read = volume.read_object(ObjectId(object), size, record).await;
                let seed = |blocks: Vec<_>| seed_of(&blocks, size, (object, record));
                let read = read.map(|read| read.map(seed).transpose());
                let words = read.map(|seed| seed.map(|seed| Some(vec![seed?])));
                found.add(item(Some(record)), words)?;
            }
        }
        Ok(())
    }
}

impl Readable {
    fn add(
        &mut self,
        item: Item,
        read: Result<Result<Words, String>, DatasetError>,
    ) -> Result<(), String> {
        match read {
            Ok(Ok(words)) => drop(self.items.insert(item, words)),
            Ok(Err(what)) => return Err(format!("{item:?}: {what}")),
            Err(_) => note(CoveragePoint::DamageDetected),
        }
        Ok(())
    }

    /// Compares the content after a loss with the content before the loss. `are_listed`: every
    /// dataset and snapshot must exist. `is_whole`: every read must succeed.
    ///
    /// # Errors
    /// The first difference that the loss does not explain.
    pub(crate) fn judge(
        &self,
        before: &Self,
        are_listed: bool,
        is_whole: bool,
    ) -> Result<(), String> {
        if let Some(view) = before.views.difference(&self.views).find(|_| are_listed) {
            return Err(format!("{view} is missing"));
        }
        for (item, words) in before.items.iter().filter(|(item, _)| self.views.contains(&item.view))
        {
            match self.items.get(item) {
                Some(found) if found != words => {
                    return Err(format!("{item:?} has {found:?}, not {words:?}"));
                }
                None if is_whole => return Err(format!("{item:?} is unreadable")),
                _ => {}
            }
        }
        Ok(())
    }
}
