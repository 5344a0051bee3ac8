//! Actor of a scenario that uses datasets with many objects: operations, syncs, snapshots,
//! rollbacks and a clone. `replica` replicates the datasets.
//!
//! Invariants:
//! - one operation runs at a time, so their order is known; syncs run concurrently with operations;
//! - each acknowledgement is recorded in its executor step, before another task runs.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Mutex;
use weir_base::{ErrorKind, ObjectId};
use weir_dataset::{DatasetError, Engine, SnapshotId, SyncOf, Volume};

use super::book::{DatasetBook, NAMES, ObjectsBook, SnapshotOfObjects};
use super::content::{ObjectsState, RECORDS, seed_for};
use super::layer::{LAYER, ObjectOp, apply};
use super::model::{ObjectsHistory, Synced};
use crate::coverage::{CoveragePoint, note};
use crate::error::Stop;
use crate::executor::Executor;
use crate::expected::ExpectedState;
use crate::history::Presence;
use crate::rng::Rng;

/// Maximum number of snapshots, so that a small pool has space for changes.
const SNAPSHOTS_MAX: usize = 3;

/// One task of the actor. The tasks share `turn` and `chains`.
pub(crate) struct ObjectsActor {
    pub(crate) rng: Rng,
    pub(crate) engine: Arc<Engine>,
    pub(crate) expected: Rc<RefCell<ExpectedState>>,
    pub(crate) executor: Executor,
    /// Object of the last operation.
    pub(crate) recent: Option<u64>,
    /// Lock that each operation holds, so that operations run one after the other.
    pub(crate) turn: Rc<Mutex<()>>,
    /// Lock that a task holds while it takes, destroys, sends or clones snapshots. Operations on
    /// objects do not take this lock, so operations continue during a send.
    pub(crate) chains: Rc<Mutex<()>>,
}

impl ObjectsActor {
    pub(super) fn book<T>(&self, of: impl FnOnce(&mut ObjectsBook) -> T) -> T {
        of(&mut self.expected.borrow_mut().objects)
    }

    pub(super) fn dataset<T>(&self, index: usize, of: impl FnOnce(&mut DatasetBook) -> T) -> T {
        self.book(|book| of(&mut book.datasets[index]))
    }

    /// Performs one operation or administrative call.
    pub(crate) async fn step(&mut self) -> Result<(), Stop> {
        let turn = Rc::clone(&self.turn);
        let _turn = turn.lock().await;
        if self.dataset(0, |book| book.presence) == Presence::Gone {
            return self.create().await;
        }
        let has_copy = self.dataset(1, |book| book.presence) == Presence::There;
        let index = usize::from(has_copy && self.rng.below(4) == 0);
        let draw = self.rng.below(40);
        let chains = Rc::clone(&self.chains);
        let Ok(_chains) = chains.try_lock() else { return self.operate(index).await };
        match draw {
            0 | 1 => self.take_snapshot(index).await,
            2 => self.destroy_snapshot().await,
            3 => self.roll_back().await,
            4 if has_copy => self.destroy_copy().await,
            4 => self.clone_snapshot().await,
            5 => self.engine.commit().await.map_err(Stop::Failed),
            6..9 if has_copy => self.promote().await,
            _ => self.operate(index).await,
        }
    }

    /// Syncs a dataset, concurrently with operations.
    pub(crate) async fn sync_step(&mut self) -> Result<(), Stop> {
        let has_copy = self.dataset(1, |book| book.presence) == Presence::There;
        let index = usize::from(has_copy && self.rng.below(4) == 0);
        // Skip a dataset that does not exist. If a rollback replaces the history during the sync,
        // the check of `generation` below drops the result of the sync.
        let Ok(volume) = self.engine.volume(NAMES[index]) else { return Ok(()) };
        let choice_of_object = self.rng.next_u64() as usize;
        let number = self.book(|book| book.numbers[choice_of_object % book.numbers.len()]);
        let choice = self.rng.below(6);
        let of = match choice {
            0 => SyncOf::All,
            1 => SyncOf::Namespace,
            _ => SyncOf::Object(ObjectId(number)),
        };
        let (synced, rolls) =
            self.dataset(index, |book| (book.history.syncing(of), book.generation));
        match self.engine.sync_objects(&volume, of).await {
            Ok(()) => {
                self.dataset(index, |book| {
                    if book.generation == rolls && book.rolling.is_none() {
                        book.history.add_synced(synced);
                    }
                });
                note(CoveragePoint::ObjectsSynced);
                Ok(())
            }
            Err(error) => Err(Stop::Failed(error)),
        }
    }

