//! State that all volumes of a pool share: the open txg, the space and memory budgets, and the
//! waits for commits.
//!
//! State of one volume is in `state::volume`.
//!
//! Invariants:
//! - the open txg changes only while the freeze of a commit holds every volume's lock, so one
//!   volume's lock is enough to read it;
//! - dirty data and the worst-case cost of writing it never exceed the space that was free after
//!   the last commit, less the reserved space: a commit always finds space;
//! - live data never uses the reserve, so the cleaner can always free segments.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;
use tokio::sync::{Mutex, Notify};
use weir_base::limits::{LOG_TOTAL_BYTES_MIN, REUSE_AFTER_TXGS};
use weir_base::property::{ATIME, AtimePolicy, COMPRESSION, DEDUPE, Key, READ_ONLY, Value};
use weir_base::{BLOCK_BYTES, RecordSize, Txg};
use weir_format::{Compression, DatasetKind, NODE_FANOUT, PoolRecord, Properties, TreeRoot};
use weir_pool::{LostOwners, Pool, PoolError};

use crate::error::DatasetError;
use crate::objects::log_bytes::LogTotal;
use crate::objects::record::VolumeSize;
use crate::state::directory_losses::DirectoryLosses;
use crate::state::limits::OVERWRITE_BYTES;
use crate::state::memory_split::MemorySplit;
use crate::state::pressure::Pressure;
use crate::state::properties::effective;

/// Minimum that a txg may use. A txg may use half of the remaining space, so that writers slow down
/// as the space shrinks, but always at least this much: the largest change that one write needs.
const TXG_ROOM_MIN: u64 = OVERWRITE_BYTES;

/// Maximum number of consecutive commits that contain no client's change and do not increase the
/// number of free and pending segments. Such commits consume as much space as they release. So
/// after this number of commits, segments that only wait for reuse no longer count as space that
/// will become free. The number is several times the commits that the reuse of a segment takes, and
/// enough for the cleaner to empty one segment.
const FRUITLESS_COMMITS_MAX: u32 = 32;

/// Tracks whether commits without client changes still increase the free space.
#[derive(Debug, Default)]
struct Fruit {
    /// Highest number of free and pending segments since the last commit with a client's change. A
    /// pending segment is dead or cleaned and becomes free within a few txgs.
    best: u64,
    /// Number of commits since the number of segments reached `best`.
    fruitless: u32,
}

impl Fruit {
    /// Records a commit. `changed`: the commit contained a client's change. `segments`: number of
    /// free segments after the commit, plus segments that become free within a few txgs.
    fn note(&mut self, changed: bool, segments: u64) {
        if changed || segments > self.best {
            *self = Self { best: segments, fruitless: 0 };
        } else {
            self.fruitless = self.fruitless.saturating_add(1);
        }
    }

    fn is_to_come(&self) -> bool {
        self.fruitless < FRUITLESS_COMMITS_MAX
    }
}

/// Commit progress of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress {
    committed: Txg,
    /// True once the pool is suspended, which is permanent.
    poisoned: bool,
}

/// Dirty blocks that a change adds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewBlocks {
    pub(crate) added: u64,
    /// Dirty blocks that the volume or file has in the open txg already.
    pub(crate) own: u64,
}

/// Decision on a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Accept the write.
    Now,
    /// Too much data is dirty; wait for a commit.
    Wait,
    /// The pool has no space for the write.
    Full,
}

/// Limit of the nodes that a txg writes because of dirty blocks of one tree, beyond the nodes for
/// which space is already reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    height: u8,
    record: RecordSize,
    left: u64,
}

impl Nodes {
    /// Nodes of a tree over a volume of this size, less the `reserved` nodes for which space is
    /// already reserved.
    pub(crate) fn left(height: u8, size: VolumeSize, reserved: u64) -> Self {
        let (height, records) = (height.max(size.height()), size.records());
        let all: u64 = (1..=height).map(|level| records.div_ceil(TreeRoot::capacity(level))).sum();
        Self { height, record: size.record, left: all.saturating_sub(reserved) }
    }

