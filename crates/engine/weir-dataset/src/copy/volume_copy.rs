//! Copying a volume by reference: a new one that holds the same blocks and depends on nothing.
//!
//! Not here: clones, which stay children of their snapshot (snapshots).
//!
//! Invariants:
//! - a copy holds what its source held at one moment;
//! - nobody sees a copy before it is whole, or the snapshot that it is made of;
//! - to disks both are something destroyed until the copy is whole: what a crash leaves of them the
//!   next opening frees, and memory alone keeps them from that.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::DatasetId;
use weir_format::DatasetState;

use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::outcome::Outcome;
use crate::state::properties::of_clone;
use crate::state::snapshot::SnapshotId;
use crate::state::volume::Volume;

/// A snapshot that is kept though it is destroyed; its space comes back once this is dropped.
struct Kept<'e> {
    engine: &'e Engine,
    snapshot: DatasetId,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        // It may have moved to another volume by a promotion.
        for volume in self.engine.all_volumes() {
            let mut state = volume.state.lock();
            let mut all = state.snapshots.iter_mut();
            if let Some(kept) = all.find(|s| s.record.id == self.snapshot) {
                kept.kept = false;
            }
        }
        self.engine.core.wake_committer.notify_one();
    }
}

impl Engine {
    /// Makes a volume of this name that holds what a volume holds now, or what a snapshot of it
    /// does, with the properties that a clone of it has. No data is read or written.
    ///
    /// # Durability
    /// It exists after any crash once this returns; before, not at all.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `NoSnapshot`, `TooMany`, `Full`.
    #[boxed(?Send)]
    pub async fn copy_volume(
        &self,
        volume: &str,
        snapshot: Option<&str>,
        name: &str,
    ) -> Result<Outcome, DatasetError> {
        self.core.pool.check_alive()?;
        self.refuse_taken(name)?;
        // The copy and the snapshot of its source. Concurrent copies may exceed the maximum by
        // these two each: no lock is held between this check and the copy.
        self.refuse_too_many(2)?;
        if let Some(own) = snapshot {
            let source = SnapshotId { volume: volume.to_owned(), name: own.to_owned() };
            return self.copy_shown(&self.open_snapshot(&source)?, name).await;
        }
        let (moment, view) = self.keep_moment(volume).await?;
        let copied = self.copy_shown(&view, name).await;
        drop(moment);
        copied
    }

    /// Takes a snapshot that nobody sees, and shows it.
    async fn keep_moment(&self, volume: &str) -> Result<(Kept<'_>, Arc<Volume>), DatasetError> {
        let _admin = self.admin.lock().await;
        let found = self.volume(volume)?;
        self.refuse_receiving(&found.state.lock())?;
        let name = "copying".to_owned();
        let volumes = [(Arc::clone(&found), &name)];
        self.take_snapshots(&volumes, DatasetState::Destroying, None).await?;
        let state = found.state.lock();
        // Nobody else took one: the admin lock is held.
        let taken = state.snapshots.last().expect("it was just taken");
        let kept = Kept { engine: self, snapshot: taken.record.id };
        Ok((kept, self.view_of(volume, taken)))
    }

    fn refuse_taken(&self, name: &str) -> Result<(), DatasetError> {
        match self.volume(name) {
            Ok(_) => Err(DatasetError::Exists { name: self.full_name(name) }),
            Err(_) => Ok(()),
        }
    }

    async fn copy_shown(&self, view: &Arc<Volume>, name: &str) -> Result<Outcome, DatasetError> {
        let copy = self.begin_copy(view, name);
        let copied = self.clone_range(view, 0, &copy, 0, view.size_bytes()).await;
        let _admin = self.admin.lock().await;
        let copied = copied.and_then(|()| self.refuse_taken(name));
        {
            // Under the list's lock: no txg stores a part of it.
            let _list = self.volume_list.write();
            let mut state = copy.state.lock();
            state.is_coming = false;
            state.record_dirty = true;
            if copied.is_ok() {
                state.record.state = DatasetState::Active;
                state.apply_properties(&self.core);
            }
        }
        let committed = self.commit_change().await;
        copied.and(committed)
    }

    /// An empty volume that nobody sees.
    fn begin_copy(&self, view: &Volume, name: &str) -> Arc<Volume> {
        let (of, size) = {
            let state = view.state.lock();
            (state.record.clone(), state.size())
        };
        let id = self.new_dataset();
        let properties = of_clone(&of.properties);
        let mut record = self.empty_record(id, name, size, properties);
        // As a crash is to find it.
        record.state = DatasetState::Destroying;
        let copy = Arc::new(Volume::new(Arc::clone(&self.core), record, true));
        let mut list = self.volume_list.write();
        {
            let mut state = copy.state.lock();
            state.is_coming = true;
            state.overflow = Some(self.core.open_txg());
        }
        list.push(Arc::clone(&copy));
        copy
    }
}
