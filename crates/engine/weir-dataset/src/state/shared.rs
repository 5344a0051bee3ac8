//! What all volumes of a pool share: the open txg, budgets, and who waits for what.
//!
//! Not here: any volume's own state.
//!
//! Invariants:
//! - the open txg changes only while every volume's lock is held (commit's freeze), so a volume's
//!   lock is enough to read it;
//! - dirty data and the worst that writing it out can cost never exceed the space that was free
//!   after the last commit, less what is kept back: a commit always finds room;
//! - live data never takes the reserve: with it, the cleaner can always make room.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;
use tokio::sync::{Mutex, Notify};
use weir_base::limits::REUSE_AFTER_TXGS;
use weir_base::property::{COMPRESSION, DEDUPE, Key, READ_ONLY, Value};
use weir_base::{BLOCK_BYTES, RecordSize, Txg};
use weir_format::{Compression, DatasetKind, NODE_FANOUT, PoolRecord, Properties, TreeRoot};
use weir_pool::{LostOwners, Pool, PoolError};

use crate::error::DatasetError;
use crate::objects::record::VolumeSize;
use crate::state::directory_losses::DirectoryLosses;
use crate::state::limits::OVERWRITE_BYTES;
use crate::state::pressure::Pressure;
use crate::state::properties::effective;

/// A txg may take half of the room that is left, so that writers slow down as it shrinks; less than
/// the largest change of a write needs is not worth a txg of its own.
const TXG_ROOM_MIN: u64 = OVERWRITE_BYTES;

/// Commits without a client's change after which segments that are only waiting to be reused count
/// for nothing: the commits themselves use up what they release. Several times what it takes to
/// reuse a segment, and enough for the cleaner to empty one.
const FRUITLESS_COMMITS_MAX: u32 = 32;

/// Whether commits that bring nothing of clients to disk bring space back.
#[derive(Debug, Default)]
struct Fruit {
    /// Most segments that were free or about to be, since a client's change was committed.
    best: u64,
    /// Commits since that was reached.
    fruitless: u32,
}

impl Fruit {
    /// Notes a commit: whether it held a client's change, and the segments free or about to be.
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

/// How far the pool has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress {
    committed: Txg,
    /// For good.
    poisoned: bool,
}

/// What may be done with a write now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Take it.
    Now,
    /// Too much is dirty; wait for a commit.
    Wait,
    /// There is no room for it.
    Full,
}

/// Nodes that dirty blocks of one tree can make a txg write, beside those it was promised room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    height: u8,
    record: RecordSize,
    left: u64,
}

impl Nodes {
    /// Of a tree over a volume of this size, with room for `promised` nodes.
    pub(crate) fn left(height: u8, size: VolumeSize, promised: u64) -> Self {
        let (height, records) = (height.max(size.height()), size.records());
        let all: u64 = (1..=height).map(|level| records.div_ceil(TreeRoot::capacity(level))).sum();
        Self { height, record: size.record, left: all.saturating_sub(promised) }
    }

    /// Most nodes that `blocks` neighbours can touch: their leaves and a path of nodes of their
    /// own, and never more than the tree has. Txgs that fit are many times larger for that: one
    /// that changes blocks all over a volume changes every node of it once.
    pub(crate) fn of(self, blocks: u64) -> u64 {
        if blocks == 0 {
            return 0;
        }
        let leaves = blocks.div_ceil(self.record.blocks()).div_ceil(NODE_FANOUT as u64) + 1;
        (leaves + u64::from(self.height)).min(self.left)
    }

    /// Most bytes that these blocks and nodes can take.
    pub(crate) fn cost(self, blocks: u64) -> u64 {
        (blocks + self.of(blocks)) * BLOCK_BYTES as u64
    }
}

/// The pool's own record.
#[derive(Debug, Default)]
pub(crate) struct PoolOwn {
    pub(crate) record: PoolRecord,
    /// Whether the stored record must be written anew.
    pub(crate) is_dirty: bool,
}

