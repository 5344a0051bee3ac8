//! The open pool, `Pool`: its disks, its committed state, and whether it still accepts writes.
//!
//! `read` reads blocks, `txg::write_out` writes them, `txg::commit` commits.
//!
//! Invariants:
//! - the only owner of a pool runs one commit at a time;
//! - a poisoned pool stays poisoned until the next import.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use parking_lot::Mutex;
use weir_base::limits::LOG_IS_BUSY;
use weir_base::{Clock, Guid, Txg};
use weir_cache::{BlockCache, CacheClass};
use weir_device::Device;
use weir_format::log::BatchBuilder;
use weir_format::{
    ImportEpoch, LINEAGE_MAX, Label, PtrKind, SegmentClass, StaleLeg, TreeRoot, VdevRole,
};

use crate::disks::labels::DamagedSlot;
use crate::disks::vdevs::Vdevs;
use crate::error::PoolError;
use crate::log::intent_log::{IntentLog, LogWriteError};
use crate::options::PoolOptions;
use crate::planted_bugs::PlantedBug;
use crate::segments::entries::SpaceUse;
use crate::segments::segment_table::Segments;
use crate::segments::tables::TableMemory;
use crate::state::claim::Keeper;
use crate::state::cleaner_statistics::Cleanings;
use crate::state::compression::Unpackers;
use crate::state::damage::Damage;
use crate::state::dedupe_index::{DedupeIndex, HintFigures};
use crate::state::lost_nodes::LostNodes;
use crate::state::moment::HistoryPoint;
use crate::state::scans::Scans;
use crate::state::write_heads::WriteHeads;

/// Reason for which a destroyed pool refuses writes.
const DESTROYED: &str = "the pool was destroyed";

/// The budget of remap tables is the cache budget divided by this number. Reference tables, if the
/// pool has any, have a budget of the same size. In most pools all tables of a kind fit into their
/// budget. A block whose table is not in RAM takes one more read.
const TABLE_SHARE: u64 = 8;
/// Blocks and nodes can always use the cache budget divided by this number, however large the
/// tables are.
const CACHE_SHARE_MIN: u64 = 4;

/// Number of cache classes for which the pool counts read bytes: data and nodes.
const READ_CLASSES: usize = CacheClass::Node as usize + 1;

/// State that the newest committed uberblock describes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committed {
    pub(crate) txg: Txg,
    pub(crate) segments: TreeRoot,
    pub(crate) datasets: TreeRoot,
    pub(crate) remaps: TreeRoot,
    pub(crate) references: TreeRoot,
    pub(crate) next_dataset: u64,
    /// Vdev on which an import after a crash searches for the intent log. Until the first commit of
    /// this import epoch, this epoch may log to another vdev.
    pub(crate) log_vdev: u16,
    /// Format version of the uberblock.
    pub(crate) version: u32,
}

/// State that a new import epoch inherits from earlier ones.
pub(crate) struct History {
    /// First log epoch of this import epoch.
    pub(crate) log_epoch: u64,
    /// Earlier import epochs, newest first.
    pub(crate) lineage: Vec<ImportEpoch>,
    /// Identity of this import epoch.
    pub(crate) import_epoch: Guid,
    /// Legs that the last uberblock lists as stale, but that are in no label that the import found.
    /// A label on a missing disk may name them.
    pub(crate) left: Vec<StaleLeg>,
    /// True if a label copy on a disk of the pool has an older format version than this Weir
    /// writes.
    pub(crate) has_old_labels: bool,
}

/// The first usable log vdev, or else the first data vdev that is not being evacuated.
fn wanted_log_vdev(vdevs: &Vdevs) -> u16 {
    let open = || vdevs.iter().filter(|vdev| !vdev.is_closed_to_log());
    let log = open().find(|vdev| vdev.role() == VdevRole::Log && vdev.is_alive());
    let stays = || open().find(|vdev| vdev.role() == VdevRole::Data);
    log.or_else(stays).expect("a pool keeps a vdev for data").index
}