    /// Upper bound of the nodes that a change of `blocks` consecutive blocks can affect: their
    /// leaves and a path of nodes, but at most the nodes of the tree for which no space is reserved
    /// yet. This limit makes txgs possible that are many times larger: a txg that changes blocks
    /// all over a volume writes each node once.
    pub(crate) fn of(self, blocks: u64) -> u64 {
        if blocks == 0 {
            return 0;
        }
        let leaves = blocks.div_ceil(self.record.blocks()).div_ceil(NODE_FANOUT as u64) + 1;
        (leaves + u64::from(self.height)).min(self.left)
    }

    /// Upper bound of the bytes that `blocks` consecutive blocks and the nodes above them can take
    /// on disk.
    pub(crate) fn cost(self, blocks: u64) -> u64 {
        (blocks + self.of(blocks)) * BLOCK_BYTES as u64
    }
}

/// Properties and other data of the pool itself.
#[derive(Debug, Default)]
pub(crate) struct PoolOwn {
    pub(crate) record: PoolRecord,
    /// True if the commit must write the pool's directory entry again.
    pub(crate) is_dirty: bool,
}

pub(crate) struct Core {
    pub(crate) pool: Pool,
    open_txg: AtomicU64,
    dirty_blocks: AtomicU64,
    dirty_blocks_max: AtomicU64,
    /// Worst-case space for writing all dirty blocks, in bytes; each change adds its part when it
    /// is accepted.
    charged: AtomicU64,
    /// Upper limit of `charged` until the next commit, in bytes.
    available: AtomicU64,
    /// Bytes that TRIM and other changes that free space may still use until the next commit.
    trim_available: AtomicU64,
    hole_ranges: AtomicUsize,
    /// Bytes of live data that the pool can still take, including space that cleaning frees.
    capacity_left: AtomicU64,
    /// Bytes of free segments for writes, if neither commits nor the cleaner will free further
    /// segments; otherwise `u64::MAX`.
    reachable: AtomicU64,
    /// True if the pool's quota leaves less space for data than the disks do.
    is_at_quota: AtomicBool,
    /// Part of the reservations that the dirty data of their volumes does not cover
    /// ([`crate::accounting::limits`]).
    pub(crate) unclaimed: AtomicU64,
    /// Number of volumes with a reservation.
    pub(crate) reserved_volumes: AtomicUsize,
    /// Bytes that a pool with reservations keeps free in addition to the reservations: half of the
    /// reserve. This free space is so fragmented that reclaiming each piece of it would move much
    /// live data.
    scattered: AtomicU64,
    /// Unreadable parts of the dataset directory.
    pub(crate) directory_losses: parking_lot::Mutex<DirectoryLosses>,
    /// Properties of the pool itself, which volumes inherit.
    pub(crate) own: RwLock<PoolOwn>,
    /// True if later commits will free space: there are dead segments, or segments for the cleaner.
    space_pending: AtomicBool,
    /// True if commits without client changes can still free any space.
    commits_help: AtomicBool,
    fruit: parking_lot::Mutex<Fruit>,
    pub(crate) pressure: Pressure,
    /// Newest txg whose commit frees space.
    freeing: AtomicU64,
    /// True if only the timer woke the committer.
    idle: AtomicBool,
    /// Newest txg whose commit was requested.
    wanted: AtomicU64,
    pub(crate) wake_committer: Notify,
    progress: parking_lot::Mutex<Progress>,
    /// Signals commit progress. `Notify` wakes waiters in FIFO order. Within a tokio runtime a
    /// `watch` picks a waiter at random, which would make simulations unreplayable.
    news: Notify,
    pub(crate) memory: MemorySplit,
    /// Memory of the log queues of all datasets.
    pub(crate) log_total: Arc<LogTotal>,
    /// Held by the task that writes the intent log. Changes of tasks that wait for this lock are
    /// logged together (group commit).
    pub(crate) log_writer: Mutex<()>,
    /// Held by the committing task.
    pub(crate) committer: Mutex<()>,
}

