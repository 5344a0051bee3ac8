//! Lost blocks and nodes of an object table, and lost nodes and records of objects: changes of the
//! objects after the loss, and the expected state of every slot and record.
//!
//! `crate::lost_nodes` runs the scenario.
//!
//! Invariants:
//! - slots and records that are not below a lost block have their exact content. A read of any
//!   other slot or record fails until a client writes or trims the record, or the block is readable
//!   again;
//! - a change of an object with an unreadable slot fails and changes nothing;
//! - when a read of a slot or record fails, the damage list has this slot or record; after a
//!   complete scrub, the damage list has only unreadable slots and records.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_base::{ErrorKind, ObjectId};
use weir_dataset::{
    DamagedWhere, DatasetError, Engine, ObjectChange, PoolDamage, SnapshotId, Volume,
};
use weir_format::{OBJECT_SLOTS_PER_BLOCK, ObjectSlot};
use weir_pool::{DiskAddress, PlantedBug};

use super::book::NAMES;
use super::content::{blocks_of, seed_for, seed_of, size_of};
use super::layer::LAYER;
use crate::lost_nodes::run::{Base, LostNodes, entries_of, open_view, run};

const FILES: &str = NAMES[0];
/// Numbers of the objects: in five blocks below the first leaf of the table, and in one block below
/// another leaf.
const NUMBERS: [u64; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17, 600, 601];
/// Numbers of the records that changes use: in two leaves.
const RECORDS: [u64; 5] = [0, 1, 2, 5, 300];
/// Number of pointers of a node.
const FANOUT: u64 = 128;
const SNAPSHOTS_MAX: usize = 2;

/// Expected state of a record with data, or of a lost record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    Data(u64),
    /// The record, or a node above it, is lost. Before the loss, the record had this content.
    Lost(Option<u64>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Object {
    tag: u8,
    /// Records with data and lost records; all other records are holes.
    records: BTreeMap<u64, Record>,
}

/// Expected state of a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Slot {
    is_lost: bool,
    object: Option<Object>,
}

/// Expected state of the dataset or of a snapshot.
type View = BTreeMap<u64, Slot>;
/// Views by name of the dataset or of the snapshot (dataset@snapshot).
type Views = BTreeMap<String, View>;

/// Results of reads: of the records of one object, and of all slots with their records. `Err`: the
/// slot or record is unreadable.
type FoundRecords = BTreeMap<u64, Result<u64, ()>>;
type Found = BTreeMap<u64, Result<Option<(u8, FoundRecords)>, ()>>;

/// Results of reads that the expected state allows.
fn allowed(view: &View) -> Found {
    let record = |(number, record): (&u64, &Record)| match record {
        Record::Data(seed) => (*number, Ok(*seed)),
        Record::Lost(_) => (*number, Err(())),
    };
    let object = |object: &Object| (object.tag, object.records.iter().map(record).collect());
    let slot = |slot: &Slot| {
        if slot.is_lost { Err(()) } else { Ok(slot.object.as_ref().map(object)) }
    };
    view.iter().map(|(number, of)| (*number, slot(of))).collect()
}

/// Returns `None` for a read that failed because of damage.
fn unless_lost<T>(read: Result<T, DatasetError>) -> Result<Option<T>, String> {
    match read {
        Err(error) if error.kind() == ErrorKind::Data => Ok(None),
        read => read.map(Some).map_err(|error| format!("read: {error}")),
    }
}

/// True if the damage list has the slot of an object (`record` is `None`) or one of its records.
fn lists(damage: &PoolDamage, view: &str, object: u64, record: Option<u64>) -> bool {
    entries_of(damage, view).any(|data| match (&data.part, record) {
        (DamagedWhere::Slots { first, count }, None) => {
            (*first..first.saturating_add(*count)).contains(&object)
        }
        (DamagedWhere::Records { object: of, first, count }, Some(record)) => {
            *of == object && (*first..first.saturating_add(*count)).contains(&record)
        }
        _ => false,
    })
}

/// A block to corrupt.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Victim {
    /// Block (level 0) or node of the object table.
    Table { level: u8, index: u64 },
    /// Record (level 0) or node of an object.
    Object { object: u64, level: u8, index: u64 },
}

