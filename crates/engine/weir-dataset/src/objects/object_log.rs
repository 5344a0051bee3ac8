//! Object log: the changes of a dataset with many objects that are neither in the intent log nor
//! committed. It has one order for the namespace and one for each object (docs/decisions/0028).
//! After a crash the dataset has a prefix of each order, under the closure rule.
//!
//! `volume::objects` adds changes, `volume::flush` logs them. The `LogQueue` of the dataset assigns
//! the LSNs.
//!
//! Invariants:
//! - closure rule: a batch with a namespace change that names an object has all earlier changes of
//!   that object that are not durable yet;
//! - each queue has its changes in the order of their LSNs;
//! - a queue that dropped changes of a txg is not logged before the commit of this txg.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use weir_base::limits::{
    LOG_BATCH_BYTES_MAX, NAMESPACE_QUEUED_BYTES_MAX, OBJECT_QUEUED_BYTES_MAX,
    OBJECTS_QUEUED_BYTES_MAX,
};
use weir_base::{BLOCK_BYTES, Lsn, ObjectId, Txg};
use weir_block::Block;
use weir_pool::PlantedBug;

use crate::objects::log_bytes::{LogBytes, LogTotal};
use crate::objects::log_queue::FlushStep;

/// Memory of a queued change in addition to its payload.
const ENTRY_BYTES: u64 = 128;

/// Log record of one change of a dataset with many objects.
#[derive(Clone, Debug)]
pub struct ObjectRecord {
    /// The changed object. For a namespace change: the object that it creates, removes or renames.
    pub object: ObjectId,
    /// Type of the record, at least `weir_format::log::OBJECT_TYPE_MIN`.
    pub kind: u8,
    /// The order to which the change belongs.
    pub order: LogOrder,
    /// Payload, which only the layer above interprets.
    pub payload: Vec<u8>,
    /// Blocks that follow the payload. The dirty data of the object shares their memory.
    pub blocks: Vec<Block>,
    /// True if the change frees space, so that it may use space that other changes cannot use.
    pub frees: bool,
}

/// Order of a change in the log.
#[derive(Clone, Debug)]
pub enum LogOrder {
    /// The order of the object's own changes, such as writes.
    Object,
    /// The order of the namespace: creations, removals and renames.
    Namespace {
        /// Objects that the change names. If the change survives a crash, so do all earlier changes
        /// of these objects.
        names: Vec<ObjectId>,
        /// Objects that lose their last name with the change. Later changes of such an object are
        /// not logged until its number is reused and a namespace change names it again.
        ends: Vec<ObjectId>,
    },
}

/// Changes that a sync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncOf {
    /// All changes of the dataset.
    All,
    /// All changes of the namespace.
    Namespace,
    /// All changes of the namespace and of this object.
    Object(ObjectId),
}

impl ObjectRecord {
    /// Length of the payload with the blocks, in bytes.
    pub(crate) fn payload_bytes(&self) -> usize {
        self.payload.len() + self.blocks.len() * BLOCK_BYTES
    }

    fn queued_bytes(&self) -> u64 {
        let named = match &self.order {
            LogOrder::Object => 0,
            LogOrder::Namespace { names, ends } => names.len() + ends.len(),
        };
        ENTRY_BYTES + (self.payload_bytes() + named * size_of::<ObjectId>()) as u64
    }

    fn names(&self) -> &[ObjectId] {
        match &self.order {
            LogOrder::Object => &[],
            LogOrder::Namespace { names, .. } => names,
        }
    }
}

/// A change that waits for the intent log or for a commit.
#[derive(Clone)]
pub(crate) struct QueuedObjectRecord {
    pub(crate) lsn: Lsn,
    pub(crate) txg: Txg,
    pub(crate) record: Arc<ObjectRecord>,
}

/// Changes that a queue dropped or did not accept, because a commit makes them durable.
#[derive(Clone, Copy)]
struct Skip {
    /// The commit of this txg makes the skipped changes durable.
    txg: Txg,
    /// LSN of the first skipped change.
    first: Lsn,
}