impl Core {
    pub(crate) fn new(pool: Pool, memory_bytes: u64) -> Self {
        let committed = pool.committed_txg();
        let core = Self {
            open_txg: AtomicU64::new(committed.next().0),
            dirty_blocks: AtomicU64::new(0),
            charged: AtomicU64::new(0),
            dirty_blocks_max: AtomicU64::new(0),
            available: AtomicU64::new(0),
            trim_available: AtomicU64::new(0),
            hole_ranges: AtomicUsize::new(0),
            capacity_left: AtomicU64::new(0),
            reachable: AtomicU64::new(0),
            is_at_quota: AtomicBool::new(false),
            unclaimed: AtomicU64::new(0),
            reserved_volumes: AtomicUsize::new(0),
            scattered: AtomicU64::new(0),
            directory_losses: parking_lot::Mutex::default(),
            own: RwLock::default(),
            space_pending: AtomicBool::new(false),
            commits_help: AtomicBool::new(true),
            fruit: parking_lot::Mutex::default(),
            pressure: Pressure::default(),
            freeing: AtomicU64::new(0),
            idle: AtomicBool::new(false),
            wanted: AtomicU64::new(0),
            wake_committer: Notify::new(),
            progress: parking_lot::Mutex::new(Progress { committed, poisoned: false }),
            news: Notify::new(),
            memory: MemorySplit::default(),
            log_total: Arc::new(LogTotal::new(0)),
            log_writer: Mutex::new(()),
            committer: Mutex::new(()),
            pool,
        };
        core.set_memory(memory_bytes);
        core.measure_space();
        core
    }

    /// Sets the budget of dirty data, and the maximum of the log queues: half of this budget.
    pub(crate) fn set_dirty_max(&self, bytes: u64) {
        let blocks = (bytes / BLOCK_BYTES as u64).max(16);
        self.dirty_blocks_max.store(blocks, Ordering::Release);
        self.log_total.set_max((bytes / 2).max(LOG_TOTAL_BYTES_MIN));
    }

    fn dirty_max(&self) -> u64 {
        self.dirty_blocks_max.load(Ordering::Acquire)
    }

    /// The txg that new writes join. The number does not change while the caller holds the lock of
    /// any volume.
    pub(crate) fn open_txg(&self) -> Txg {
        Txg(self.open_txg.load(Ordering::Acquire))
    }

    /// Opens the next txg. The caller holds every volume's lock.
    pub(crate) fn advance_txg(&self) {
        self.open_txg.fetch_add(1, Ordering::AcqRel);
    }

    /// Recomputes the available space after a commit. `changed`: the commit contained a client's
    /// change.
    pub(crate) fn measure_after_commit(&self, changed: bool) {
        let (free, pending) = self.pool.free_segments();
        self.fruit.lock().note(changed, (free + pending) as u64);
        self.measure_space();
    }

    /// Recomputes the available space.
    pub(crate) fn measure_space(&self) {
        let (free, pending) = self.pool.free_segments();
        let (segment, reserve) = (self.pool.segment_bytes(), self.pool.reserve());
        let left = |floor: u64| (free as u64).saturating_sub(floor) * segment;
        // Keep space for a commit that rewrites every reference table: the segments of the old
        // tables stay occupied for three more commits.
        let tables = self.pool.table_memory().reference_stored_bytes * (1 + REUSE_AFTER_TXGS);
        let room = left(reserve.writers).saturating_sub(tables);
        let space = self.pool.space();
        let used = space.live_bytes + self.reserve_bytes();
        let capacity = space.total_bytes.saturating_sub(used);
        let quota = self.quota_bytes().map(|quota| quota.saturating_sub(space.live_bytes));
        let is_at_quota = quota.is_some_and(|left| left < capacity);
        let capacity = capacity.min(quota.unwrap_or(u64::MAX));
        self.is_at_quota.store(is_at_quota, Ordering::Release);
        self.scattered.store(reserve.reserve * segment / 2, Ordering::Release);
        self.available.store((room / 2).max(room.min(TXG_ROOM_MIN)), Ordering::Release);
        self.trim_available.store(left(reserve.cleaner), Ordering::Release);
        self.capacity_left.store(capacity, Ordering::Release);
        let enough = free as u64 >= reserve.reserve;
        let coming = pending > 0 || (!enough && self.pool.can_clean());
        let commits_help = self.fruit.lock().is_to_come();
        self.space_pending.store(coming && commits_help, Ordering::Release);
        let more_comes = enough || (coming && commits_help);
        self.reachable.store(if more_comes { u64::MAX } else { room }, Ordering::Release);
        self.commits_help.store(commits_help, Ordering::Release);
    }

