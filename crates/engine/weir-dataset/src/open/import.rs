//! Creates and imports pools: replays the intent log and commits before any client has access.
//!
//! weir-pool imports the pool itself; `commit::directory` reads the dataset directory.
//!
//! Invariant: a refused import has written nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use async_recursion::async_recursion as boxed;
use parking_lot::RwLock;
use tokio::sync::{Mutex, Semaphore};
use weir_base::hash::HashSet;
use weir_base::limits::{CLONE_BLOCKS_MAX, DATASETS_MAX};
use weir_base::{DatasetId, Guid};
use weir_device::Device;
use weir_format::{DatasetKind, DatasetRecord};
use weir_pool::{CreateOptions, ImportOptions, LostTables, Pool, VdevSpec, create, import};

use crate::commit::directory::Directory;
use crate::commit::replay::refuse_logged_for_unread;
use crate::commit::replay_objects::{NoLayer, ObjectLayer, refuse_unknown_layers};
use crate::error::DatasetError;
use crate::state::engine::{Engine, EngineOptions, HINT_BYTES_MAX, HINT_SHARE};
use crate::state::mark::Mark;
use crate::state::scan_requests::ScanDesk;
use crate::state::shared::{Core, PoolOwn};
use crate::state::snapshot::{Snapshot, moment};
use crate::state::traffic::Traffic;
use crate::state::volume::Volume;

impl Engine {
    /// Creates a pool and opens it.
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

    /// Imports the pool on `disks`: replays the intent log and commits, so that clients see only
    /// data that is on disk.
    #[boxed(?Send)]
    pub async fn open(
        disks: Vec<Arc<dyn Device>>,
        how: ImportOptions,
        options: &EngineOptions,
    ) -> Result<Arc<Self>, DatasetError> {
        Self::open_with_layer(disks, how, options, &NoLayer).await
    }

    /// As [`Self::open`], for pools with datasets of many objects: `layer` replays their log
    /// records.
    ///
    /// # Errors
    /// As [`Self::open`], and the error of the layer if it cannot apply a record.
    #[boxed(?Send)]
    pub async fn open_with_layer(
        disks: Vec<Arc<dyn Device>>,
        how: ImportOptions,
        options: &EngineOptions,
        layer: &dyn ObjectLayer,
    ) -> Result<Arc<Self>, DatasetError> {
        let imported = import(disks, how, &options.pool()).await?;
        // Read the directory before the claim: a refused import writes nothing.
        let read = Directory::read(&imported.pool, how.force);
        let mut directory = imported.pool.around_silent_legs(Box::pin(read)).await?;
        if !how.force {
            refuse_logged_for_unread(&imported, &directory.losses)?;
            refuse_unknown_layers(&imported, &directory.records, layer)?;
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
            let how = (layer, how.force);
            engine.replay(&imported.batches, imported.replay_after, how).await?;
            // Commit even if nothing was replayed: the log batches of this import have a new log
            // epoch, which an uberblock must name before the first of these batches is written.
            engine.core.want(engine.core.open_txg());
            engine.commit().await?;
            engine.pool().refresh_labels().await;
            Ok::<_, DatasetError>(())
        };
        engine.pool().around_silent_legs(Box::pin(settle)).await?;
        Ok(Arc::new(engine))
    }

    /// Waits for the disks that were unresponsive during the import, and adds each disk once it
    /// responds. A resilver follows.
    #[boxed(?Send)]
    pub async fn add_late_disks(&self) {
        let late = std::mem::take(&mut *self.late.lock());
        let add_late_disk = late.into_iter().map(|disk| async move {
            match self.pool().add_late_disk(disk).await {
                Ok(true) => self.leg_came_back(),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "late disk cannot be used"),
            }
        });
        futures_util::future::join_all(add_late_disk).await;
    }

    /// Creates the engine of an open pool. `renamed`: datasets whose directory entries must be
    /// stored again.
    fn new(
        pool: Pool,
        options: &EngineOptions,
        records: Vec<DatasetRecord>,
        renamed: &HashSet<DatasetId>,
    ) -> Self {
        let is_renamed = |record: &DatasetRecord| renamed.contains(&record.id);
        let (_, next_dataset) = pool.datasets();
        pool.set_hint_bytes((options.memory_bytes / HINT_SHARE).min(HINT_BYTES_MAX));
        let core = Arc::new(Core::new(pool, options.memory_bytes));
        let (volumes, others): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|r| matches!(r.kind, DatasetKind::Volume(_)));
        let (mut snapshots, bookmarks): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|r| matches!(r.kind, DatasetKind::Snapshot(_)));
        // Order snapshots of one txg by their creation.
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
            found.expect("the directory read checked it")
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

    /// Copies the pool's own entry and the list of unreadable parts from the directory into the
    /// engine.
    fn adopt(&self, directory: Directory) {
        let next = directory.next_dataset(self.next_dataset());
        self.next_dataset.store(next, Ordering::Release);
        let Directory { own: record, losses, damage_records, .. } = directory;
        *self.damage_records.lock() = damage_records;
        *self.core.own.write() = PoolOwn { record, is_dirty: false };
        let pool = &self.core.pool;
        if !losses.numbers.is_empty() || pool.lost_tables() != LostTables::default() {
            // Blocks that are kept for unreadable datasets make counters too high, until a recount
            // can read all trees.
            pool.note_lost_node(self.core.open_txg());
            pool.want_recount();
        }
        *self.core.directory_losses.lock() = losses;
    }

    /// Applies the stored properties to the volumes, which no client uses yet.
    fn apply_properties(&self) {
        for volume in self.all_volumes() {
            let mut state = volume.state.lock();
            state.apply_properties(&self.core);
            volume.measure_limits(&mut state);
        }
    }
}