/// Queued changes of one object, or of the namespace.
#[derive(Default)]
struct Queue {
    records: VecDeque<QueuedObjectRecord>,
    bytes: u64,
    skip: Option<Skip>,
}

impl Queue {
    /// True if the queue does not accept changes of `txg`, because its commit makes them durable.
    fn skips(&self, txg: Txg) -> bool {
        self.skip.is_some_and(|skip| skip.txg == txg)
    }

    /// Adds a change. Returns its memory in bytes.
    fn push(&mut self, change: QueuedObjectRecord) -> u64 {
        let bytes = change.record.queued_bytes();
        self.bytes += bytes;
        self.records.push_back(change);
        bytes
    }

    /// Removes the changes up to `lsn`. Returns the memory that they took, in bytes.
    fn pop_until(&mut self, lsn: Lsn) -> u64 {
        let before = self.bytes;
        while let Some(change) = self.records.pop_front_if(|change| change.lsn <= lsn) {
            self.bytes -= change.record.queued_bytes();
        }
        before - self.bytes
    }

    /// Drops all changes of the queue: the commit of `txg` makes them durable. Returns the memory
    /// that they took, in bytes.
    fn skip(&mut self, txg: Txg) -> u64 {
        let first = self.skip.map(|skip| skip.first);
        let first = first.or(self.records.front().map(|change| change.lsn));
        self.skip = first.map(|first| Skip { txg, first });
        self.records.clear();
        std::mem::take(&mut self.bytes)
    }

    /// Returns the next step towards making the changes up to `target` durable.
    fn next_step(&self, target: Lsn) -> FlushStep {
        match (self.skip, self.records.front()) {
            (Some(skip), _) if skip.first <= target => FlushStep::Commit(skip.txg),
            (_, Some(oldest)) if oldest.lsn <= target => FlushStep::Log,
            _ => FlushStep::Done,
        }
    }

    fn is_idle(&self) -> bool {
        self.records.is_empty() && self.skip.is_none()
    }
}

/// Changes of one dataset for one log batch.
pub(crate) struct TakenObjects {
    /// The changes, ordered by LSN.
    pub(crate) records: Vec<QueuedObjectRecord>,
    /// Objects in this batch: `records` has all their changes up to the last LSN of the batch.
    objects: Vec<ObjectId>,
}

/// Loss of an object's last name.
struct Ended {
    /// LSN of the namespace change that removed the name.
    lsn: Lsn,
    /// True if a later namespace change names the object again.
    is_reused: bool,
}

pub(crate) struct ObjectLog {
    namespace: Queue,
    objects: BTreeMap<ObjectId, Queue>,
    /// Sum of the bytes of all queues.
    bytes: LogBytes,
    /// Objects that queued namespace changes name, each with the LSN of the last such change.
    named: BTreeMap<ObjectId, Lsn>,
    /// Objects that lost their last name in a queued namespace change.
    ended: BTreeMap<ObjectId, Ended>,
    /// Syncs in progress, each with the LSN of the last change that it makes durable.
    waiting: Vec<(SyncOf, Lsn)>,
    /// Newest txg that a queue of an object skips; `None` if no such queue skips any. So a sync
    /// usually need not look at all queues that the closure rule names.
    skips: Option<Txg>,
}

impl ObjectLog {
    /// A log without changes. It adds its bytes to `total`.
    pub(crate) fn new(total: &Arc<LogTotal>) -> Self {
        Self {
            namespace: Queue::default(),
            objects: BTreeMap::new(),
            bytes: LogBytes::new(total),
            named: BTreeMap::new(),
            ended: BTreeMap::new(),
            waiting: Vec::new(),
            skips: None,
        }
    }

    /// True if [`Self::push`] queues this change. The log needs no blocks of other changes.
    pub(crate) fn accepts(&self, record: &ObjectRecord, txg: Txg) -> bool {
        match record.order {
            LogOrder::Object => {
                let queue = self.objects.get(&record.object);
                !self.is_ended(record.object) && !queue.is_some_and(|queue| queue.skips(txg))
            }
            LogOrder::Namespace { .. } => true,
        }
    }