    /// Checks after a loss of space that dirty data and reservations still fit into the free space,
    /// and that the commits that reclaim space have segments. On failure returns the bytes that
    /// dirty data may use.
    pub(crate) fn reservations_fit(&self) -> Result<(), u64> {
        let charged = self.charged.load(Ordering::Acquire);
        let available = self.available.load(Ordering::Acquire);
        let room = available.min(self.capacity_left());
        let commits_fit = self.pool.free_segments().0 as u64 >= self.pool.reserve().cleaner;
        let kept = commits_fit && charged <= room && self.claimed() <= self.capacity_left();
        if kept { Ok(()) } else { Err(room) }
    }

    /// Quota of the pool, if it has one.
    fn quota_bytes(&self) -> Option<u64> {
        let quota = self.own.read().record.properties.quota_bytes();
        (quota > 0).then_some(quota)
    }

    /// Bytes of live data that the pool can still take, as of the last commit.
    pub(crate) fn capacity_left(&self) -> u64 {
        self.capacity_left.load(Ordering::Acquire)
    }

    /// Bytes of free segments that writes can still use, if neither commits nor the cleaner will
    /// free further segments; otherwise unlimited.
    pub(crate) fn reachable_bytes(&self) -> u64 {
        let charged = self.charged.load(Ordering::Acquire);
        self.reachable.load(Ordering::Acquire).saturating_sub(charged)
    }

    /// Bytes of `capacity_left` that are already claimed: the worst-case cost of dirty data, the
    /// uncovered part of the reservations, and the space kept free in addition to reservations.
    pub(crate) fn claimed(&self) -> u64 {
        let charged = self.charged.load(Ordering::Acquire);
        charged + self.unclaimed.load(Ordering::Acquire) + self.reservation_slack()
    }

    fn reservation_slack(&self) -> u64 {
        let any = self.reserved_volumes.load(Ordering::Acquire) > 0;
        if any { self.scattered.load(Ordering::Acquire) } else { 0 }
    }

    /// Owners whose blocks may be in use although no snapshot chain references them.
    pub(crate) fn lost_owners(&self) -> LostOwners {
        let mut numbers = self.own.read().record.lost.clone();
        let losses = self.directory_losses.lock();
        numbers.extend(losses.numbers.iter().cloned());
        let orphans = losses.orphans.iter().filter_map(|record| match &record.kind {
            DatasetKind::Snapshot(moment) => Some(moment.txg),
            DatasetKind::Volume(_) | DatasetKind::Bookmark(_) => None,
        });
        LostOwners { numbers, until: orphans.fold(losses.held(), Txg::max) }
    }

    /// Newest birth txg of the blocks that no volume may free, because a dataset with an unreadable
    /// directory entry or a clone with an unreadable origin may reference them.
    pub(crate) fn held_for_unread(&self) -> Txg {
        self.directory_losses.lock().held()
    }

    /// Effective compression of a volume on which `properties` are set.
    pub(crate) fn compression_of(&self, properties: &Properties) -> Compression {
        self.effective(COMPRESSION, properties)
    }

    /// True if the engine deduplicates writes to a volume on which `properties` are set.
    pub(crate) fn dedupes(&self, properties: &Properties) -> bool {
        self.effective(DEDUPE, properties)
    }

    /// True if a volume on which `properties` are set refuses writes.
    pub(crate) fn is_read_only(&self, properties: &Properties) -> bool {
        self.effective(READ_ONLY, properties)
    }

    /// Rule for the atimes of a filesystem on which `properties` are set.
    pub(crate) fn atime_policy(&self, properties: &Properties) -> AtimePolicy {
        self.effective(ATIME, properties)
    }

    /// Effective value of a property for a volume on which `properties` are set.
    fn effective<T: Value>(&self, key: Key<T>, properties: &Properties) -> T {
        effective(key, &[properties, &self.own.read().record.properties])
    }

    /// Error of a write for which there is no space.
    pub(crate) fn full(&self) -> DatasetError {
        let name = self.pool.name().to_owned();
        match self.quota_bytes() {
            Some(quota_bytes) if self.is_at_quota.load(Ordering::Acquire) => {
                DatasetError::Quota { name, quota_bytes }
            }
            _ => DatasetError::Full { pool: name },
        }
    }

