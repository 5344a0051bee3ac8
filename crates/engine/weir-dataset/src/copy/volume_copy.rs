//! Volume copy: a new volume that references the same blocks and does not depend on its source.
//!
//! Clones, which stay children of their snapshot, are in `snapshots`.
//!
//! Invariants:
//! - a copy has the content of its source at one point in time;
//! - no client sees an incomplete copy, or the snapshot from which it is made;
//! - the stored state of the copy and of this snapshot is "destroying" until the copy is complete,
//!   and only state in RAM keeps their blocks from being freed. So after a crash the next import
//!   frees their blocks.

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

/// Keeps the blocks of a snapshot whose stored state is "destroying". Dropping this value lets
/// commits reclaim the snapshot's space.
struct Kept<'e> {
    engine: &'e Engine,
    snapshot: DatasetId,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        // Search all volumes: a promotion may have moved the snapshot to another volume.
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
    /// Creates a volume with the present content of a volume, or with the content of one of its
    /// snapshots, and with the properties of a clone. Reads and writes no data.
    ///
    /// # Durability
    /// The copy exists after any crash once this returns. A crash before that leaves nothing.
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
        // Count two datasets: the copy, and the snapshot of its source. Concurrent copies may each
        // exceed the maximum by two, because no lock is held between this check and the copy.
        self.refuse_too_many(2)?;
        if let Some(own) = snapshot {
            let source = SnapshotId::new(volume, own);
            return self.copy_shown(&self.open_snapshot(&source)?, name).await;
        }
        let (moment, view) = self.keep_moment(volume).await?;
        let copied = self.copy_shown(&view, name).await;
        drop(moment);
        copied
    }

    /// Takes a hidden snapshot and opens a view of it.
    async fn keep_moment(&self, volume: &str) -> Result<(Kept<'_>, Arc<Volume>), DatasetError> {
        let _admin = self.admin.lock().await;
        let found = self.volume(volume)?;
        self.refuse_receiving(&found.state.lock())?;
        let name = "copying".to_owned();
        let volumes = [(Arc::clone(&found), &name)];
        self.take_snapshots(&volumes, DatasetState::Destroying, None).await?;
        let state = found.state.lock();
        // The admin lock is held, so no other task took this snapshot.
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
            // Lock the volume list: a freeze waits for this lock, so no txg stores a part of the
            // change.
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

    /// Creates an empty hidden volume.
    fn begin_copy(&self, view: &Volume, name: &str) -> Arc<Volume> {
        let (of, size) = {
            let state = view.state.lock();
            (state.record.clone(), state.size())
        };
        let id = self.new_dataset();
        let properties = of_clone(&of.properties);
        let mut record = self.empty_record(id, name, size, properties);
        // After a crash the next import frees the unfinished copy.
        record.state = DatasetState::Destroying;
        let copy = Arc::new(Volume::new(Arc::clone(&self.core), record, true));
        let mut list = self.volume_list.write();
        {
            let mut state = copy.state.lock();
            state.is_coming = true;
            state.object.log.skip_until(self.core.open_txg());
        }
        list.push(Arc::clone(&copy));
        copy
    }
}