    /// Queues a change. Returns false if the queue of the namespace exceeds its limit or has no
    /// room in the total of the pool. The log has then dropped all changes of the dataset, and only
    /// the commit of `txg` makes them durable.
    pub(crate) fn push(
        &mut self,
        (lsn, txg): (Lsn, Txg),
        record: ObjectRecord,
        bug: PlantedBug,
    ) -> bool {
        let record = Arc::new(record);
        let change = QueuedObjectRecord { lsn, txg, record: Arc::clone(&record) };
        match &record.order {
            LogOrder::Object if !self.accepts(&record, txg) => {}
            LogOrder::Object => {
                let queue = self.objects.entry(record.object).or_default();
                self.bytes.add(queue.push(change));
                if queue.bytes > OBJECT_QUEUED_BYTES_MAX {
                    self.bytes.sub(queue.skip(txg));
                    self.skips = Some(txg);
                }
            }
            LogOrder::Namespace { names, ends } => {
                for object in names {
                    if let Some(ended) = self.ended.get_mut(object) {
                        ended.is_reused = true;
                    }
                }
                for object in ends {
                    self.end(*object, lsn, bug);
                }
                self.named.extend(names.iter().map(|object| (*object, lsn)));
                self.bytes.add(self.namespace.push(change));
                if self.namespace.bytes > NAMESPACE_QUEUED_BYTES_MAX {
                    self.clear();
                    return false;
                }
            }
        }
        self.keep_bound(txg)
    }

    /// True if an object has no name, so that its changes are not logged.
    fn is_ended(&self, object: ObjectId) -> bool {
        self.ended.get(&object).is_some_and(|ended| !ended.is_reused)
    }

    /// Drops the queued changes of an object that loses its last name with the namespace change
    /// `lsn`. Keeps changes before the last queued namespace change that names the object: if a
    /// crash leaves this naming change and loses the removal, the closure rule requires the earlier
    /// changes.
    fn end(&mut self, object: ObjectId, lsn: Lsn, bug: PlantedBug) {
        self.ended.insert(object, Ended { lsn, is_reused: false });
        let keep = match self.named.get(&object) {
            Some(named) if bug != PlantedBug::EndDropsNamed => *named,
            _ => Lsn(0),
        };
        let Some(queue) = self.objects.get_mut(&object) else { return };
        while let Some(change) = queue.records.pop_back_if(|change| change.lsn > keep) {
            let bytes = change.record.queued_bytes();
            queue.bytes -= bytes;
            self.bytes.sub(bytes);
        }
        queue.skip = queue.skip.filter(|skip| skip.first <= keep);
        if queue.is_idle() {
            self.objects.remove(&object);
        }
    }

    /// If all queues together exceed their bound, drops the changes of the objects with the largest
    /// queues. If the namespace queue alone exceeds the bound, drops all changes and returns false.
    /// The commit of `txg` makes the dropped changes durable.
    fn keep_bound(&mut self, txg: Txg) -> bool {
        if self.bytes.fits(OBJECTS_QUEUED_BYTES_MAX) {
            return true;
        }
        let bound = self.bytes.bound(OBJECTS_QUEUED_BYTES_MAX);
        let mut queues: Vec<&mut Queue> = self.objects.values_mut().collect();
        queues.sort_unstable_by_key(|queue| Reverse(queue.bytes));
        // Drops an eighth more than needed, so that the next changes of many small objects do not
        // sort all queues again.
        for queue in queues {
            if self.bytes.get() <= bound - bound / 8 {
                break;
            }
            self.bytes.sub(queue.skip(txg));
            self.skips = Some(txg);
        }
        // The total no longer includes the dropped queues, so the bound may be larger now.
        let fits = self.bytes.fits(OBJECTS_QUEUED_BYTES_MAX);
        if !fits {
            self.clear();
        }
        fits
    }