    /// Bytes that client data cannot use.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.pool.reserve().reserve * self.pool.segment_bytes()
    }

    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_blocks.load(Ordering::Acquire) * BLOCK_BYTES as u64
    }

    /// Compression of the next block of a volume with the setting `asked`.
    pub(crate) fn compression_now(&self, asked: Compression) -> Compression {
        let dirty = self.dirty_blocks.load(Ordering::Acquire);
        self.pressure.decide(asked, dirty, self.dirty_max())
    }

    /// Decides whether `blocks` more consecutive dirty blocks may be accepted. `nodes` limits the
    /// nodes that the txg writes because of these blocks. A reservation of the volume covers
    /// `covered` bytes of the cost.
    pub(crate) fn admit(&self, blocks: NewBlocks, nodes: Nodes, covered: u64) -> Admission {
        self.admit_cost(blocks, nodes.cost(blocks.added), covered)
    }

    /// As [`Self::admit`], for a change with a worst-case cost of `cost` bytes.
    pub(crate) fn admit_cost(&self, blocks: NewBlocks, cost: u64, covered: u64) -> Admission {
        let dirty = self.dirty_blocks.load(Ordering::Acquire);
        let charged = self.charged.load(Ordering::Acquire) + cost;
        // `covered` can exceed `unclaimed`, because other tasks may have reduced `unclaimed` in the
        // meantime.
        let kept = self.unclaimed.load(Ordering::Acquire).saturating_sub(covered);
        let kept = kept + self.reservation_slack();
        // A write whose cost the reservation covers completely skips this check, even if the pool's
        // tables have grown a little since: the reserve absorbs that growth.
        if covered < cost && charged + kept > self.capacity_left() {
            // Wait while data is dirty: the commit of this data may free the live data that it
            // replaces.
            let hopeless = dirty == 0 && !self.is_freeing();
            return if hopeless { Admission::Full } else { Admission::Wait };
        }
        if charged > self.available.load(Ordering::Acquire) {
            // A write that the reservation covers waits longer: also for segments of the pool's
            // metadata, which other writes do not wait for.
            let reserved = covered == cost && self.commits_help.load(Ordering::Acquire);
            let hopeless = dirty == 0 && !reserved && !self.space_is_coming();
            return if hopeless { Admission::Full } else { Admission::Wait };
        }
        if self.fits_memory(blocks) { Admission::Now } else { Admission::Wait }
    }

    /// True if these blocks fit into the memory budget. The last eighth of the budget is for
    /// volumes and files with little dirty data, so that they need not wait for commits while
    /// another one is written as fast as the disks allow.
    pub(crate) fn fits_memory(&self, NewBlocks { added, own }: NewBlocks) -> bool {
        let (dirty, max) = (self.dirty_blocks.load(Ordering::Acquire), self.dirty_max());
        let max = if own > max / 32 { max - max / 8 } else { max };
        // A request larger than the whole budget is accepted when nothing else is dirty.
        added == 0 || dirty == 0 || dirty + added <= max
    }

    /// True if commits will free space without further changes by clients.
    pub(crate) fn space_is_coming(&self) -> bool {
        self.space_pending.load(Ordering::Acquire) || self.is_freeing()
    }

    /// True if an uncommitted txg frees space.
    fn is_freeing(&self) -> bool {
        // `committed` advances only after the freed space is counted, so return true until then.
        Txg(self.freeing.load(Ordering::Acquire)) > self.progress.lock().committed
    }

    /// Records that the commit of `txg` frees space.
    pub(crate) fn note_freeing(&self, txg: Txg) {
        self.freeing.fetch_max(txg.0, Ordering::AcqRel);
    }

    /// Reserves space for a TRIM. A TRIM frees space later, but first needs space for its nodes and
    /// for the `blocks` of a record that it covers only in part.
    pub(crate) fn admit_trim(&self, blocks: u64) -> bool {
        const NODES_COST: u64 = 64;
        self.admit_from_reserve((NODES_COST + blocks) * BLOCK_BYTES as u64)
    }

    /// Reserves `cost` bytes of the space that only changes that free space can use, until the next
    /// commit. Returns false if too little of it is left.
    pub(crate) fn admit_from_reserve(&self, cost: u64) -> bool {
        self.trim_available
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(cost))
            .is_ok()
    }

    /// Number of hole ranges in the open txg, summed over all volumes.
    pub(crate) fn hole_ranges(&self) -> usize {
        self.hole_ranges.load(Ordering::Acquire)
    }

    /// Replaces the number of hole ranges of one volume in the sum; returns the new sum.
    pub(crate) fn count_holes(&self, before: usize, now: usize) -> usize {
        let others = self.hole_ranges.fetch_sub(before, Ordering::AcqRel) - before;
        self.hole_ranges.fetch_add(now, Ordering::AcqRel);
        others + now
    }

    /// Counts newly dirty blocks and reserves `cost` bytes for them.
    pub(crate) fn add_dirty(&self, blocks: u64, cost: u64) {
        self.charged.fetch_add(cost, Ordering::AcqRel);
        let before = self.dirty_blocks.fetch_add(blocks, Ordering::AcqRel);
        // Half of the budget is for the open txg, the other half for the syncing txg: request a
        // commit once the open txg has used its half.
        let half = self.dirty_max() / 2;
        if before < half && before + blocks >= half {
            self.wake_committer.notify_one();
        }
    }

    /// Releases the space that was reserved for the dirty data of a committed txg.
    pub(crate) fn uncharge(&self, bytes: u64) {
        let before = self.charged.fetch_sub(bytes, Ordering::AcqRel);
        assert!(before >= bytes, "charges are taken once and given back once");
    }

    pub(crate) fn sub_dirty(&self, blocks: u64) {
        let before = self.dirty_blocks.fetch_sub(blocks, Ordering::AcqRel);
        assert!(before >= blocks, "dirty blocks are counted once in and once out");
    }

    pub(crate) fn set_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::Release);
    }

    /// True if no task waits for the next commit.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Acquire)
    }

    pub(crate) fn wants_early_commit(&self) -> bool {
        self.dirty_blocks.load(Ordering::Acquire) >= self.dirty_max() / 2
            || self.pool.log_half_full()
            || self.wanted() > self.pool.committed_txg()
    }

    pub(crate) fn wanted(&self) -> Txg {
        Txg(self.wanted.load(Ordering::Acquire))
    }

    /// Requests an early commit of `txg`.
    pub(crate) fn want(&self, txg: Txg) {
        self.wanted.fetch_max(txg.0, Ordering::AcqRel);
        self.wake_committer.notify_one();
    }

    /// Waits until `txg` is committed.
    ///
    /// # Durability
    /// Everything of the txg is on stable media when this returns `Ok`.
    pub(crate) async fn committed(&self, txg: Txg) -> Result<(), DatasetError> {
        self.want(txg);
        let is_committed = || self.progress.lock().committed >= txg;
        self.news_until(|| is_committed() || self.progress.lock().poisoned).await;
        if is_committed() { Ok(()) } else { Err(self.dead().into()) }
    }

    /// Waits until `is_over` returns true; checks it after each commit and when the pool is
    /// suspended.
    pub(crate) async fn news_until(&self, is_over: impl Fn() -> bool) {
        loop {
            // Register before the check, so that no notification between the check and the wait is
            // missed.
            let mut news = std::pin::pin!(self.news.notified());
            news.as_mut().enable();
            if is_over() {
                return;
            }
            news.await;
        }
    }

    /// Wakes all waiters after the commit of `txg`.
    pub(crate) fn announce_commit(&self, txg: Txg) {
        self.progress.lock().committed = txg;
        self.news.notify_waiters();
    }

    /// Error of a suspended pool.
    pub(crate) fn dead(&self) -> PoolError {
        self.pool.check_alive().err().unwrap_or_else(|| self.pool.poison(&"the engine stopped"))
    }

    /// Wakes all waiters after the pool was suspended.
    pub(crate) fn announce_poison(&self) {
        self.progress.lock().poisoned = true;
        self.news.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_that_consume_all_they_release_do_not_count_as_progress() {
        let mut fruit = Fruit::default();
        fruit.note(true, 9);
        for round in 0..FRUITLESS_COMMITS_MAX {
            assert!(fruit.is_to_come(), "{round}");
            fruit.note(false, 8 + u64::from(round % 2));
        }
        assert!(!fruit.is_to_come());
        fruit.note(false, 10);
        assert!(fruit.is_to_come(), "the cleaner emptied one");
        (0..FRUITLESS_COMMITS_MAX).for_each(|_| fruit.note(false, 10));
        fruit.note(true, 3);
        assert!(fruit.is_to_come(), "what a client changed may free something");
    }
}
