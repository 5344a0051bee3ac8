//! The engine of one pool: making, opening, listing, changing and destroying volumes.
//!
//! Not here: data (volume, volume_read, flush) and committing (commit).
//!
//! Invariants:
//! - a change to the set of volumes is committed before it is acknowledged;
//! - changing calls say whether anything changed, so each can be repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use async_recursion::async_recursion as boxed;
use parking_lot::RwLock;
use tokio::sync::{Mutex, Semaphore};
use weir_base::RecordSize;
use weir_base::hash::HashSet;
use weir_base::limits::{CLONE_BLOCKS_MAX, DATASETS_MAX, VOLUME_BYTES_MAX};
use weir_base::size::Human;
use weir_base::{BLOCK_BYTES, Clock, DatasetId, Guid};
use weir_device::Device;
use weir_format::{
    BlockPtr, Compression, DatasetKind, DatasetRecord, DatasetState, Descent, Properties, TreeRoot,
};
use weir_pool::{
    CreateOptions, ImportOptions, LateDisk, LostTables, PlantedBug, Pool, PoolOptions, Tree,
    VdevSpec, create, import,
};

use crate::accounting::limits::thick_bytes;
use crate::commit::directory::Directory;
use crate::commit::replay::refuse_logged_for_unread;
use crate::error::DatasetError;
use crate::properties::change::{PropertyChange, PropertyTarget};
use crate::scan::run::ScanDesk;
use crate::snapshots::bookmarks::Mark;
use crate::state::shared::{Core, PoolOwn};
use crate::state::snapshot::{Snapshot, moment};
use crate::state::traffic::Traffic;
use crate::state::volume::Volume;
use crate::topology::legs::Succession;
use crate::volume::records::VolumeSize;

/// Parts of the memory budget; the rest is buffers in flight, log queues and the program.
const CACHE_PERCENT: u64 = 38;
const DIRTY_PERCENT: u64 = 42;

/// Part of the memory budget that the dedupe index takes at most, as a divisor; it comes out of the
/// caches' part once there is something in it.
const HINT_SHARE: u64 = 5;
/// ... and never more than this, unless told otherwise: 50 million blocks.
const HINT_BYTES_MAX: u64 = 1 << 30;

/// How to run an engine; nothing of it is stored.
#[derive(Clone)]
pub struct EngineOptions {
    /// RAM for dirty data and caches of this pool.
    pub memory_bytes: u64,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// A deliberate fault, for the simulator.
    pub bug: PlantedBug,
}

impl EngineOptions {
    fn pool(&self) -> PoolOptions {
        PoolOptions {
            cache_bytes: self.memory_bytes / 100 * CACHE_PERCENT,
            clock: Arc::clone(&self.clock),
            bug: self.bug,
        }
    }
}

/// Records that a segment has room for at least: eight, but for what rounding to whole rows takes.
const RECORDS_OF_SEGMENT: u64 = 7;

/// A volume to make, with records that are blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Name inside the pool.
    pub name: String,
    /// Size in bytes, whole blocks.
    pub size_bytes: u64,
    /// Compression of new blocks.
    pub compression: Compression,
}

/// Whether a changing call changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did.
    Changed,
    /// Everything was as asked already.
    Unchanged,
}

/// One open pool with its volumes.
pub struct Engine {
    pub(crate) core: Arc<Core>,
    /// Every dataset, those being destroyed included, by number.
    pub(crate) volume_list: RwLock<Vec<Arc<Volume>>>,
    pub(crate) next_dataset: AtomicU64,
    datasets_max: AtomicUsize,
    /// Held by whoever changes the set of volumes or a property.
    pub(crate) admin: Mutex<()>,
    stopping: AtomicBool,
    /// Blocks that range clones may refer to with one txg.
    pub(crate) clone_room: Semaphore,
    traffic: Traffic,
    pub(crate) scans: ScanDesk,
    /// Disks that did not answer while the pool was opened.
    late: parking_lot::Mutex<Vec<LateDisk>>,
    /// Replaced legs that wait for their successors.
    pub(crate) successions: parking_lot::Mutex<Vec<Succession>>,
    /// Numbers of the directory's records that hold the list of damage.
    pub(crate) damage_records: parking_lot::Mutex<Vec<DatasetId>>,
}