    /// Drops all changes of the dataset, but keeps the registered syncs. The caller makes the
    /// changes durable by a commit of the open txg, or discards them.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.namespace = Queue::default();
        self.objects.clear();
        self.named.clear();
        self.ended.clear();
        self.skips = None;
    }

    /// Removes the changes that the commit of `txg` made durable: all up to `lsn`. Queues that
    /// waited for this commit can be logged again.
    pub(crate) fn settle(&mut self, txg: Txg, lsn: Lsn) {
        for queue in self.objects.values_mut().chain([&mut self.namespace]) {
            self.bytes.sub(queue.pop_until(lsn));
            queue.skip = queue.skip.filter(|skip| skip.txg > txg);
        }
        self.skips = self.skips.filter(|skips| *skips > txg);
        self.objects.retain(|_, queue| !queue.is_idle());
        self.remove_durable(lsn);
    }

    /// Removes the entries of `named` and `ended` whose namespace changes are durable: all up to
    /// `lsn`.
    fn remove_durable(&mut self, lsn: Lsn) {
        self.named.retain(|_, named| *named > lsn);
        self.ended.retain(|_, ended| ended.lsn > lsn);
    }

    /// Registers a sync. [`Self::take`] includes the changes of the sync until
    /// [`Self::remove_waiting`] removes the sync.
    pub(crate) fn add_waiting(&mut self, of: SyncOf, target: Lsn) {
        self.waiting.push((of, target));
    }

    /// Removes a registered sync.
    pub(crate) fn remove_waiting(&mut self, of: SyncOf, target: Lsn) {
        let found = self.waiting.iter().position(|waiting| *waiting == (of, target));
        self.waiting.swap_remove(found.expect("the sync is registered"));
    }

    /// Returns the LSN up to which a sync logs the namespace: `target`, or a later change with
    /// which an object of the sync lost its last name. The sync includes that change, because the
    /// log no longer has all of the object's own changes.
    fn namespace_target(&self, of: SyncOf, target: Lsn, bug: PlantedBug) -> Lsn {
        let ended = match of {
            _ if bug == PlantedBug::EndNotSynced => None,
            SyncOf::All => self.ended.values().map(|ended| ended.lsn).max(),
            SyncOf::Object(object) => self.ended.get(&object).map(|ended| ended.lsn),
            SyncOf::Namespace => None,
        };
        ended.map_or(target, |ended| target.max(ended))
    }

    /// Computes the closure rule: returns the objects whose changes these syncs must log together
    /// with the changes of the namespace, in ascending order. No other function computes this rule.
    fn closure(&self, syncs: &[SyncOf], bug: PlantedBug) -> Vec<ObjectId> {
        if syncs.contains(&SyncOf::All) {
            return self.objects.keys().copied().collect();
        }
        let mut objects = Vec::new();
        for of in syncs {
            if let SyncOf::Object(object) = of {
                objects.push(*object);
            }
        }
        if bug != PlantedBug::NamedNotLogged && !syncs.is_empty() {
            objects.extend(self.named.keys());
        }
        objects.sort_unstable();
        objects.dedup();
        objects
    }

    /// Returns the next step of a sync. If one queue needs a commit and another needs the log, the
    /// sync waits for the commit first.
    pub(crate) fn next_step(&self, of: SyncOf, target: Lsn, bug: PlantedBug) -> FlushStep {
        let until = self.namespace_target(of, target, bug);
        let namespace = self.namespace.next_step(until);
        let objects = match (&namespace, of) {
            // No namespace change needs the log, so no object must be logged together with one.
            (FlushStep::Done, SyncOf::Namespace) => Vec::new(),
            (FlushStep::Done, SyncOf::Object(object)) => vec![object],
            // No queue needs a commit, so none changes the step.
            (FlushStep::Log, _) if self.skips.is_none() => Vec::new(),
            _ => self.closure(&[of], bug),
        };
        let queues = objects.iter().filter_map(|object| self.objects.get(object));
        let steps = queues.map(|queue| queue.next_step(until));
        steps.fold(namespace, |all, step| match (all, step) {
            (FlushStep::Commit(a), FlushStep::Commit(b)) => FlushStep::Commit(a.max(b)),
            (FlushStep::Commit(txg), _) | (_, FlushStep::Commit(txg)) => FlushStep::Commit(txg),
            (FlushStep::Log, _) | (_, FlushStep::Log) => FlushStep::Log,
            _ => FlushStep::Done,
        })
    }

    /// Copies the changes that the syncs in progress need, in the order of their LSNs, up to `room`
    /// bytes. Copies at least one change if a sync needs the log, even if it exceeds `room`.
    pub(crate) fn take(&self, room: &mut usize, bug: PlantedBug) -> TakenObjects {
        let mut limit = None;
        let mut syncs = Vec::new();
        for (of, target) in &self.waiting {
            if matches!(self.next_step(*of, *target, bug), FlushStep::Log) {
                limit = limit.max(Some(self.namespace_target(*of, *target, bug)));
                syncs.push(*of);
            }
        }
        let objects = self.closure(&syncs, bug);
        let queues = objects.iter().filter_map(|object| self.objects.get(object));
        let limit = limit.unwrap_or_default();
        let records = merged(queues.chain([&self.namespace]), limit, room);
        let taken = TakenObjects { records, objects };
        if bug != PlantedBug::NamedNotLogged && bug != PlantedBug::EndDropsNamed {
            self.assert_closed(&taken);
        }
        taken
    }

    /// Asserts the closure rule: a batch with a namespace change has all queued earlier changes of
    /// the objects that this change names.
    fn assert_closed(&self, taken: &TakenObjects) {
        for change in &taken.records {
            for object in change.record.names() {
                let Some(queue) = self.objects.get(object) else { continue };
                let skips = queue.skip.is_some_and(|skip| skip.first < change.lsn);
                let oldest = queue.records.front();
                let misses = oldest.is_some_and(|oldest| oldest.lsn < change.lsn)
                    && taken.objects.binary_search(object).is_err();
                assert!(!skips && !misses, "batch without earlier changes of {object:?}");
            }
        }
    }

    /// Removes the changes of a batch that is durable in the intent log.
    pub(crate) fn set_durable(&mut self, taken: &TakenObjects) {
        let Some(last) = taken.records.last() else { return };
        for object in &taken.objects {
            let Some(queue) = self.objects.get_mut(object) else { continue };
            self.bytes.sub(queue.pop_until(last.lsn));
            if queue.is_idle() {
                self.objects.remove(object);
            }
        }
        self.bytes.sub(self.namespace.pop_until(last.lsn));
        self.remove_durable(last.lsn);
    }
}

