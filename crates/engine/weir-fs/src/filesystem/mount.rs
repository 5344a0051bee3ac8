//! Creates and opens filesystems.
//!
//! Invariant: a filesystem that can change is open only after the inodes without a name are free,
//! or wait for the background task.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use parking_lot::Mutex as SyncMutex;
use tokio::sync::{Mutex, Notify};
use weir_base::{BLOCK_BYTES, RecordSize};
use weir_block::Block;
use weir_dataset::{Engine, FoundRanges, ObjectChange, PropertyChange, Volume};
use weir_format::files::{FileType, Inode, Layout, OwnerId, OwnerKind, UsageBlock};

use crate::directory::NameHash;
use crate::draft::node::new_inode;
use crate::error::FsError;
use crate::filesystem::state::{Filesystem, Now};
use crate::inodes::InodeCache;
use crate::layout::{BITMAP, FIRST, FIXED, ROOT, USAGE, is_fixed};
use crate::policy::FreeingLimits;

impl Filesystem {
    /// Creates a filesystem and opens it.
    ///
    /// # Durability
    /// The filesystem exists after any crash once this returns.
    ///
    /// # Errors
    /// The errors of [`Engine::create_object_dataset`].
    #[boxed(?Send)]
    pub async fn create(
        engine: &Arc<Engine>,
        name: &str,
        layout: Layout,
        properties: &[PropertyChange],
        now: Now,
    ) -> Result<Self, FsError> {
        engine.create_object_dataset(name, layout.encode(), properties).await?;
        let filesystem = Self::open(engine, name, now).await?;
        engine.commit().await?;
        Ok(filesystem)
    }

    /// Opens a filesystem. Frees the inodes without a name that the last server left behind;
    /// [`Self::run_background`] frees the large files among them. A read-only filesystem keeps all
    /// of these inodes.
    ///
    /// # Errors
    /// `Invalid` if the dataset is not a filesystem; `InUse` if it is open already or receives a
    /// stream; the errors of reads.
    #[boxed(?Send)]
    pub async fn open(engine: &Arc<Engine>, name: &str, now: Now) -> Result<Self, FsError> {
        Self::open_volume(engine, engine.volume(name)?, now).await
    }

    /// As [`Self::open`], with limits of the freeing of files.
    ///
    /// # Errors
    /// As [`Self::open`].
    #[boxed(?Send)]
    pub async fn open_with(
        engine: &Arc<Engine>,
        name: &str,
        limits: FreeingLimits,
        now: Now,
    ) -> Result<Self, FsError> {
        let mut filesystem = Self::open_unchanged(engine, engine.volume(name)?, now)?;
        *filesystem.freeing_limits.lock() = limits;
        filesystem.prepare().await?;
        Ok(filesystem)
    }

    /// Opens the filesystem of a dataset or of a snapshot. Changes nothing in a read-only dataset.
    ///
    /// # Errors
    /// As [`Self::open`].
    #[boxed(?Send)]
    pub async fn open_volume(
        engine: &Arc<Engine>,
        volume: Arc<Volume>,
        now: Now,
    ) -> Result<Self, FsError> {
        let mut filesystem = Self::open_unchanged(engine, volume, now)?;
        if !filesystem.volume.is_read_only() {
            filesystem.prepare().await?;
        }
        Ok(filesystem)
    }

    /// Opens a filesystem without a change, for a check or a rescue. Clients must not change the
    /// opened filesystem.
    ///
    /// # Errors
    /// `Invalid` if the dataset is not a filesystem.
    pub fn open_unchanged(
        engine: &Arc<Engine>,
        volume: Arc<Volume>,
        now: Now,
    ) -> Result<Self, FsError> {
        let layer = volume.object_layer();
        let layout = layer.and_then(|layer| Layout::decode(&layer));
        let unknown = "the dataset is not a filesystem, or a newer weir created it";
        let layout = layout.ok_or(FsError::Invalid(unknown))?;
        let hash = NameHash::of(&layout, volume.bug());
        Ok(Self {
            engine: Arc::clone(engine),
            volume,
            layout,
            hash,
            inodes: InodeCache::new(engine.layer_memory()),
            numbers: Mutex::default(),
            usage: Mutex::new(()),
            renames: Mutex::new(()),
            freeing_limits: SyncMutex::default(),
            freeing_wanted: Notify::new(),
            now,
            exclusive: None,
        })
    }

    /// Makes a filesystem ready for changes: creates its fixed inodes if it is new, and frees the
    /// inodes without a name.
    #[boxed(?Send)]
    async fn prepare(&mut self) -> Result<(), FsError> {
        self.exclusive = Some(self.volume.open_objects()?);
        // Numbers that became unused before must not be used again in the same txg (`numbers`).
        self.engine.commit().await?;
        if self.is_new().await? {
            self.format().await?;
        }
        for (fixed, file_type) in FIXED {
            let inode = self.reads().inode(fixed).await?;
            let inode = inode.ok_or_else(|| FsError::damaged(fixed, "the inode is missing"))?.1;
            if !is_fixed(&inode, file_type) {
                return Err(FsError::damaged(fixed, "the inode has the wrong type or state"));
            }
        }
        self.free_orphans().await
    }

    /// True if the dataset has no object yet. A filesystem without its root directory is damaged.
    async fn is_new(&self) -> Result<bool, FsError> {
        if self.reads().inode(ROOT).await?.is_some() {
            return Ok(false);
        }
        let FoundRanges { used, unreadable, next } = self.volume.objects_in_use(0).await?;
        Ok(used.is_empty() && unreadable.is_empty() && next.is_none())
    }

    /// Writes the root directory and the other inodes with a fixed number.
    async fn format(&self) -> Result<(), FsError> {
        let (size, stamp) = (RecordSize::BLOCK, self.stamp());
        let mut changes = Vec::new();
        for (object, file_type) in FIXED {
            let nlink = if file_type == FileType::Directory { 2 } else { 1 };
            let inode = Inode { permissions: 0o755, nlink, ..new_inode(file_type, ROOT, stamp) };
            changes.push(ObjectChange::SetSlot { object, size, body: inode.encode() });
        }
        let mut bits = [0; BLOCK_BYTES];
        bits.iter_mut().take((FIRST.0 / 8) as usize).for_each(|byte| *byte = 0xFF);
        let blocks = vec![Block::copy_of(&bits)];
        changes.push(ObjectChange::Write { object: BITMAP, size, record: 0, blocks });
        // The root directory belongs to user 0 and group 0.
        let mut usage = UsageBlock::empty();
        for kind in [OwnerKind::User, OwnerKind::Group] {
            let (_, entry) = OwnerId { kind, id: 0 }.block();
            usage.0.get_mut(entry).expect("a place in the block").inodes = 1;
        }
        let blocks = vec![Block::copy_of(&usage.encode())];
        changes.push(ObjectChange::Write { object: USAGE, size, record: 0, blocks });
        Ok(self.volume.change_objects(changes).await?)
    }
}