impl Engine {
    /// Makes a pool and opens it.
    ///
    /// # Durability
    /// The pool is on every disk when this returns.
    #[boxed(?Send)]
    pub async fn create(
        name: &str,
        vdevs: &[VdevSpec],
        sizes: CreateOptions,
        options: &EngineOptions,
        guid: &mut dyn FnMut() -> Guid,
    ) -> Result<Arc<Self>, DatasetError> {
        let pool = create(name, vdevs, sizes, &options.pool(), guid).await?;
        Ok(Arc::new(Self::new(pool, options, Vec::new(), &HashSet::default())))
    }

    /// Opens the pool on `disks`: replays the intent log and commits, so that what clients see is
    /// on disk before they see it.
    #[boxed(?Send)]
    pub async fn open(
        disks: Vec<Arc<dyn Device>>,
        how: ImportOptions,
        options: &EngineOptions,
    ) -> Result<Arc<Self>, DatasetError> {
        let imported = import(disks, how, &options.pool()).await?;
        // Before the claim: an import that is refused has written nothing.
        let read = Directory::read(&imported.pool, how.force);
        let mut directory = imported.pool.around_silent_legs(Box::pin(read)).await?;
        if !how.force {
            refuse_logged_for_unread(&imported, &directory.losses)?;
        }
        imported.pool.around_silent_legs(imported.claim()).await?;
        let damage = std::mem::take(&mut directory.damage);
        imported.pool.load_damage_at_import(damage, &directory.losses.unread);
        let records = std::mem::take(&mut directory.records);
        let engine = Self::new(imported.pool, options, records, &directory.renamed);
        engine.adopt(directory);
        engine.core.measure_space();
        engine.apply_properties();
        *engine.late.lock() = imported.late;
        let settle = async {
            engine.replay(&imported.batches, imported.replay_after).await?;
            // Also when nothing was replayed: log batches of this import belong to a new epoch,
            // which an uberblock must name before the first of them is written.
            engine.core.want(engine.core.open_txg());
            engine.commit().await?;
            engine.pool().refresh_labels().await;
            Ok::<_, DatasetError>(())
        };
        engine.pool().around_silent_legs(Box::pin(settle)).await?;
        Ok(Arc::new(engine))
    }