/// Merges the changes of queues by LSN, up to the LSN `limit` and up to `room` bytes. Leaves out
/// queues that wait for a commit.
fn merged<'a>(
    queues: impl Iterator<Item = &'a Queue>,
    limit: Lsn,
    room: &mut usize,
) -> Vec<QueuedObjectRecord> {
    let mut heads: Vec<_> = queues
        .filter(|queue| queue.skip.is_none())
        .map(|queue| queue.records.iter().peekable())
        .collect();
    let mut order: BinaryHeap<Reverse<(Lsn, usize)>> = BinaryHeap::new();
    for (index, head) in heads.iter_mut().enumerate() {
        order.extend(head.peek().map(|change| Reverse((change.lsn, index))));
    }
    let mut records = Vec::new();
    while let Some(Reverse((lsn, index))) = order.pop() {
        let Some(change) = heads[index].next().filter(|_| lsn <= limit) else { break };
        let bytes = change.record.payload_bytes() + weir_format::log::RECORD_BYTES;
        if bytes > *room && !records.is_empty() {
            break;
        }
        *room = room.saturating_sub(bytes);
        records.push(change.clone());
        order.extend(heads[index].peek().map(|change| Reverse((change.lsn, index))));
    }
    records
}

/// True if a record fits into a log batch. A change with a larger record waits for the commit of
/// its txg.
pub(crate) fn fits_batch(record: &ObjectRecord) -> bool {
    record.payload_bytes() <= LOG_BATCH_BYTES_MAX
}

#[cfg(test)]
mod tests;