/// An open pool.
pub struct Pool {
    /// Label at the import. Vdevs and legs change later: `config` has the current label.
    pub(crate) label: Label,
    pub(crate) vdevs: Vdevs,
    pub(crate) segments: Segments,
    pub(crate) log: IntentLog,
    /// Time at which the newest write to the intent log began, in nanoseconds of the clock; 0
    /// before the first write.
    log_write_ns: AtomicU64,
    import_number: u64,
    /// This import epoch and earlier ones, newest first.
    pub(crate) lineage: Vec<ImportEpoch>,
    pub(crate) cache: BlockCache,
    pub(crate) unpackers: Unpackers,
    /// Dedupe index: blocks of volumes with dedupe, by content.
    pub(crate) dedupe_index: Mutex<DedupeIndex>,
    /// Budget of the cache and of the remap and reference tables.
    cache_bytes: AtomicU64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) committed: Mutex<Committed>,
    pub(crate) streams: Mutex<Option<WriteHeads>>,
    pub(crate) bug: PlantedBug,
    /// Bytes written to the segments of each class, without copies and parity.
    pub(crate) traffic: [AtomicU64; SegmentClass::ALL.len()],
    /// Bytes read through pointers, by cache class.
    pub(crate) reads: [AtomicU64; READ_CLASSES],
    pub(crate) cleanings: Cleanings,
    pub(crate) scans: Scans,
    pub(crate) damage: Damage,
    /// True if metadata was unreadable, or readable only from its second copy, since the last
    /// rewrite of the metadata trees.
    pub(crate) roots_are_damaged: AtomicBool,
    pub(crate) lost_nodes: LostNodes,
    /// Disks that no longer belong to a leg but still have operations in flight.
    pub(crate) departed: Mutex<Vec<Weak<dyn Device>>>,
    /// Detached legs, and the legs in `History::left`; oldest first.
    pub(crate) left: Mutex<Vec<StaleLeg>>,
    /// Current label. Some disks may still have an older label.
    pub(crate) config: Mutex<Label>,
    /// Value of [`History::has_old_labels`] at the import.
    pub(crate) has_old_labels: bool,
    /// Damaged ring slots, and slots of abandoned txgs, that the next uberblock write overwrites
    /// with zeros.
    pub(crate) damaged_slots: Mutex<Vec<DamagedSlot>>,
    /// Locked while labels are written.
    pub(crate) labels: futures_util::lock::Mutex<()>,
    /// Owner slot of this import epoch; unset if no server has the pool open.
    pub(crate) owner: OnceLock<Keeper>,
    poisoned: OnceLock<String>,
}

impl Pool {
    pub(crate) fn assemble(
        label: Label,
        vdevs: Vdevs,
        segments: Segments,
        history: History,
        committed: &Committed,
        options: &PoolOptions,
    ) -> Self {
        let History { log_epoch, mut lineage, import_epoch, left, has_old_labels } = history;
        lineage.insert(0, ImportEpoch { id: import_epoch, first: committed.txg.next() });
        lineage.truncate(LINEAGE_MAX);
        let log_vdev = wanted_log_vdev(&vdevs);
        let log = IntentLog::new(label.pool, label.log_bytes, log_vdev, log_epoch, options.bug);
        let streams = WriteHeads::resume(&segments, committed.txg);
        let config = Mutex::new(label.clone());
        let pool = Self {
            label,
            vdevs,
            segments,
            log,
            log_write_ns: AtomicU64::new(0),
            import_number: log_epoch,
            lineage,
            cache: BlockCache::new(options.cache_bytes),
            unpackers: Unpackers::default(),
            dedupe_index: Mutex::default(),
            cache_bytes: AtomicU64::new(options.cache_bytes),
            clock: Arc::clone(&options.clock),
            committed: Mutex::new(*committed),
            streams: Mutex::new(Some(streams)),
            bug: options.bug,
            traffic: Default::default(),
            reads: Default::default(),
            cleanings: Cleanings::default(),
            scans: Scans::default(),
            damage: Damage::default(),
            roots_are_damaged: AtomicBool::new(false),
            lost_nodes: LostNodes::default(),
            departed: Mutex::default(),
            left: Mutex::new(left),
            config,
            has_old_labels,
            damaged_slots: Mutex::default(),
            labels: futures_util::lock::Mutex::new(()),
            owner: OnceLock::new(),
            poisoned: OnceLock::new(),
        };
        pool.segments.stored_tables(Vec::new(), Vec::new());
        pool.set_cache_bytes(options.cache_bytes);
        pool
    }

