//! Random changes, syncs, batches and commits of an object log. The tests check the state that a
//! crash could leave after each step (docs/decisions/0028).
//!
//! Invariants, after each batch and each commit:
//! - the durable namespace changes are a prefix of all namespace changes;
//! - the durable changes of an object are a prefix of its changes since it got its name;
//! - if a namespace change is durable, so are all earlier changes of the objects that it names;
//! - a finished sync has made its changes durable.

use fastrand::Rng;
use std::collections::BTreeSet;

use super::*;

/// Changes of a dataset, and which of them survive a crash.
struct Model {
    log: ObjectLog,
    bug: PlantedBug,
    txg: Txg,
    acked: Lsn,
    /// All changes in the order of their LSNs, from 1 on.
    changes: Vec<Arc<ObjectRecord>>,
    durable: BTreeSet<Lsn>,
    /// Txg whose commit makes the changes of the whole dataset durable, because the log dropped
    /// them.
    skip: Option<Txg>,
    /// LSN of the last change in the syncing txg.
    syncing: Option<Lsn>,
    /// Number of queues that the log dropped because of a limit.
    drops: usize,
    /// Number of batches that were full, so that some changes had to wait for the next batch.
    cuts: usize,
}

impl Model {
    fn new(bug: PlantedBug) -> Self {
        Self {
            log: ObjectLog::new(&Arc::new(LogTotal::new(u64::MAX))),
            bug,
            txg: Txg(1),
            acked: Lsn(0),
            changes: Vec::new(),
            durable: BTreeSet::new(),
            skip: None,
            syncing: None,
            drops: 0,
            cuts: 0,
        }
    }

    fn change(&mut self, record: ObjectRecord) {
        self.acked = Lsn(self.acked.0 + 1);
        self.changes.push(Arc::new(record.clone()));
        if self.skip == Some(self.txg) {
            return;
        }
        let before = self.log.bytes.get();
        if !self.log.push((self.acked, self.txg), record, self.bug) {
            self.skip = Some(self.txg);
        }
        self.drops += usize::from(self.log.bytes.get() + (1 << 20) < before);
    }

    /// Next step of a sync, as `volume::flush` determines it.
    fn next_step(&self, of: SyncOf, target: Lsn) -> FlushStep {
        match self.skip {
            Some(txg) => FlushStep::Commit(txg),
            None => self.log.next_step(of, target, self.bug),
        }
    }

    fn freeze(&mut self) {
        self.syncing = Some(self.acked);
        self.txg = self.txg.next();
    }

    fn settle(&mut self) {
        let Some(lsn) = self.syncing.take() else { return };
        let txg = Txg(self.txg.0 - 1);
        self.durable.extend((1..=lsn.0).map(Lsn));
        self.skip = self.skip.filter(|skip| *skip > txg);
        self.log.settle(txg, lsn);
        self.check();
    }

    /// Copies the changes of a batch and makes them durable. Adds random changes in between, as
    /// clients do during a log write.
    fn write_batch(&mut self, numbers: &mut Rng) {
        if self.skip.is_some() {
            return;
        }
        let mut room = LOG_BATCH_BYTES_MAX;
        let taken = self.log.take(&mut room, self.bug);
        for _ in 0..numbers.u64(..3) {
            let record = random_record(numbers);
            self.change(record);
        }
        self.durable.extend(taken.records.iter().map(|change| change.lsn));
        self.log.set_durable(&taken);
        self.cuts += usize::from(room < LOG_BATCH_BYTES_MAX / 8);
        self.check();
    }

    /// Checks the state that a crash would leave now.
    fn check(&self) {
        let is_durable = |lsn: &Lsn| self.durable.contains(lsn);
        let all = || (1..).map(Lsn).zip(&self.changes);
        let names = |record: &ObjectRecord| match &record.order {
            LogOrder::Object => Vec::new(),
            LogOrder::Namespace { names, ends } => [&names[..], &ends[..]].concat(),
        };
        let namespace = all().filter(|(_, record)| !matches!(record.order, LogOrder::Object));
        let survives: Vec<bool> = namespace.map(|(lsn, _)| is_durable(&lsn)).collect();
        assert!(survives.is_sorted_by(|a, b| a >= b), "no prefix of the namespace: {survives:?}");
        for object in (1..=OBJECTS).map(ObjectId) {
            // Changes of the object since it got its name, in the namespace that survives.
            let mut own: Vec<Lsn> = Vec::new();
            let mut is_named = true;
            let mut named = Lsn(0);
            for (lsn, record) in all() {
                match &record.order {
                    LogOrder::Object if record.object == object && is_named => own.push(lsn),
                    LogOrder::Namespace { ends, .. }
                        if is_durable(&lsn) && names(record).contains(&object) =>
                    {
                        is_named = !ends.contains(&object);
                        if is_named {
                            named = lsn;
                        } else {
                            own.clear();
                        }
                    }
                    // The crash lost this removal of the name. The log has no changes of the object
                    // after the removal, so these changes may be lost.
                    LogOrder::Namespace { ends, .. } if ends.contains(&object) => break,
                    _ => {}
                }
            }
            let survives: Vec<bool> = own.iter().map(is_durable).collect();
            assert!(survives.is_sorted_by(|a, b| a >= b), "no prefix of {object:?}: {own:?}");
            let lost = own.iter().find(|lsn| **lsn < named && !is_durable(lsn));
            assert_eq!(lost, None, "lost, although {named:?} names {object:?}");
        }
    }