pub(crate) struct Core {
    pub(crate) pool: Pool,
    open_txg: AtomicU64,
    dirty_blocks: AtomicU64,
    dirty_blocks_max: AtomicU64,
    /// The worst that writing out all dirty blocks can take, in bytes.
    charged: AtomicU64,
    /// Bytes that may be promised until the next commit.
    available: AtomicU64,
    trim_available: AtomicU64,
    hole_ranges: AtomicUsize,
    /// Bytes of live data that the pool can still take, counting what cleaning brings.
    capacity_left: AtomicU64,
    /// Whether the pool's quota leaves less than the disks.
    is_at_quota: AtomicBool,
    /// Part of the reservations that the dirty data of their volumes does not cover
    /// ([`crate::accounting::limits`]).
    pub(crate) unclaimed: AtomicU64,
    /// Volumes that were promised anything.
    pub(crate) promises: AtomicUsize,
    /// What a pool with promises leaves beside them: room that is there, but in so many pieces that
    /// gathering it would move much of what lives for each of them. As much again as half of the
    /// reserve.
    scattered: AtomicU64,
    /// What the pool itself has set: volumes inherit it.
    /// What cannot be read of the dataset directory.
    pub(crate) directory_losses: parking_lot::Mutex<DirectoryLosses>,
    pub(crate) own: RwLock<PoolOwn>,
    /// Whether commits bring space back: dead segments, or the cleaner.
    space_pending: AtomicBool,
    /// Whether commits that hold nothing may bring space back, of whatever kind.
    commits_help: AtomicBool,
    fruit: parking_lot::Mutex<Fruit>,
    pub(crate) pressure: Pressure,
    /// The newest txg in which something was freed.
    freeing: AtomicU64,
    /// Whether the committer was woken by nothing but its timer.
    idle: AtomicBool,
    /// A commit of this txg was asked for.
    wanted: AtomicU64,
    pub(crate) wake_committer: Notify,
    progress: parking_lot::Mutex<Progress>,
    /// Progress was made. Who waits is woken in the order of coming: a `watch` draws lots among
    /// them where tokio's runtime is part of the program: no simulation could be replayed there.
    news: Notify,
    /// Held by the one who writes the intent log; waiting for it is group commit.
    pub(crate) log_writer: Mutex<()>,
    /// Held by the one who commits.
    pub(crate) committer: Mutex<()>,
}