    /// Name of the pool.
    pub fn name(&self) -> &str {
        &self.label.name
    }

    /// Identity of the pool.
    pub fn guid(&self) -> Guid {
        self.label.pool
    }

    /// Number of this import. It exceeds the numbers of all earlier imports.
    pub fn import_number(&self) -> u64 {
        self.import_number
    }

    /// The newest committed txg.
    pub fn committed_txg(&self) -> Txg {
        self.committed.lock().txg
    }

    /// The newest committed txg as a point in history that a later import can require.
    pub fn moment(&self) -> HistoryPoint {
        let (import_epoch, txg) = (self.lineage[0].id, self.committed_txg());
        HistoryPoint { import_epoch, txg, unix_ms: self.clock.unix_ms() }
    }

    /// The planted bug, if any.
    pub fn bug(&self) -> PlantedBug {
        self.bug
    }

    /// Committed root of the dataset directory, and the next dataset id.
    pub fn datasets(&self) -> (TreeRoot, u64) {
        let committed = self.committed.lock();
        (committed.datasets, committed.next_dataset)
    }

    /// The block cache.
    pub fn cache(&self) -> &BlockCache {
        &self.cache
    }

    /// The pool's clock.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Space use of the pool.
    pub fn space(&self) -> SpaceUse {
        self.segments.space()
    }

    /// Changes the budget of the caches and tables.
    pub fn set_cache_bytes(&self, bytes: u64) {
        self.cache_bytes.store(bytes, Ordering::Release);
        self.set_table_bytes(bytes / TABLE_SHARE);
        self.fit_cache();
    }

    /// Sets the cache budget of blocks and nodes to the budget that tables and the dedupe index
    /// leave. Tables and index grow with the pool, and a part of them cannot leave RAM.
    pub(crate) fn fit_cache(&self) {
        let bytes = self.cache_bytes.load(Ordering::Acquire);
        let tables = {
            let inner = self.segments.inner.lock();
            inner.remaps.bytes_reserved() + inner.references.bytes_reserved_if_any()
        };
        let tables = tables + self.hint_figures().bytes;
        self.cache.set_budget(bytes.saturating_sub(tables).max(bytes / CACHE_SHARE_MIN));
    }

    /// Sets the budget of the remap tables and the budget of the reference tables to `bytes` each.
    pub fn set_table_bytes(&self, bytes: u64) {
        let mut inner = self.segments.inner.lock();
        inner.remaps.set_max(bytes);
        inner.references.set_max(bytes);
    }

    /// Changes the RAM limit of the dedupe index, and empties the index.
    pub fn set_hint_bytes(&self, bytes: u64) {
        self.dedupe_index.lock().set_max(bytes);
    }

    /// Statistics of the dedupe index.
    pub fn hint_figures(&self) -> HintFigures {
        self.dedupe_index.lock().figures()
    }

    /// True if RAM has room for more changed reference tables. A changed table stays in RAM until
    /// the next commit.
    pub fn has_room_for_tables(&self) -> bool {
        let inner = self.segments.inner.lock();
        inner.references.bytes() <= inner.references.max()
    }

    /// RAM of the segment table, the remap tables and the reference tables.
    pub fn table_memory(&self) -> TableMemory {
        self.segments.table_memory()
    }

    /// Bytes written to segments of a class since the import: blocks, padding and summaries. Counts
    /// each byte once, whatever the redundancy of the vdev.
    pub fn written_bytes(&self, class: SegmentClass) -> u64 {
        self.traffic[class as usize].load(Ordering::Relaxed)
    }