    async fn create(&mut self) -> Result<(), Stop> {
        self.dataset(0, |book| book.presence = Presence::Creating);
        let made = self.engine.create_object_dataset(NAMES[0], LAYER, &[]).await;
        match made {
            Ok(()) => self.dataset(0, |book| book.presence = Presence::There),
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.dataset(0, |book| book.presence = Presence::Gone);
            }
            Err(error) => return Err(Stop::Failed(error)),
        }
        Ok(())
    }

    fn volume(&self, index: usize) -> Result<Arc<Volume>, Stop> {
        let volume = self.engine.volume(NAMES[index]);
        volume.map_err(|error| Stop::Broken(format!("{}: {error}", NAMES[index])))
    }

    async fn operate(&mut self, index: usize) -> Result<(), Stop> {
        let volume = self.volume(index)?;
        let op = {
            let book = &self.expected.borrow().objects;
            let state = book.datasets[index].history.now();
            some_op(&mut self.rng, state, &book.numbers, self.recent)
        };
        self.recent = Some(op.object());
        self.dataset(index, |book| book.history.push(op));
        match apply(&volume, op).await {
            Ok(Ok(())) => self.dataset(index, |book| book.history.acknowledge()),
            Ok(Err(what)) => return Err(Stop::Broken(format!("{op:?}: {what}"))),
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                note(CoveragePoint::NoSpace);
                self.dataset(index, |book| book.history.undo());
            }
            Err(error) => return Err(Stop::Failed(error)),
        }
        Ok(())
    }

    pub(super) async fn take_snapshot(&mut self, owner: usize) -> Result<(), Stop> {
        let is_there = |book: &SnapshotOfObjects| book.presence == Presence::There;
        let name = self.book(|book| {
            let count = book.snapshots.iter().filter(|book| is_there(book)).count();
            if count >= SNAPSHOTS_MAX {
                return None;
            }
            book.next_snapshot += 1;
            let name = format!("o{}", book.next_snapshot);
            let (presence, state) =
                (Presence::Creating, book.datasets[owner].history.now().clone());
            book.snapshots.push(SnapshotOfObjects { name: name.clone(), owner, presence, state });
            Some(name)
        });
        let Some(name) = name else { return Ok(()) };
        let presence =
            match self.engine.create_snapshots(&[SnapshotId::new(NAMES[owner], &name)]).await {
                Ok(_) => {
                    // The commit of the snapshot made all earlier operations durable.
                    self.dataset(owner, |book| {
                        let synced = Synced::all(book.history.now());
                        book.history.add_synced(synced);
                    });
                    note(CoveragePoint::SnapshotTaken);
                    Presence::There
                }
                Err(DatasetError::CannotReserve { .. }) => Presence::Gone,
                Err(error) if error.kind() == ErrorKind::NoSpace => Presence::Gone,
                Err(error) => return Err(Stop::Failed(error)),
            };
        self.set_snapshot(&name, presence);
        Ok(())
    }

    fn set_snapshot(&self, name: &str, presence: Presence) {
        self.book(|book| {
            let found = book.snapshots.iter_mut().find(|book| book.name == name);
            if let Some(snapshot) = found {
                snapshot.presence = presence;
            }
        });
    }

    /// Draws a snapshot that exists.
    pub(super) fn some_snapshot(&mut self) -> Option<SnapshotOfObjects> {
        let rng = &mut self.rng;
        let book = &self.expected.borrow().objects;
        let there = book.snapshots.iter().filter(|book| book.presence == Presence::There);
        let there: Vec<_> = there.collect();
        (!there.is_empty()).then(|| there[rng.index(there.len())].clone())
    }

    async fn destroy_snapshot(&mut self) -> Result<(), Stop> {
        let Some(SnapshotOfObjects { name, owner, .. }) = self.some_snapshot() else {
            return Ok(());
        };
        self.set_snapshot(&name, Presence::Destroying);
        let destroyed = self.engine.destroy_snapshots(NAMES[owner], std::slice::from_ref(&name));
        let presence = match destroyed.await {
            Ok(_) => Presence::Gone,
            // The clone depends on this snapshot.
            Err(DatasetError::InUse { .. }) => Presence::There,
            Err(error) => return Err(Stop::Failed(error)),
        };
        self.set_snapshot(&name, presence);
        Ok(())
    }

    async fn roll_back(&mut self) -> Result<(), Stop> {
        let Some(snapshot) = self.some_snapshot() else { return Ok(()) };
        let newer = self.newer_than(&snapshot);
        let SnapshotOfObjects { name, owner, state, .. } = snapshot;
        newer.iter().for_each(|name| self.set_snapshot(name, Presence::Destroying));
        self.dataset(owner, |book| book.rolling = Some(state.clone()));
        let rolled = self.engine.rollback(&SnapshotId::new(NAMES[owner], &name), true).await;
        let presence = match rolled {
            Ok(_) => {
                self.dataset(owner, |book| {
                    book.history = ObjectsHistory::of_state(state);
                    book.generation += 1;
                });
                note(CoveragePoint::RolledBack);
                Presence::Gone
            }
            Err(DatasetError::InUse { .. }) => Presence::There,
            Err(error) if error.kind() == ErrorKind::NoSpace => Presence::There,
            Err(error) => return Err(Stop::Failed(error)),
        };
        self.dataset(owner, |book| book.rolling = None);
        newer.iter().for_each(|name| self.set_snapshot(name, presence));
        Ok(())
    }

    /// Names of the snapshots of the same dataset that are newer than `snapshot`.
    pub(super) fn newer_than(&self, snapshot: &SnapshotOfObjects) -> Vec<String> {
        let book = &self.expected.borrow().objects;
        let after = book.snapshots.iter().skip_while(|book| book.name != snapshot.name).skip(1);
        let is_newer = |book: &&SnapshotOfObjects| {
            (book.owner, book.presence) == (snapshot.owner, Presence::There)
        };
        after.filter(is_newer).map(|book| book.name.clone()).collect()
    }

    async fn clone_snapshot(&mut self) -> Result<(), Stop> {
        let Some(SnapshotOfObjects { name, owner, state, .. }) = self.some_snapshot() else {
            return Ok(());
        };
        self.book(|book| book.origin = Some(name.clone()));
        self.dataset(1, |book| {
            let generation = book.generation + 1;
            let history = ObjectsHistory::of_state(state);
            *book =
                DatasetBook { presence: Presence::Creating, history, generation, rolling: None };
        });
        let made =
            self.engine.clone_snapshot(&SnapshotId::new(NAMES[owner], &name), NAMES[1]).await;
        let presence = match made {
            Ok(_) => Presence::There,
            Err(error) if error.kind() == ErrorKind::NoSpace => Presence::Gone,
            Err(error) => return Err(Stop::Failed(error)),
        };
        self.dataset(1, |book| book.presence = presence);
        Ok(())
    }

    async fn destroy_copy(&mut self) -> Result<(), Stop> {
        self.dataset(1, |book| book.presence = Presence::Destroying);
        let own: Vec<String> = self.book(|book| {
            let is_own =
                |book: &&SnapshotOfObjects| (book.owner, book.presence) == (1, Presence::There);
            book.snapshots.iter().filter(is_own).map(|book| book.name.clone()).collect()
        });
        own.iter().for_each(|name| self.set_snapshot(name, Presence::Destroying));
        let presence = match self.engine.destroy_volume(NAMES[1], true).await {
            Ok(_) => Presence::Gone,
            // After a promotion, the first dataset is a clone of a snapshot of the copy.
            Err(DatasetError::InUse { .. }) => Presence::There,
            Err(error) => return Err(Stop::Failed(error)),
        };
        own.iter().for_each(|name| self.set_snapshot(name, presence));
        self.dataset(1, |book| book.presence = presence);
        self.book(|book| book.origin.take_if(|_| presence == Presence::Gone));
        Ok(())
    }

    async fn promote(&mut self) -> Result<(), Stop> {
        let Some(clone) = self.book(|book| book.clone_index()) else { return Ok(()) };
        self.book(|book| book.promoting = true);
        let done = self.engine.promote(NAMES[clone]).await;
        self.book(|book| book.promoting = false);
        match done {
            Ok(_) => {
                self.book(ObjectsBook::promoted);
                note(CoveragePoint::ObjectsPromoted);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(()),
            Err(error) => {
                // After an error, the promotion may be complete or may have had no effect.
                self.book(|book| book.promoting = true);
                Err(Stop::Failed(error))
            }
        }
    }
}

