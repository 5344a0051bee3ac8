//! Scenario of lost tree nodes in a dataset with many objects: corrupts blocks and nodes of the
//! object table, and nodes and records of objects, on every leg. Then continues with changes,
//! snapshots, rollbacks, scrubs and power cuts, and checks every slot and record.
//!
//! `crate::lost_nodes` does this with volumes.
//!
//! Invariants:
//! - slots and records that are not below a lost block have their exact content; a read of others
//!   fails until a client writes or trims the record, or the block is readable again;
//! - a change of an object with an unreadable slot fails and changes nothing;
//! - the damage list names each unreadable object; after a complete scrub it has nothing else;
//! - after the dataset is destroyed, every counter equals a walk of the trees.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_base::{ErrorKind, Guid, ObjectId};
use weir_dataset::{DamagedWhere, DatasetError, Engine, ObjectChange, PoolDamage, Volume};
use weir_format::{OBJECT_SLOTS_PER_BLOCK, ObjectSlot};
use weir_pool::{DiskAddress, PlantedBug};

use super::book::NAMES;
use super::content::{blocks_of, seed_for, seed_of, size_of};
use super::layer::LAYER;
use crate::cut::CutPlan;
use crate::error::SimError;
use crate::lost_nodes::{Background, LostNode, SETTLED_AFTER, counts, flip, lost_nodes_at, open};
use crate::media::MediaImage;
use crate::replication::replica::id;
use crate::rng::Rng;
use crate::scenario::{Layout, Room, Scenario};
use crate::world::SimWorld;

const FILES: &str = NAMES[0];
/// Numbers of the objects: in five blocks below the first leaf of the table, and in one block below
/// another leaf.
const NUMBERS: [u64; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17, 600, 601];
/// Numbers of the records that changes use: in two leaves.
const RECORDS: [u64; 5] = [0, 1, 2, 5, 300];
/// Number of pointers of a node.
const FANOUT: u64 = 128;
const STEPS: u64 = 16;
/// Number of generations after the damage.
const LIVES: u64 = 3;
const SNAPSHOTS_MAX: usize = 2;