    /// Bytes read from disks through pointers to data or nodes since the import, with the gaps
    /// between neighbouring blocks. Scans, tables of segments and retries on other copies are not
    /// counted.
    pub fn read_bytes(&self, kind: PtrKind) -> u64 {
        self.reads[Self::class_of(kind) as usize].load(Ordering::Relaxed)
    }

    /// Size of the smallest segments. The segments of a vdev hold as many whole rows as fit.
    pub fn segment_bytes(&self) -> u64 {
        self.segments.segment_bytes()
    }

    /// Number of free segments, and number of dead segments that later txgs reclaim for data.
    pub fn free_segments(&self) -> (usize, usize) {
        self.segments.free_now_and_later()
    }

    /// Suspends the pool: it acknowledges no more writes until the next import. The first reason is
    /// kept.
    pub fn poison(&self, why: &dyn std::fmt::Display) -> PoolError {
        let taken = self.taken_over().map(|error| error.to_string());
        let why = taken.unwrap_or_else(|| why.to_string());
        if self.poisoned.set(why.clone()).is_ok() {
            tracing::error!(pool = %self.name(), %why, "pool suspended");
        }
        self.check_alive().expect_err("just poisoned")
    }

    /// Poisons a pool that an administrator destroyed: it acknowledges no more writes. Unlike
    /// [`Self::poison`], this function logs no error.
    pub(crate) fn note_destroyed(&self) {
        if self.poisoned.set(DESTROYED.to_owned()).is_ok() {
            tracing::info!(pool = %self.name(), "pool destroyed");
        }
    }

    /// True once an administrator destroyed the pool.
    pub fn is_destroyed(&self) -> bool {
        self.poisoned.get().is_some_and(|why| why == DESTROYED)
    }

    /// Returns an error once the pool is poisoned.
    pub fn check_alive(&self) -> Result<(), PoolError> {
        match self.poisoned.get() {
            None => self.taken_over().map_or(Ok(()), |error| Err(self.poison(&error))),
            Some(why) => {
                Err(PoolError::Poisoned { pool: self.label.name.clone(), why: why.clone() })
            }
        }
    }

    /// Writes one batch to the intent log. Calls must not overlap.
    ///
    /// # Durability
    /// When the call returns `Ok`, the batch is on stable media of every leg that the newest
    /// uberblock does not list as stale.
    ///
    /// # Errors
    /// `NeedsCommit`; any other error has poisoned the pool.
    #[boxed(?Send)]
    pub async fn log_write(
        &self,
        builder: BatchBuilder,
        newest_txg: Txg,
    ) -> Result<(), LogWriteError> {
        self.check_alive().map_err(LogWriteError::Pool)?;
        self.log_write_ns.store(self.clock.monotonic().as_nanos() as u64, Ordering::Relaxed);
        let done = self.log.write(&self.vdevs, builder, newest_txg).await;
        if let Err(LogWriteError::Pool(error)) = &done {
            let vdev = &self.vdevs[usize::from(self.log.vdev())];
            if vdev.role() != VdevRole::Log {
                return Err(LogWriteError::Pool(self.poison(error)));
            }
            // Changes in the log are also in RAM: the next commit makes them durable without the
            // log.
            tracing::error!(%error, "log vdev lost: the intent log moves to another vdev");
            self.log.move_to(self.wanted_log_vdev());
            return Err(LogWriteError::NeedsCommit);
        }
        done
    }

    /// True if clients wait for writes of the intent log to disks that have data, too: one began
    /// within [`LOG_IS_BUSY`].
    pub(crate) fn log_is_busy(&self) -> bool {
        if self.vdevs[usize::from(self.log.vdev())].role() == VdevRole::Log {
            return false;
        }
        let begun = Duration::from_nanos(self.log_write_ns.load(Ordering::Relaxed));
        !begun.is_zero() && self.clock.monotonic().saturating_sub(begun) < LOG_IS_BUSY
    }

    /// Number of the vdev that should hold the intent log.
    pub(crate) fn wanted_log_vdev(&self) -> u16 {
        wanted_log_vdev(&self.vdevs)
    }

    /// True if the intent log needs a commit.
    pub fn log_half_full(&self) -> bool {
        self.log.half_full()
    }
}