impl Victim {
    /// Records the loss in the expected state of a view.
    fn lose(self, view: &mut View) {
        let span = |level: u8, index: u64| {
            let width = FANOUT.pow(u32::from(level));
            index * width..(index + 1) * width
        };
        match self {
            Self::Table { level, index } => {
                let blocks = span(level, index);
                let is_below =
                    |object: u64| blocks.contains(&(object / OBJECT_SLOTS_PER_BLOCK as u64));
                let below = view.iter_mut().filter(|(number, _)| is_below(**number));
                below.for_each(|(_, slot)| slot.is_lost = true);
            }
            Self::Object { object, level, index } => {
                let records = span(level, index);
                let slot = view.get_mut(&object).expect("all numbers are there");
                let object = slot.object.as_mut().expect("it has a tree");
                for number in RECORDS.into_iter().filter(|number| records.contains(number)) {
                    let was = match object.records.get(&number) {
                        Some(Record::Lost(was)) => *was,
                        Some(Record::Data(seed)) => Some(*seed),
                        None => None,
                    };
                    object.records.insert(number, Record::Lost(was));
                }
            }
        }
    }
}

/// State of one run of this check.
struct Run {
    base: Base,
    /// The durable state, then the state after each later change. A power cut may leave any of
    /// these states.
    states: Vec<Views>,
    snapshots: u64,
}

/// Corrupts blocks and nodes of a dataset with many objects and checks the consequences.
///
/// # Errors
/// The first violated guarantee, with the seed that replays it.
pub fn lose_object_nodes(seed: u64, bug: PlantedBug) -> Result<(), String> {
    let empty = NUMBERS.into_iter().map(|number| (number, Slot::default())).collect();
    let states = vec![Views::from([(FILES.to_owned(), empty)])];
    run(seed, bug, |base| Run { base, states, snapshots: 0 })
}

impl Run {
    fn now(&self) -> &Views {
        self.states.last().expect("there is a state")
    }

    /// Records a change of the dataset that is not durable yet.
    fn change(&mut self, change: impl FnOnce(&mut View)) {
        let mut next = self.now().clone();
        change(next.get_mut(FILES).expect("it is there"));
        self.states.push(next);
    }

    /// Makes the newest state durable.
    fn settle(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }

    /// Performs changes of one object. If the object's slot is lost, the changes must fail.
    async fn perform(
        &mut self,
        engine: &Engine,
        number: u64,
        changes: Vec<ObjectChange>,
        change: impl FnOnce(&mut Option<Object>),
    ) -> Result<(), String> {
        let is_lost = self.now()[FILES][&number].is_lost;
        if !is_lost {
            self.change(|view| change(&mut view.get_mut(&number).expect("it is there").object));
        }
        let files = engine.volume(FILES).map_err(|error| error.to_string())?;
        match files.change_objects(changes).await {
            Ok(()) if is_lost => Err(format!("a change of the lost object {number} succeeded")),
            Err(error) if is_lost && error.kind() == ErrorKind::Data => Ok(()),
            done => done.map_err(|error| format!("change of {number}: {error}")),
        }
    }

    async fn write(&mut self, engine: &Engine, number: u64) -> Result<(), String> {
        let (object, size) = (ObjectId(number), size_of(number));
        let record = RECORDS[self.base.rng.index(RECORDS.len())];
        let seed = seed_for(self.base.rng.next_u64() >> 1, (number, record));
        let tag = 1 + self.base.rng.below(200) as u8;
        let body = Box::new([tag; ObjectSlot::BODY_BYTES]);
        let changes = vec![
            ObjectChange::SetSlot { object, size, body },
            ObjectChange::Write { object, size, record, blocks: blocks_of(seed, size) },
        ];
        let written = |object: &mut Option<Object>| {
            let object = object.get_or_insert_default();
            object.tag = tag;
            object.records.insert(record, Record::Data(seed));
        };
        self.perform(engine, number, changes, written).await
    }

    async fn truncate(&mut self, engine: &Engine, number: u64) -> Result<(), String> {
        let of = &self.now()[FILES][&number];
        if of.object.is_none() {
            return Ok(());
        }
        let record = RECORDS[self.base.rng.index(RECORDS.len())];
        let (object, size) = (ObjectId(number), size_of(number));
        let changes = vec![ObjectChange::Zero { object, size, records: record..u64::MAX >> 20 }];
        let truncated = |object: &mut Option<Object>| {
            let object = object.as_mut().expect("it is there");
            object.records.retain(|at, _| *at < record);
        };
        self.perform(engine, number, changes, truncated).await
    }

    async fn remove(&mut self, engine: &Engine, number: u64) -> Result<(), String> {
        let changes = vec![ObjectChange::Remove { object: ObjectId(number) }];
        self.perform(engine, number, changes, |object| *object = None).await
    }

