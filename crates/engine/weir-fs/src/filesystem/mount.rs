//! Creates and opens filesystems.
//!
//! Invariant: a filesystem that can change is open only after the inodes without a name are free.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use tokio::sync::Mutex;
use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_block::Block;
use weir_dataset::{Engine, ObjectChange, PropertyChange, Volume};
use weir_format::files::{FileRecord, FileType, Inode, InodeState};

use crate::directory::NameHash;
use crate::error::FsError;
use crate::filesystem::commit::Change;
use crate::filesystem::state::{Filesystem, Now, new_inode};
use crate::inodes::InodeCache;
use crate::layout::{BITMAP, FIRST, Layout, ORPHANS, ROOT};

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

    /// Opens a filesystem. Frees the inodes without a name, which the last server left behind.
    ///
    /// # Errors
    /// `Invalid` if the dataset is not a filesystem; the errors of reads.
    #[boxed(?Send)]
    pub async fn open(engine: &Arc<Engine>, name: &str, now: Now) -> Result<Self, FsError> {
        Self::open_volume(engine, engine.volume(name)?, now).await
    }

    /// Opens the filesystem of a dataset or of a snapshot. Does not change a read-only one.
    ///
    /// # Errors
    /// As [`Self::open`].
    #[boxed(?Send)]
    pub async fn open_volume(
        engine: &Arc<Engine>,
        volume: Arc<Volume>,
        now: Now,
    ) -> Result<Self, FsError> {
        let layer = volume.object_layer();
        let layout = layer.and_then(|layer| Layout::decode(&layer));
        let layout = layout.ok_or(FsError::Invalid("the dataset is not a filesystem"))?;
        let filesystem = Self {
            engine: Arc::clone(engine),
            volume,
            layout,
            hash: NameHash::new(layout.hash_key),
            inodes: InodeCache::new(),
            numbers: Mutex::default(),
            renames: Mutex::new(()),
            now,
        };
        if filesystem.volume.is_read_only() {
            return Ok(filesystem);
        }
        if filesystem.reads().inode(ROOT).await?.is_none() {
            filesystem.format().await?;
        }
        filesystem.free_orphans().await?;
        Ok(filesystem)
    }

    /// Writes the root directory and the other inodes with a fixed number.
    async fn format(&self) -> Result<(), FsError> {
        let (size, stamp) = (RecordSize::BLOCK, self.stamp());
        let fixed = [
            (ROOT, FileType::Directory, 2),
            (BITMAP, FileType::Regular, 1),
            (ORPHANS, FileType::Directory, 2),
        ];
        let mut changes = Vec::new();
        for (object, file_type, nlink) in fixed {
            let inode = Inode { permissions: 0o755, nlink, ..new_inode(file_type, ROOT, stamp) };
            changes.push(ObjectChange::SetSlot { object, size, body: inode.encode() });
        }
        let mut bits = [0; BLOCK_BYTES];
        bits.iter_mut().take((FIRST.0 / 8) as usize).for_each(|byte| *byte = 0xFF);
        let blocks = vec![Block::copy_of(&bits)];
        changes.push(ObjectChange::Write { object: BITMAP, size, record: 0, blocks });
        Ok(self.volume.change_objects(changes).await?)
    }

    /// Frees all inodes without a name.
    async fn free_orphans(&self) -> Result<(), FsError> {
        loop {
            // The directory of orphans is not among the cached inodes.
            let (_, inode) = self.reads().inode(ORPHANS).await?.ok_or(FsError::Stale)?;
            let list = self.entries(ORPHANS).after(&inode, 0).await?;
            if list.is_empty() {
                return Ok(());
            }
            for entry in list {
                self.release(entry.inode).await?;
            }
        }
    }

    /// Frees an inode without a name that no client has open.
    pub(crate) async fn release(&self, number: ObjectId) -> Result<(), FsError> {
        let mut draft = self.draft();
        let mut locked = self.lock_for(&mut draft, number).await?;
        if locked.inode()?.1.state == InodeState::Named {
            return Ok(());
        }
        let mut numbers = self.numbers.lock().await;
        let record = FileRecord::Release;
        draft.apply(number, &record).await?;
        let change = Change::namespace(number, &record, vec![number], vec![number]);
        self.commit(&draft, change, &mut [&mut locked]).await?;
        numbers.set(number, false, self.reusable_from());
        Ok(())
    }
}