    /// Checks that the changes of a finished sync are durable. The log need not have the changes of
    /// an object that lost its name.
    fn check_synced(&self, of: SyncOf, target: Lsn) {
        // Objects that lose their name in a durable namespace change after the change of this
        // iteration.
        let mut ended: BTreeSet<ObjectId> = BTreeSet::new();
        for (index, record) in self.changes.iter().enumerate().rev() {
            let lsn = Lsn(index as u64 + 1);
            let is_durable = self.durable.contains(&lsn);
            let is_own = match &record.order {
                LogOrder::Namespace { ends, .. } => {
                    ended.extend(ends.iter().filter(|_| is_durable));
                    true
                }
                LogOrder::Object => {
                    let is_synced =
                        matches!(of, SyncOf::All) || of == SyncOf::Object(record.object);
                    let is_obsolete = ended.contains(&record.object) || self.is_after_end(lsn);
                    is_synced && !is_obsolete
                }
            };
            assert!(!is_own || is_durable || lsn > target, "{of:?} finished without {lsn:?}");
        }
    }

    /// True if the object of a change had no name at the time of the change.
    fn is_after_end(&self, lsn: Lsn) -> bool {
        let object = self.changes[lsn.0 as usize - 1].object;
        let before = self.changes[..lsn.0 as usize - 1].iter().rev();
        let last = before.filter_map(|record| match &record.order {
            LogOrder::Namespace { ends, .. } if ends.contains(&object) => Some(true),
            LogOrder::Namespace { names, .. } if names.contains(&object) => Some(false),
            _ => None,
        });
        last.take(1).any(|is_end| is_end)
    }
}

const OBJECTS: u64 = 6;

fn random_record(numbers: &mut Rng) -> ObjectRecord {
    let mut object = || ObjectId(1 + numbers.u64(..OBJECTS));
    let [object, other] = [object(), object()];
    let order = match numbers.u64(..10) {
        0..6 => LogOrder::Object,
        6 | 7 => LogOrder::Namespace { names: vec![object], ends: Vec::new() },
        8 => LogOrder::Namespace { names: vec![object], ends: vec![other] },
        _ => LogOrder::Namespace { names: Vec::new(), ends: vec![object] },
    };
    let order = match order {
        LogOrder::Namespace { names, ends } if names == ends => {
            LogOrder::Namespace { names, ends: Vec::new() }
        }
        order => order,
    };
    let blocks = match (&order, numbers.u64(..12)) {
        (LogOrder::Object, 0) => 1000,
        (LogOrder::Object, 1..4) => 200,
        (LogOrder::Namespace { .. }, 0) => 100,
        _ => 0,
    };
    let block = Block::copy_of(&[7; BLOCK_BYTES]);
    let payload = vec![0; numbers.u64(..300) as usize];
    ObjectRecord { object, kind: 16, order, payload, blocks: vec![block; blocks], frees: false }
}

/// Runs random steps. Returns the numbers of dropped queues and of batches that were full.
fn run(seed: u64, bug: PlantedBug) -> (usize, usize) {
    let mut numbers = Rng::with_seed(seed);
    let mut model = Model::new(bug);
    let mut syncs: Vec<(SyncOf, Lsn)> = Vec::new();
    for _ in 0..300 {
        match numbers.u64(..20) {
            0 if model.syncing.is_none() => model.freeze(),
            0 | 1 => model.settle(),
            2..5 if syncs.len() < 4 => {
                let of = match numbers.u64(..5) {
                    0 => SyncOf::All,
                    1 => SyncOf::Namespace,
                    _ => SyncOf::Object(ObjectId(1 + numbers.u64(..OBJECTS))),
                };
                model.log.add_waiting(of, model.acked);
                syncs.push((of, model.acked));
            }
            5..9 if !syncs.is_empty() => {
                let index = numbers.u64(..syncs.len() as u64) as usize;
                let (of, target) = syncs[index];
                match model.next_step(of, target) {
                    FlushStep::Log => model.write_batch(&mut numbers),
                    FlushStep::Commit(txg) => assert!(txg <= model.txg),
                    FlushStep::Done => {
                        model.check_synced(of, target);
                        model.log.remove_waiting(of, target);
                        syncs.remove(index);
                    }
                }
            }
            _ => {
                let record = random_record(&mut numbers);
                model.change(record);
            }
        }
    }
    let queues = model.log.objects.values().chain([&model.log.namespace]);
    assert_eq!(queues.map(|queue| queue.bytes).sum::<u64>(), model.log.bytes.get());
    (model.drops, model.cuts)
}