    async fn sync(&mut self, engine: &Engine) -> Result<(), String> {
        engine.sync().await.map_err(|error| format!("sync: {error}"))?;
        self.settle();
        Ok(())
    }

    async fn take(&mut self, engine: &Engine) -> Result<(), String> {
        self.snapshots += 1;
        let name = format!("s{}", self.snapshots);
        let mut next = self.now().clone();
        next.insert(format!("{FILES}@{name}"), next[FILES].clone());
        self.states.push(next);
        let taken = engine.create_snapshots(&[SnapshotId::new(FILES, &name)]).await;
        taken.map_err(|error| format!("snapshot: {error}"))?;
        self.settle();
        Ok(())
    }

    /// Names of the snapshots, oldest first.
    fn snapshot_names(&self) -> Vec<String> {
        let names = self.now().keys().filter_map(|view| view.split_once('@'));
        let mut names: Vec<String> = names.map(|(_, name)| name.to_owned()).collect();
        names.sort_by_key(|name| name[1..].parse::<u64>().expect("names are numbers"));
        names
    }

    async fn destroy(&mut self, engine: &Engine) -> Result<(), String> {
        let names = self.snapshot_names();
        let name = names[self.base.rng.index(names.len())].clone();
        // From here on, a cut may leave the snapshot present or destroyed, so do not check it.
        for views in &mut self.states {
            views.remove(&format!("{FILES}@{name}"));
        }
        let destroyed = engine.destroy_snapshots(FILES, &[name]).await;
        destroyed.map_err(|error| format!("destroy: {error}"))?;
        self.settle();
        Ok(())
    }

    /// Rolls back to the newest snapshot.
    async fn roll_back(&mut self, engine: &Engine) -> Result<(), String> {
        let Some(name) = self.snapshot_names().pop() else { return Ok(()) };
        let state = self.now()[&format!("{FILES}@{name}")].clone();
        self.change(|view| *view = state);
        let done = engine.rollback(&SnapshotId::new(FILES, &name), true).await;
        done.map_err(|error| format!("rollback: {error}"))?;
        self.settle();
        Ok(())
    }

    /// Reads a view. Each failed read must be on the damage list.
    async fn read(&self, engine: &Engine, view: &Volume, name: &str) -> Result<Found, String> {
        let listed = |object: u64, record: Option<u64>| {
            if lists(&engine.damage(), name, object, record) {
                return Ok(());
            }
            let list = engine.damage();
            Err(format!("{name} {object} {record:?} is lost, but not on the damage list {list:?}"))
        };
        let mut found = Found::new();
        for number in NUMBERS {
            let (object, size) = (ObjectId(number), size_of(number));
            let Some(slot) = unless_lost(view.object_slot(object).await)? else {
                listed(number, None)?;
                found.insert(number, Err(()));
                continue;
            };
            let Some((_, body)) = slot else {
                found.insert(number, Ok(None));
                continue;
            };
            if body.iter().any(|byte| *byte != body[0]) {
                return Err(format!("slot of {number} is torn"));
            }
            let mut records = FoundRecords::new();
            for record in RECORDS {
                match unless_lost(view.read_object(object, size, record).await)? {
                    None => {
                        listed(number, Some(record))?;
                        records.insert(record, Err(()));
                    }
                    Some(None) => {}
                    Some(Some(blocks)) => {
                        let seed = seed_of(&blocks, size, (number, record));
                        let seed = seed.map_err(|what| format!("object {number}: {what}"))?;
                        records.insert(record, Ok(seed));
                    }
                }
            }
            found.insert(number, Ok(Some((body[0], records))));
        }
        Ok(found)
    }
}

impl LostNodes for Run {
    type Victim = Victim;

    const WHAT: &'static str = "lost nodes of objects";
    const VICTIM: &'static str = FILES;
    const STEPS: u64 = 16;

    fn base(&mut self) -> &mut Base {
        &mut self.base
    }

    async fn fill(&mut self, engine: &Engine) -> Result<(), String> {
        let made = engine.create_object_dataset(FILES, LAYER, &[]).await;
        made.map_err(|error| error.to_string())?;
        for round in 0..=self.base.rng.below(3) {
            for number in NUMBERS {
                if round == 0 || self.base.rng.below(4) == 0 {
                    self.write(engine, number).await?;
                    self.write(engine, number).await?;
                }
            }
            self.sync(engine).await?;
            if self.base.rng.coin() {
                self.take(engine).await?;
            }
        }
        Ok(())
    }