/// Draws an operation that is possible in a state.
fn some_op(rng: &mut Rng, state: &ObjectsState, numbers: &[u64], recent: Option<u64>) -> ObjectOp {
    let number = match recent {
        // Prefer the object of the last operation: several unlogged changes of one object are the
        // hardest case of the log.
        Some(recent) if rng.below(3) > 0 => recent,
        _ => numbers[rng.index(numbers.len())],
    };
    let seq = state.names + 1;
    let Some(object) = state.objects.get(&number) else {
        return ObjectOp::Create { object: number, seq };
    };
    let (born, change) = (object.born, object.changes + 1);
    let record = RECORDS[rng.index(RECORDS.len())];
    match rng.below(20) {
        0 => ObjectOp::Remove { object: number, seq },
        1 if !object.is_orphan => ObjectOp::Unlink { object: number, seq },
        2..6 if !object.is_orphan => {
            let named = state.objects.iter().filter(|(_, object)| !object.is_orphan);
            let named: Vec<u64> = named.map(|(number, _)| *number).collect();
            let other = named[rng.index(named.len())];
            ObjectOp::Name { object: number, other, seq }
        }
        6..8 => ObjectOp::Truncate { object: number, born, change, record },
        _ => {
            let seed = seed_for(rng.next_u64() >> 1, (number, record));
            ObjectOp::Write { object: number, born, change, record, seed }
        }
    }
}