/// Expected state of a record with data, or of a lost record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    Data(u64),
    /// The record, or a node above it, is lost. Before the loss it had this content.
    Lost(Option<u64>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Object {
    tag: u8,
    /// Records that are no holes.
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

/// Result of a read of a slot with its records; `Err` for unreadable ones.
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

fn open_view(engine: &Engine, name: &str) -> Result<Arc<Volume>, DatasetError> {
    match name.split_once('@') {
        Some((_, snapshot)) => engine.open_snapshot(&id(FILES, snapshot)),
        None => engine.volume(name),
    }
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
    let snapshot = view.split_once('@').map(|(_, snapshot)| snapshot);
    damage.data.iter().any(|data| {
        let has_view =
            snapshot.map_or(data.in_volume, |own| data.snapshots.iter().any(|s| s == own));
        let has_part = match (&data.part, record) {
            (DamagedWhere::Slots { first, count }, None) => {
                (*first..first.saturating_add(*count)).contains(&object)
            }
            (DamagedWhere::Records { object: of, first, count }, Some(record)) => {
                *of == object && (*first..first.saturating_add(*count)).contains(&record)
            }
            _ => false,
        };
        data.volume == FILES && has_view && has_part
    })
}

/// A block to corrupt.
#[derive(Clone, Copy, Debug)]
enum Victim {
    /// Block (level 0) or node of the object table.
    Table { level: u8, index: u64 },
    /// Record (level 0) or node of an object.
    Object { object: u64, level: u8, index: u64 },
}

impl Victim {
    async fn place(self, view: &Volume) -> Result<Option<DiskAddress>, String> {
        let place = match self {
            Self::Table { level, index } => view.disk_address(level, index).await,
            Self::Object { object, level, index } => {
                view.object_address(ObjectId(object), level, index).await
            }
        };
        place.map_err(|error| error.to_string())
    }

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
    seed: u64,
    rng: Rng,
    bug: PlantedBug,
    layout: Layout,
    /// The durable state, then the state after each later change. A power cut may leave any.
    states: Vec<Views>,
    lives: u64,
    snapshots: u64,
}

/// Corrupts blocks and nodes of a dataset with many objects and checks the consequences.
///
/// # Errors
/// The first violated guarantee, with the seed that replays it.
pub fn lose_object_nodes(seed: u64, bug: PlantedBug) -> Result<(), String> {
    let mut rng = Rng::new(seed).stream("lost nodes of objects", 0);
    let layout = if rng.coin() { Layout::Single } else { Layout::Mirror };
    let empty = NUMBERS.into_iter().map(|number| (number, Slot::default())).collect();
    let states = vec![Views::from([(FILES.to_owned(), empty)])];
    let mut run = Run { seed, rng, bug, layout, states, lives: 0, snapshots: 0 };
    run.all()
        .map_err(|what| format!("lost nodes of objects, seed {seed}, life {}: {what}", run.lives))
}

impl Run {
    fn all(&mut self) -> Result<(), String> {
        let images = self.fill()?;
        let (mut images, lost) = self.damage(images)?;
        for _ in 0..LIVES {
            images = self.live(images)?;
        }
        if self.rng.coin() {
            let there = lost_nodes_at(&images, &lost);
            flip(&mut images, self.layout, &there);
            self.find_again();
        }
        self.end(images)
    }

    fn world(&mut self, images: Vec<MediaImage>) -> SimWorld {
        self.lives += 1;
        SimWorld::from_media(self.seed.wrapping_mul(1000) + self.lives, images)
    }

    async fn open(&self, world: &SimWorld) -> Result<Arc<Engine>, String> {
        open(world, Guid(self.seed ^ self.lives << 40), self.bug).await
    }

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

    /// Creates a dataset with objects and up to two snapshots.
    fn fill(&mut self) -> Result<Vec<MediaImage>, String> {
        let world = self.world(Scenario::new_pool(self.layout, Room::Ample));
        let filled = world.run_until(async {
            let engine = self.open(&world).await?;
            let made = engine.create_object_dataset(FILES, LAYER, &[]).await;
            made.map_err(|error| error.to_string())?;
            for round in 0..=self.rng.below(3) {
                for number in NUMBERS {
                    if round == 0 || self.rng.below(4) == 0 {
                        self.write(&engine, number).await?;
                        self.write(&engine, number).await?;
                    }
                }
                self.sync(&engine).await?;
                if self.rng.coin() {
                    self.take(&engine).await?;
                }
            }
            Ok::<(), String>(())
        });
        filled.map_err(|error| error.to_string())??;
        Ok(world.cut(CutPlan::Everything))
    }

    fn some_victim(&mut self) -> Victim {
        let object = NUMBERS[self.rng.index(NUMBERS.len())];
        let record = RECORDS[self.rng.index(RECORDS.len())];
        match self.rng.below(6) {
            0 | 1 => Victim::Table { level: 0, index: object / OBJECT_SLOTS_PER_BLOCK as u64 },
            2 => {
                Victim::Table { level: 1, index: object / (OBJECT_SLOTS_PER_BLOCK as u64 * FANOUT) }
            }
            3 | 4 => Victim::Object { object, level: 1, index: record / FANOUT },
            _ => Victim::Object { object, level: 0, index: record },
        }
    }

    /// Corrupts up to two blocks or nodes, on all legs.
    fn damage(
        &mut self,
        images: Vec<MediaImage>,
    ) -> Result<(Vec<MediaImage>, Vec<LostNode>), String> {
        let world = self.world(images);
        let lost = world.run_until(async {
            let engine = self.open(&world).await?;
            let mut places = Vec::new();
            for _ in 0..=self.rng.below(2) {
                let victim = self.some_victim();
                let names: Vec<String> = self.now().keys().cloned().collect();
                let of = &names[self.rng.index(names.len())];
                let view = open_view(&engine, of).map_err(|error| error.to_string())?;
                let place = victim.place(&view).await?;
                let Some(place) = place.filter(|place| !places.contains(place)) else { continue };
                places.push(place);
                for name in &names {
                    let view = open_view(&engine, name).map_err(|error| error.to_string())?;
                    if victim.place(&view).await? == Some(place) {
                        let views = self.states.last_mut().expect("there is a state");
                        victim.lose(views.get_mut(name).expect("it is there"));
                    }
                }
            }
            Ok::<_, String>(places)
        });
        let places = lost.map_err(|error| error.to_string())??;
        let mut images = world.cut(CutPlan::Everything);
        flip(&mut images, self.layout, &places);
        let lost = places.into_iter().map(|place| LostNode::new(&images, place)).collect();
        Ok((images, lost))
    }

    /// Records that the lost blocks are readable again, as when a disk reconnects.
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

    /// Runs one generation: opens the pool, checks it, and changes it until the power is cut.
    fn live(&mut self, images: Vec<MediaImage>) -> Result<Vec<MediaImage>, String> {
        let world = self.world(images);
        let opened = world.run_until(async {
            let engine = self.open(&world).await?;
            self.judge(&engine).await?;
            Ok::<_, String>(engine)
        });
        let engine = opened.map_err(|error| error.to_string())??;
        if self.rng.below(4) > 0 {
            world.crash_after(world.step_count() + 1 + self.rng.below(120));
        }
        match world.run_until(self.work(&world, &engine)) {
            Ok(done) => done?,
            Err(SimError::Crashed { .. }) => {}
            Err(error) => return Err(error.to_string()),
        }
        drop(engine);
        let plan = if self.rng.coin() { CutPlan::Nothing } else { CutPlan::Everything };
        Ok(world.cut(plan))
    }

    async fn work(&mut self, world: &SimWorld, engine: &Arc<Engine>) -> Result<(), String> {
        let background = Background::start(world, engine);
        for _ in 0..STEPS {
            self.step(engine).await?;
        }
        background.stop(engine).await
    }

    async fn step(&mut self, engine: &Arc<Engine>) -> Result<(), String> {
        let number = NUMBERS[self.rng.index(NUMBERS.len())];
        match self.rng.below(20) {
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

    /// Performs changes of one object. They must fail if its slot is lost.
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
        let record = RECORDS[self.rng.index(RECORDS.len())];
        let seed = seed_for(self.rng.next_u64() >> 1, (number, record));
        let tag = 1 + self.rng.below(200) as u8;
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
        let record = RECORDS[self.rng.index(RECORDS.len())];
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
        let taken = engine.create_snapshots(&[id(FILES, &name)]).await;
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
        let name = names[self.rng.index(names.len())].clone();
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
        let done = engine.rollback(&id(FILES, &name), true).await;
        done.map_err(|error| format!("rollback: {error}"))?;
        self.settle();
        Ok(())
    }

    /// Reads everything, compares it with the possible states, newest first, and keeps the state
    /// that it shows.
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
        counts(engine).await
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

    /// Checks, after a complete scrub, that the damage list has only unreadable slots and records.
    fn judge_list(&self, engine: &Engine) -> Result<(), String> {
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

    /// Checks the pool, destroys the dataset, and expects all of its space to be freed.
    fn end(&mut self, images: Vec<MediaImage>) -> Result<(), String> {
        let world = self.world(images);
        let ended = world.run_until(async {
            let engine = self.open(&world).await?;
            self.judge(&engine).await?;
            let background = Background::start(&world, &engine);
            engine.scrub_start().map_err(|error| format!("scrub: {error}"))?;
            world.executor().sleep(SETTLED_AFTER).await;
            self.judge(&engine).await?;
            self.judge_list(&engine)?;
            let destroyed = engine.destroy_volume(FILES, true).await;
            destroyed.map_err(|error| format!("destroy: {error}"))?;
            world.executor().sleep(SETTLED_AFTER).await;
            background.stop(&engine).await?;
            if engine.pool().damaged_since().is_some() {
                return Err(format!("damage is left: {:?}", engine.damage()));
            }
            counts(&engine).await
        });
        ended.map_err(|error| error.to_string())?
    }
}