    fn views(&self) -> Vec<String> {
        self.now().keys().cloned().collect()
    }

    fn some_victim(&mut self, views: &[String]) -> (usize, Victim) {
        let rng = &mut self.base.rng;
        let object = NUMBERS[rng.index(NUMBERS.len())];
        let record = RECORDS[rng.index(RECORDS.len())];
        let victim = match rng.below(6) {
            0 | 1 => Victim::Table { level: 0, index: object / OBJECT_SLOTS_PER_BLOCK as u64 },
            2 => {
                Victim::Table { level: 1, index: object / (OBJECT_SLOTS_PER_BLOCK as u64 * FANOUT) }
            }
            3 | 4 => Victim::Object { object, level: 1, index: record / FANOUT },
            _ => Victim::Object { object, level: 0, index: record },
        };
        (rng.index(views.len()), victim)
    }

    async fn place(view: &Volume, victim: Victim) -> Result<Option<DiskAddress>, String> {
        let place = match victim {
            Victim::Table { level, index } => view.disk_address(level, index).await,
            Victim::Object { object, level, index } => {
                view.object_address(ObjectId(object), level, index).await
            }
        };
        place.map_err(|error| error.to_string())
    }

    fn lose(&mut self, view: &str, victim: Victim) {
        let views = self.states.last_mut().expect("there is a state");
        victim.lose(views.get_mut(view).expect("it is there"));
    }

    fn find_again(&mut self) {
        for slot in
            self.states.iter_mut().flat_map(BTreeMap::values_mut).flat_map(BTreeMap::values_mut)
        {
            slot.is_lost = false;
            let Some(object) = &mut slot.object else { continue };
            object.records = std::mem::take(&mut object.records)
                .into_iter()
                .filter_map(|(number, record)| match record {
                    Record::Lost(was) => Some((number, Record::Data(was?))),
                    data @ Record::Data(_) => Some((number, data)),
                })
                .collect();
        }
    }

    async fn step(&mut self, engine: &Arc<Engine>) -> Result<(), String> {
        let number = NUMBERS[self.base.rng.index(NUMBERS.len())];
        match self.base.rng.below(20) {
            0..8 => self.write(engine, number).await,
            8..10 => self.truncate(engine, number).await,
            10 | 11 => self.remove(engine, number).await,
            12 | 13 => self.sync(engine).await,
            14 | 15 if self.now().len() <= SNAPSHOTS_MAX => self.take(engine).await,
            14 | 15 => self.destroy(engine).await,
            16 => self.roll_back(engine).await,
            17 => match engine.scrub_start() {
                Err(error) if error.kind() != ErrorKind::Busy => Err(format!("scrub: {error}")),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    async fn judge(&mut self, engine: &Engine) -> Result<(), String> {
        let mut found = BTreeMap::new();
        let names = engine.snapshot_names(FILES).map_err(|error| error.to_string())?;
        let views = names.iter().map(|name| format!("{FILES}@{name}")).chain([FILES.to_owned()]);
        for name in views {
            let view = open_view(engine, &name).map_err(|error| format!("{name}: {error}"))?;
            let content = self.read(engine, &view, &name).await;
            found.insert(name, content?);
        }
        let fits = |views: &Views| {
            views.iter().all(|(name, view)| found.get(name) == Some(&allowed(view)))
        };
        let Some(at) = self.states.iter().rposition(fits) else {
            return Err(format!("found {found:?}, expected one of {:?}", self.states));
        };
        self.states = vec![self.states.swap_remove(at)];
        Ok(())
    }

    async fn judge_list(&mut self, engine: &Engine) -> Result<(), String> {
        let damage = engine.damage();
        for (name, view) in self.now() {
            for (number, slot) in view {
                if lists(&damage, name, *number, None) && !slot.is_lost {
                    return Err(format!("{name}: the slot of {number} is intact, but listed"));
                }
                let lost = slot.object.iter().flat_map(|object| &object.records);
                let lost = lost.filter(|(_, record)| matches!(record, Record::Lost(_)));
                let lost: Vec<u64> = lost.map(|(record, _)| *record).collect();
                for record in RECORDS.into_iter().filter(|record| !lost.contains(record)) {
                    if !slot.is_lost && lists(&damage, name, *number, Some(record)) {
                        return Err(format!("{name}: {record} of {number} is intact, but listed"));
                    }
                }
            }
        }
        Ok(())
    }
}