#[test]
fn crash_leaves_a_prefix_of_each_order_under_the_closure_rule() {
    let results: Vec<_> = (0..400).map(|seed| run(seed, PlantedBug::None)).collect();
    let (drops, cuts) = results.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert!(drops > 50 && cuts > 50, "{drops} queues dropped, {cuts} batches full");
}

#[test]
fn planted_bugs_break_the_promise() {
    for bug in [PlantedBug::NamedNotLogged, PlantedBug::EndDropsNamed, PlantedBug::EndNotSynced] {
        let found = (0..400).any(|seed| std::panic::catch_unwind(|| run(seed, bug)).is_err());
        assert!(found, "{bug:?} was not noticed");
    }
}

#[test]
fn queues_stay_below_their_total() {
    let mut log = ObjectLog::new(&Arc::new(LogTotal::new(u64::MAX)));
    let block = Block::copy_of(&[7; BLOCK_BYTES]);
    let record = |object| ObjectRecord {
        object: ObjectId(object),
        kind: 16,
        order: LogOrder::Object,
        payload: Vec::new(),
        blocks: vec![block.clone(); 900],
        frees: false,
    };
    let mut most = 0;
    for lsn in 1..=400 {
        assert!(log.push((Lsn(lsn), Txg(1)), record(1 + lsn % 40), PlantedBug::None));
        most = most.max(log.bytes.get());
    }
    assert!((OBJECTS_QUEUED_BYTES_MAX / 2..=OBJECTS_QUEUED_BYTES_MAX).contains(&most), "{most}");
    log.settle(Txg(1), Lsn(400));
    assert!(log.bytes.get() == 0 && log.objects.is_empty());
}

#[test]
fn logs_of_several_datasets_stay_below_the_total_of_the_pool() {
    const MAX: u64 = 8 << 20;
    let total = Arc::new(LogTotal::new(MAX));
    let mut logs: Vec<_> = (0..40).map(|_| ObjectLog::new(&total)).collect();
    let mut most = 0;
    let mut drops = 0;
    for lsn in 1..=30_000 {
        let mut record = namespace_record(lsn % 7);
        if lsn % 3 != 0 {
            record.order = LogOrder::Object;
        }
        record.payload = vec![0; 1_000];
        // The first dataset changes as much as all others together.
        let log = if lsn % 2 == 0 { &mut logs[0] } else { &mut logs[lsn as usize / 2 % 40] };
        drops += usize::from(!log.push((Lsn(lsn), Txg(1)), record, PlantedBug::None));
        most = most.max(total.bytes());
    }
    assert!((MAX / 2..=MAX).contains(&most) && drops > 0, "{most} bytes, {drops} drops");
    let small = logs[1].bytes.get();
    assert!(small > 0, "a log with few bytes is not dropped for the large one");
    drop(logs);
    assert_eq!(total.bytes(), 0);
}

#[test]
fn many_small_queues_are_not_searched_for_each_change() {
    let total = Arc::new(LogTotal::new(u64::MAX));
    let mut log = ObjectLog::new(&total);
    let mut drops = 0;
    for lsn in 1..=200_000 {
        let before = log.bytes.get();
        let mut record = namespace_record(lsn);
        record.order = LogOrder::Object;
        record.payload = vec![0; 1_000];
        assert!(log.push((Lsn(lsn), Txg(1)), record, PlantedBug::None));
        drops += usize::from(log.bytes.get() < before);
    }
    assert!((1..=30).contains(&drops), "{drops} searches");
}

fn namespace_record(object: u64) -> ObjectRecord {
    ObjectRecord {
        object: ObjectId(object),
        kind: 16,
        order: LogOrder::Namespace { names: Vec::new(), ends: Vec::new() },
        payload: Vec::new(),
        blocks: Vec::new(),
        frees: false,
    }
}