    /// Waits for the disks that did not answer while the pool was opened, and takes each into use
    /// as soon as it does; a resilver follows.
    #[boxed(?Send)]
    pub async fn welcome_late_disks(&self) {
        let late = std::mem::take(&mut *self.late.lock());
        let welcome = late.into_iter().map(|disk| async move {
            match self.pool().welcome(disk).await {
                Ok(true) => self.leg_came_back(),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "late disk cannot be used"),
            }
        });
        futures_util::future::join_all(welcome).await;
    }

    /// `renamed`: datasets whose records are to be stored again.
    fn new(
        pool: Pool,
        options: &EngineOptions,
        records: Vec<DatasetRecord>,
        renamed: &HashSet<DatasetId>,
    ) -> Self {
        let is_renamed = |record: &DatasetRecord| renamed.contains(&record.id);
        let (_, next_dataset) = pool.datasets();
        pool.set_hint_bytes((options.memory_bytes / HINT_SHARE).min(HINT_BYTES_MAX));
        let core = Arc::new(Core::new(pool, options.memory_bytes / 100 * DIRTY_PERCENT));
        let (volumes, others): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|r| matches!(r.kind, DatasetKind::Volume(_)));
        let (mut snapshots, bookmarks): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|r| matches!(r.kind, DatasetKind::Snapshot(_)));
        // Those of one txg in the order they were made.
        snapshots.sort_by_key(|record| (moment(record).txg, record.id));
        let volumes: Vec<_> = volumes
            .into_iter()
            .map(|record| {
                let is_dirty = is_renamed(&record);
                Arc::new(Volume::new(Arc::clone(&core), record, is_dirty))
            })
            .collect();
        let volume = |id| {
            let found = volumes.iter().find(|volume| volume.id == id);
            found.expect("whoever read the records looked for it")
        };
        for record in snapshots {
            let of = volume(moment(&record).of);
            let is_dirty = is_renamed(&record);
            of.state.lock().snapshots.push(Snapshot::new(record, is_dirty));
        }
        for record in bookmarks {
            let is_dirty = is_renamed(&record);
            let mark = Mark::new(record, is_dirty);
            volume(mark.bookmark().of).state.lock().add_bookmark(mark);
        }
        Self {
            core,
            volume_list: RwLock::new(volumes),
            next_dataset: AtomicU64::new(next_dataset),
            datasets_max: AtomicUsize::new(DATASETS_MAX),
            admin: Mutex::new(()),
            stopping: AtomicBool::new(false),
            clone_room: Semaphore::new(CLONE_BLOCKS_MAX),
            traffic: Traffic::default(),
            scans: ScanDesk::default(),
            late: parking_lot::Mutex::default(),
            successions: parking_lot::Mutex::default(),
            damage_records: parking_lot::Mutex::default(),
        }
    }

    /// Takes over what a directory says of the pool itself, and what is lost of it.
    fn adopt(&self, directory: Directory) {
        let next = directory.next_dataset(self.next_dataset());
        self.next_dataset.store(next, Ordering::Release);
        let Directory { own: record, losses, damage_records, .. } = directory;
        *self.damage_records.lock() = damage_records;
        *self.core.own.write() = PoolOwn { record, is_dirty: false };
        let pool = &self.core.pool;
        if !losses.numbers.is_empty() || pool.lost_tables() != LostTables::default() {
            // Blocks held for them make counters too high, until a recount can read everything.
            pool.note_lost_node(self.core.open_txg());
            pool.want_recount();
        }
        *self.core.directory_losses.lock() = losses;
    }

    /// Lets what is set count, on volumes nobody has used yet.
    fn apply_properties(&self) {
        for volume in self.all_volumes() {
            let mut state = volume.state.lock();
            state.is_read_only = self.core.is_read_only(&state.record.properties);
            volume.measure_limits(&mut state);
        }
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.core.pool
    }

    /// What clients asked for; whoever serves a protocol counts it here.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Commits what is acknowledged now.
    ///
    /// # Durability
    /// Everything acknowledged before this call is on disk when it returns `Ok`.
    #[boxed(?Send)]
    pub async fn sync(&self) -> Result<(), DatasetError> {
        self.core.pool.check_alive()?;
        self.core.want(self.core.open_txg());
        self.commit().await
    }

    /// Suspends the pool and ends every wait for its disks with an error, so that the engine can
    /// be dropped though the disks do not answer.
    ///
    /// # Durability
    /// What was flushed is safe; what was only acknowledged is lost, as by a crash.
    pub fn abandon(&self, why: &dyn std::fmt::Display) {
        self.core.pool.abandon(why);
        self.core.announce_poison();
        self.stop();
    }

    /// Dirty data now.
    pub fn dirty_bytes(&self) -> u64 {
        self.core.dirty_bytes()
    }

    /// Bytes of the pool that user data never gets.
    pub fn reserve_bytes(&self) -> u64 {
        self.core.reserve_bytes()
    }

    /// Changes the budget of this pool's dirty data and caches.
    pub fn set_memory(&self, bytes: u64) {
        self.core.pool.set_cache_bytes(bytes / 100 * CACHE_PERCENT);
        self.core.set_dirty_max(bytes / 100 * DIRTY_PERCENT);
    }

    /// Changes the most RAM that the dedupe index takes; it is emptied by that.
    pub fn set_dedupe_memory(&self, bytes: u64) {
        self.core.pool.set_hint_bytes(bytes);
    }

    /// Makes [`Self::run`] commit once more and return, and [`Self::run_scans`] return.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.core.wake_committer.notify_one();
        self.scans.wake.notify_one();
    }

    /// Whether [`Self::abandon`] was called: calls that wait for disks it does not reach, such as
    /// one that was to be added, shall not be waited for either.
    pub fn is_abandoned(&self) -> bool {
        self.is_stopping() && self.core.pool.check_alive().is_err()
    }

    /// Whether [`Self::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn next_dataset(&self) -> u64 {
        self.next_dataset.load(Ordering::Acquire)
    }

    /// A number that nothing in the directory has.
    pub(crate) fn new_dataset(&self) -> DatasetId {
        DatasetId(self.next_dataset.fetch_add(1, Ordering::AcqRel))
    }

    /// Sets the maximum number of datasets of the pool in place of [`DATASETS_MAX`], for tests.
    pub fn set_datasets_max(&self, datasets: usize) {
        self.datasets_max.store(datasets, Ordering::Release);
    }

    /// Refuses `more` datasets above the maximum of the pool. Hidden volumes and snapshots count
    /// too. The caller holds the admin lock.
    ///
    /// # Errors
    /// `TooMany`.
    pub(crate) fn refuse_too_many(&self, more: usize) -> Result<(), DatasetError> {
        let count = |volume: &Arc<Volume>| {
            let state = volume.state.lock();
            1 + state.snapshots.len() + state.bookmarks.len()
        };
        let count = self.volume_list.read().iter().map(count).sum::<usize>();
        if count + more <= self.datasets_max.load(Ordering::Acquire) {
            return Ok(());
        }
        let (name, what) = (self.core.pool.name().to_owned(), "volumes, snapshots and bookmarks");
        Err(DatasetError::TooMany { name, count, what })
    }

    pub(crate) fn all_volumes(&self) -> Vec<Arc<Volume>> {
        self.volume_list.read().clone()
    }

    /// Volumes in the order they were made.
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        let mut volumes = self.all_volumes();
        volumes.retain(|volume| volume.state.lock().record.state == DatasetState::Active);
        volumes
    }

    /// The volume of this name.
    pub fn volume(&self, name: &str) -> Result<Arc<Volume>, DatasetError> {
        let found = self.volumes().into_iter().find(|v| v.state.lock().record.name == name);
        found.ok_or_else(|| DatasetError::NotFound { name: self.full_name(name) })
    }

    pub(crate) fn full_name(&self, name: &str) -> String {
        format!("{}/{name}", self.core.pool.name())
    }

    fn check_size(&self, name: &str, size: VolumeSize) -> Result<(), DatasetError> {
        let why = match size.bytes {
            0 => "a volume has at least one block of 4096 bytes",
            VOLUME_BYTES_MAX.. if size.bytes > VOLUME_BYTES_MAX => "the largest volume is 16 TiB",
            bytes if !bytes.is_multiple_of(BLOCK_BYTES as u64) => "not a multiple of 4096",
            bytes if !bytes.is_multiple_of(size.record.bytes() as u64) => {
                "not a multiple of the record size"
            }
            _ => return Ok(()),
        };
        Err(DatasetError::Size { name: self.full_name(name), size: size.bytes, why })
    }

    /// Refuses records that leave much of each segment empty behind the last one that fits.
    pub(crate) fn check_record(&self, name: &str, size: RecordSize) -> Result<(), DatasetError> {
        let fits = |size: &RecordSize| {
            size.is_block()
                || size.bytes() as u64 * RECORDS_OF_SEGMENT <= self.pool().segment_bytes()
        };
        if fits(&size) {
            return Ok(());
        }
        let most = RecordSize::all().rev().find(fits).expect("blocks fit");
        let why = format!(
            "cannot have records of {size} in this pool, whose disks were small when it was made: \
             its segments are of {}; at most {most}",
            Human(self.pool().segment_bytes())
        );
        Err(DatasetError::Unfit { name: self.full_name(name), why })
    }

    /// Makes a thin volume that compresses in a way of its own.
    ///
    /// # Durability
    /// It exists after any crash once this returns.
    #[boxed(?Send)]
    pub async fn create_volume(&self, spec: &VolumeSpec) -> Result<Outcome, DatasetError> {
        let compression = PropertyChange::Compression(Some(spec.compression));
        self.create_volume_with(&spec.name, spec.size_bytes.into(), &[compression]).await
    }

    /// Makes a thin volume with properties.
    ///
    /// # Durability
    /// It exists after any crash once this returns.
    ///
    /// # Errors
    /// `Exists` for one of another size or with other properties; those of
    /// [`Self::change_properties`].
    #[boxed(?Send)]
    pub async fn create_volume_with(
        &self,
        name: &str,
        size: VolumeSize,
        changes: &[PropertyChange],
    ) -> Result<Outcome, DatasetError> {
        self.check_size(name, size)?;
        self.check_record(name, size.record)?;
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let properties = self.plan_new(name, size, changes)?;
        if let Ok(volume) = self.volume(name) {
            let state = volume.state.lock();
            let same = state.size() == size && state.record.properties == properties;
            let (name, has_bytes) = (self.full_name(name), state.size().bytes);
            return match has_bytes == size.bytes {
                _ if same => Ok(Outcome::Unchanged),
                true => Err(DatasetError::Exists { name }),
                false => {
                    let asked_bytes = size.bytes;
                    Err(DatasetError::ExistsWithSize { name, has_bytes, asked_bytes })
                }
            };
        }
        self.refuse_too_many(1)?;
        let record = self.empty_record(self.new_dataset(), name, size, properties);
        let volume = Volume::new(Arc::clone(&self.core), record, true);
        self.promise_more(
            name,
            "what is reserved",
            || volume.measure_limits(&mut volume.state.lock()),
            || volume.give_up_promises(),
        )?;
        self.add_volume(volume);
        self.commit_change().await
    }

    /// The record of a volume made now in which nothing is written.
    pub(crate) fn empty_record(
        &self,
        id: DatasetId,
        name: &str,
        size: VolumeSize,
        properties: Properties,
    ) -> DatasetRecord {
        DatasetRecord {
            id,
            kind: DatasetKind::Volume(Descent::default()),
            state: DatasetState::Active,
            name: name.to_owned(),
            size_bytes: size.bytes,
            record_size: size.record,
            properties,
            created_txg: self.core.open_txg(),
            created_unix_ms: self.core.pool.clock().unix_ms(),
            root: TreeRoot { height: size.height(), ..TreeRoot::default() },
            used_blocks: 0,
            stored_units: 0,
            shared_units: 0,
            tree_units: 0,
            born_units: 0,
            freed_to: 0,
        }
    }

    /// Adds a new volume to the list; nothing of it is logged before its record is stored.
    pub(crate) fn add_volume(&self, volume: Volume) {
        // The list is locked against a freeze, so the txg is the one that stores the record.
        let mut list = self.volume_list.write();
        {
            let mut state = volume.state.lock();
            state.overflow = Some(self.core.open_txg());
            state.is_read_only = self.core.is_read_only(&state.record.properties);
        }
        list.push(Arc::new(volume));
    }

    /// Commits what an administrator changed.
    pub(crate) async fn commit_change(&self) -> Result<Outcome, DatasetError> {
        self.core.want(self.core.open_txg());
        self.commit().await?;
        Ok(Outcome::Changed)
    }

    /// Changes the compression of blocks written from now on.
    #[boxed(?Send)]
    pub async fn set_compression(
        &self,
        name: &str,
        compression: Compression,
    ) -> Result<Outcome, DatasetError> {
        let target = PropertyTarget::Volume(name.to_owned());
        self.change_properties(&[target], &[PropertyChange::Compression(Some(compression))]).await
    }

    /// Looks for what is written from now on among what is there, or no more.
    #[boxed(?Send)]
    pub async fn set_dedupe(&self, name: &str, dedupe: bool) -> Result<Outcome, DatasetError> {
        let target = PropertyTarget::Volume(name.to_owned());
        self.change_properties(&[target], &[PropertyChange::Dedupe(Some(dedupe))]).await
    }

    /// Grows or shrinks a volume; shrinking never cuts data off.
    #[boxed(?Send)]
    pub async fn resize_volume(&self, name: &str, size: u64) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let volume = self.volume(name)?;
        let record = volume.record_size();
        self.check_size(name, VolumeSize { bytes: size, record })?;
        let thick_bytes = |bytes| thick_bytes(VolumeSize { bytes, record });
        self.refuse_receiving(&volume.state.lock())?;
        let before = volume.size_bytes();
        if before == size {
            return Ok(Outcome::Unchanged);
        }
        if size < before {
            // From here on nobody writes behind the new end; what was written there is committed,
            // so that the tree alone tells whether it is in the way.
            volume.state.lock().shrinking_to = Some(size);
            let used = self.used_end(&volume).await;
            match used {
                Ok(used) if used <= size => {}
                other => {
                    volume.state.lock().shrinking_to = None;
                    let used = other?;
                    let name = self.full_name(name);
                    return Err(DatasetError::ShrinkBelowData { name, size, used });
                }
            }
        }
        {
            let Properties { quota_bytes, refreservation_bytes, .. } =
                volume.state.lock().record.properties.clone();
            let (thick, value) = (refreservation_bytes == thick_bytes(before), thick_bytes(size));
            if thick && quota_bytes > 0 && value > quota_bytes {
                volume.state.lock().shrinking_to = None;
                let (name, property) = (self.full_name(name), "refreservation");
                let (bound, why) = (quota_bytes, "the quota");
                return Err(DatasetError::Limit { name, property, value, bound, why });
            }
            volume.refuse_growth(size)?;
            let resize = |from: u64, to: u64| {
                let mut state = volume.state.lock();
                state.shrinking_to = None;
                let before = record.records_in(from);
                state.grown_from =
                    (to > from).then(|| before.min(state.grown_from.unwrap_or(before)));
                state.record.size_bytes = to;
                // One that was promised all it can take is so still.
                let promised = &mut state.record.properties.refreservation_bytes;
                if *promised == thick_bytes(from) {
                    *promised = thick_bytes(to);
                }
                state.record_dirty = true;
                volume.measure_limits(&mut state)
            };
            let _list = self.volume_list.write();
            let what = "the refreservation of that size";
            let undo = || {
                resize(size, before);
            };
            self.promise_more(name, what, || resize(before, size), undo)?;
            // A replay before the commit would not know the new size: nothing is logged till then.
            volume.state.lock().overflow = Some(self.core.open_txg());
        }
        self.commit_change().await
    }

    /// End of the last block that holds data, after a commit.
    async fn used_end(&self, volume: &Volume) -> Result<u64, DatasetError> {
        self.core.want(self.core.open_txg());
        self.commit().await?;
        let (root, size) = {
            let state = volume.state.lock();
            (state.record.root, state.size())
        };
        let last = Tree::new(&self.core.pool, root).last_block().await?;
        Ok(last.map_or(0, |record| (record + 1) * size.record.bytes() as u64))
    }

    /// Destroys a volume; its space comes back over the next commits.
    ///
    /// # Durability
    /// It is gone after any crash once this returns.
    ///
    /// # Errors
    /// `InUse` while it has snapshots (unless `recursive`), or clones or tags of these. Bookmarks
    /// go with it.
    #[boxed(?Send)]
    pub async fn destroy_volume(
        &self,
        name: &str,
        recursive: bool,
    ) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let volume = self.volume(name)?;
        self.destroy_found(&volume, recursive).await
    }

    /// As [`Self::destroy_volume`], for one who holds the admin lock.
    #[boxed(?Send)]
    pub(crate) async fn destroy_found(
        &self,
        volume: &Volume,
        recursive: bool,
    ) -> Result<Outcome, DatasetError> {
        self.refuse_clones(volume, |_| true)?;
        {
            let mut state = volume.state.lock();
            let count = state.snapshots.iter().filter(|s| s.is_active()).count();
            if count > 0 && !recursive {
                let name = self.full_name(&state.record.name);
                let why = format!("has {count} snapshots; destroy them first, or with it (-r)");
                return Err(DatasetError::InUse { name, why });
            }
            self.refuse_held(&state, |_| true)?;
            state.record.state = DatasetState::Destroying;
            state.record_dirty = true;
            for snapshot in &mut state.snapshots {
                snapshot.destroy();
            }
            state.forget_bookmarks(|_| true);
            // Its queue is never logged again; who still waits in a flush waits for the commit.
            state.overflow = Some(self.core.open_txg());
            volume.measure_limits(&mut state);
        }
        self.commit_change().await
    }

    /// Compares every segment's live bytes with what the trees refer to; empty when they agree.
    /// Nothing may be written meanwhile.
    #[boxed(?Send)]
    pub async fn check_live_bytes(
        &self,
    ) -> Result<Vec<(weir_base::VsegId, u64, u64)>, DatasetError> {
        let _committer = self.core.committer.lock().await;
        Ok(self.core.pool.check_live_bytes(&self.roots_with(&[])).await?)
    }

    /// Compares the counts of references to shared blocks with the pointers that lead to them;
    /// empty when they agree. Nothing may be written meanwhile.
    #[boxed(?Send)]
    pub async fn check_references(&self) -> Result<Vec<weir_pool::WrongCount>, DatasetError> {
        let _committer = self.core.committer.lock().await;
        Ok(self.core.pool.check_references(&self.roots_with(&[])).await?)
    }

    /// Two blocks that share a place on disk, or twice one that has none; `None` when all is well.
    /// Nothing may be written meanwhile.
    #[boxed(?Send)]
    pub async fn check_places(&self) -> Result<Option<(BlockPtr, BlockPtr)>, DatasetError> {
        let _committer = self.core.committer.lock().await;
        Ok(self.core.pool.check_places(&self.roots_with(&[])).await?)
    }
}