impl Core {
    pub(crate) fn new(pool: Pool, dirty_bytes_max: u64) -> Self {
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
            is_at_quota: AtomicBool::new(false),
            unclaimed: AtomicU64::new(0),
            promises: AtomicUsize::new(0),
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
            log_writer: Mutex::new(()),
            committer: Mutex::new(()),
            pool,
        };
        core.set_dirty_max(dirty_bytes_max);
        core.measure_space();
        core
    }

    /// Changes the budget of dirty data.
    pub(crate) fn set_dirty_max(&self, bytes: u64) {
        let blocks = (bytes / BLOCK_BYTES as u64).max(16);
        self.dirty_blocks_max.store(blocks, Ordering::Release);
    }

    fn dirty_max(&self) -> u64 {
        self.dirty_blocks_max.load(Ordering::Acquire)
    }

    /// The txg that new writes join; stable under any volume's lock.
    pub(crate) fn open_txg(&self) -> Txg {
        Txg(self.open_txg.load(Ordering::Acquire))
    }

    /// Opens the next txg; every volume's lock is held.
    pub(crate) fn advance_txg(&self) {
        self.open_txg.fetch_add(1, Ordering::AcqRel);
    }

    /// Recomputes what may be promised, after a commit with or without a client's change.
    pub(crate) fn measure_after_commit(&self, changed: bool) {
        let (free, pending) = self.pool.free_segments();
        self.fruit.lock().note(changed, (free + pending) as u64);
        self.measure_space();
    }

    /// Recomputes what may be promised.
    pub(crate) fn measure_space(&self) {
        let (free, pending) = self.pool.free_segments();
        let (segment, reserve) = (self.pool.segment_bytes(), self.pool.reserve());
        let left = |floor: u64| (free as u64).saturating_sub(floor) * segment;
        // A commit may write every reference table anew, and what was before is held for three
        // more.
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
        self.commits_help.store(commits_help, Ordering::Release);
    }

    /// Whether what was promised fits into what is free now, and commits do that bring back what
    /// is not: asked after space went away.
    pub(crate) fn keeps_promises(&self) -> Result<(), u64> {
        let charged = self.charged.load(Ordering::Acquire);
        let available = self.available.load(Ordering::Acquire);
        let room = available.min(self.capacity_left());
        let commits_fit = self.pool.free_segments().0 as u64 >= self.pool.reserve().cleaner;
        let kept = commits_fit && charged <= room && self.claimed() <= self.capacity_left();
        if kept { Ok(()) } else { Err(room) }
    }

    /// Most live data the pool may hold, if somebody set that.
    fn quota_bytes(&self) -> Option<u64> {
        let quota = self.own.read().record.properties.quota_bytes;
        (quota > 0).then_some(quota)
    }

    /// Bytes of live data that the pool can still take, as of the last commit.
    pub(crate) fn capacity_left(&self) -> u64 {
        self.capacity_left.load(Ordering::Acquire)
    }

    /// What all volumes claim of that: dirty data at its worst, what they were promised beyond, and
    /// what is left beside promises.
    pub(crate) fn claimed(&self) -> u64 {
        let charged = self.charged.load(Ordering::Acquire);
        charged + self.unclaimed.load(Ordering::Acquire) + self.beside_promises()
    }

    fn beside_promises(&self) -> u64 {
        let any = self.promises.load(Ordering::Acquire) > 0;
        if any { self.scattered.load(Ordering::Acquire) } else { 0 }
    }

    /// Whose blocks may be in use although no line has them.
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

    /// Newest birth of the blocks that are held for datasets with unreadable records and for clones
    /// with lost origins.
    pub(crate) fn held_for_unread(&self) -> Txg {
        self.directory_losses.lock().held()
    }

    /// How a volume without a property of its own compresses.
    pub(crate) fn compression_of(&self, properties: &Properties) -> Compression {
        self.effective(COMPRESSION, properties)
    }

    /// Whether what is written to a volume with these properties is looked for among what is there.
    pub(crate) fn dedupes(&self, properties: &Properties) -> bool {
        self.effective(DEDUPE, properties)
    }

    /// Whether a volume with these properties refuses writes.
    pub(crate) fn is_read_only(&self, properties: &Properties) -> bool {
        self.effective(READ_ONLY, properties)
    }

    /// The value that counts for a volume with these properties of its own.
    fn effective<T: Value>(&self, key: Key<T>, properties: &Properties) -> T {
        effective(key, &[properties, &self.own.read().record.properties])
    }

    /// The error of a write that finds no room.
    pub(crate) fn full(&self) -> DatasetError {
        let name = self.pool.name().to_owned();
        match self.quota_bytes() {
            Some(quota_bytes) if self.is_at_quota.load(Ordering::Acquire) => {
                DatasetError::Quota { name, quota_bytes }
            }
            _ => DatasetError::Full { pool: name },
        }
    }

    /// Bytes that are never given to user data.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.pool.reserve().reserve * self.pool.segment_bytes()
    }

    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_blocks.load(Ordering::Acquire) * BLOCK_BYTES as u64
    }

    /// How to compress the next block of a volume with this setting.
    pub(crate) fn compression_now(&self, asked: Compression) -> Compression {
        let dirty = self.dirty_blocks.load(Ordering::Acquire);
        self.pressure.decide(asked, dirty, self.dirty_max())
    }

    /// Whether `blocks` more neighbouring dirty blocks may be taken that make a txg write `nodes`;
    /// `covered` bytes of what they cost were promised to their volume before.
    pub(crate) fn admit(&self, blocks: u64, nodes: Nodes, covered: u64) -> Admission {
        self.admit_cost(blocks, nodes.cost(blocks), covered)
    }

    /// As [`Self::admit`], for what takes so many bytes at worst.
    pub(crate) fn admit_cost(&self, blocks: u64, cost: u64, covered: u64) -> Admission {
        let dirty = self.dirty_blocks.load(Ordering::Acquire);
        let charged = self.charged.load(Ordering::Acquire) + cost;
        // Others may claim less meanwhile, so what is covered can be more than what is unclaimed.
        let kept = self.unclaimed.load(Ordering::Acquire).saturating_sub(covered);
        let kept = kept + self.beside_promises();
        // What was promised is kept, also where the pool's own tables grew a little since: that is
        // what the reserve is for.
        if covered < cost && charged + kept > self.capacity_left() {
            // What is dirty may replace what is live, and then leaves room.
            let hopeless = dirty == 0 && !self.is_freeing();
            return if hopeless { Admission::Full } else { Admission::Wait };
        }
        if charged > self.available.load(Ordering::Acquire) {
            // What was promised is waited for longer: also for segments of the pool's own tables,
            // which nobody else waits for.
            let promised = covered == cost && self.commits_help.load(Ordering::Acquire);
            let hopeless = dirty == 0 && !promised && !self.space_is_coming();
            return if hopeless { Admission::Full } else { Admission::Wait };
        }
        if self.fits_memory(blocks) { Admission::Now } else { Admission::Wait }
    }

    /// True if this many more dirty blocks fit into the memory budget.
    pub(crate) fn fits_memory(&self, blocks: u64) -> bool {
        let dirty = self.dirty_blocks.load(Ordering::Acquire);
        // A request larger than the whole budget is taken when nothing else is dirty.
        blocks == 0 || dirty == 0 || dirty + blocks <= self.dirty_max()
    }

    /// Whether commits alone will bring space back.
    pub(crate) fn space_is_coming(&self) -> bool {
        self.space_pending.load(Ordering::Acquire) || self.is_freeing()
    }

    /// Whether a txg that is not committed frees something.
    fn is_freeing(&self) -> bool {
        // Until the room it brought is counted.
        Txg(self.freeing.load(Ordering::Acquire)) > self.progress.lock().committed
    }

    /// Notes that the commit of `txg` frees something.
    pub(crate) fn note_freeing(&self, txg: Txg) {
        self.freeing.fetch_max(txg.0, Ordering::AcqRel);
    }

    /// Whether a TRIM may be taken: it frees space, but its nodes take some first, and so do
    /// `blocks` of a record that it cuts.
    pub(crate) fn admit_trim(&self, blocks: u64) -> bool {
        const NODES_COST: u64 = 64;
        let cost = (NODES_COST + blocks) * BLOCK_BYTES as u64;
        self.trim_available
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(cost))
            .is_ok()
    }

    /// Hole ranges of the open txg in all volumes.
    pub(crate) fn hole_ranges(&self) -> usize {
        self.hole_ranges.load(Ordering::Acquire)
    }

    /// Replaces the number of hole ranges of one volume in the sum; returns the new sum.
    pub(crate) fn count_holes(&self, before: usize, now: usize) -> usize {
        let others = self.hole_ranges.fetch_sub(before, Ordering::AcqRel) - before;
        self.hole_ranges.fetch_add(now, Ordering::AcqRel);
        others + now
    }

    /// Counts blocks that became dirty and charges what they cost.
    pub(crate) fn add_dirty(&self, blocks: u64, cost: u64) {
        self.charged.fetch_add(cost, Ordering::AcqRel);
        let before = self.dirty_blocks.fetch_add(blocks, Ordering::AcqRel);
        // Half of the budget for the open txg leaves the other half to the one being written.
        let half = self.dirty_max() / 2;
        if before < half && before + blocks >= half {
            self.wake_committer.notify_one();
        }
    }

    /// Takes back charges whose txg is committed.
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

    /// Whether nobody waits for the next commit.
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

    /// Asks for `txg` to be committed soon.
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

    /// Waits for commits, or for the end of the pool, until `is_over` returns true.
    pub(crate) async fn news_until(&self, is_over: impl Fn() -> bool) {
        loop {
            // Before the look, so that no news is missed between the two.
            let mut news = std::pin::pin!(self.news.notified());
            news.as_mut().enable();
            if is_over() {
                return;
            }
            news.await;
        }
    }

    /// Tells everybody who waits that `txg` is committed.
    pub(crate) fn announce_commit(&self, txg: Txg) {
        self.progress.lock().committed = txg;
        self.news.notify_waiters();
    }

    /// The error of a pool that was poisoned.
    pub(crate) fn dead(&self) -> PoolError {
        self.pool.check_alive().err().unwrap_or_else(|| self.pool.poison(&"the engine stopped"))
    }

    /// Tells everybody who waits that the pool takes no more.
    pub(crate) fn announce_poison(&self) {
        self.progress.lock().poisoned = true;
        self.news.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_that_only_use_up_what_they_release_are_noticed() {
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
