//! Copying a volume by reference: a new one that holds the same blocks and depends on nothing.
//!
//! Not here: clones, which stay children of their snapshot (snapshots).
//!
//! Invariants:
//! - a copy holds what its source held at one moment;
//! - nobody sees a copy before it is whole; one that a crash or an error leaves is freed as
//!   something destroyed is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_base::DatasetId;
use weir_format::DatasetState;

use crate::engine::{Engine, Outcome};
use crate::error::DatasetError;
use crate::properties::of_clone;
use crate::snapshots::SnapshotId;
use crate::volume::Volume;

impl Engine {
    /// Makes a volume of this name that holds what a volume holds now, or what a snapshot of it
    /// does, with the properties that a clone of it has. No data is read or written.
    ///
    /// A volume that is copied has a snapshot meanwhile, `copying-N`; a crash leaves it behind.
    ///
    /// # Durability
    /// It exists after any crash once this returns; before, not at all.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `NoSnapshot`, `Full`.
    pub async fn copy_volume(
        &self,
        volume: &str,
        snapshot: Option<&str>,
        name: &str,
    ) -> Result<Outcome, DatasetError> {
        self.core.pool.check_alive()?;
        self.refuse_taken(name)?;
        let id = DatasetId(self.next_dataset.fetch_add(1, Ordering::AcqRel));
        let own = snapshot.map_or_else(|| format!("copying-{}", id.0), ToOwned::to_owned);
        let source = SnapshotId { volume: volume.to_owned(), name: own };
        if snapshot.is_none() {
            self.create_snapshots(std::slice::from_ref(&source)).await?;
        }
        let copied = self.copy_snapshot(&source, id, name).await;
        if snapshot.is_none() {
            let names = std::slice::from_ref(&source.name);
            if let Err(error) = self.destroy_snapshots(volume, names).await {
                tracing::warn!(%error, "the snapshot that a copy was made from stays");
            }
        }
        copied
    }

    fn refuse_taken(&self, name: &str) -> Result<(), DatasetError> {
        match self.volume(name) {
            Ok(_) => Err(DatasetError::Exists { name: self.full_name(name) }),
            Err(_) => Ok(()),
        }
    }

    async fn copy_snapshot(
        &self,
        source: &SnapshotId,
        id: DatasetId,
        name: &str,
    ) -> Result<Outcome, DatasetError> {
        let view = self.open_snapshot(source)?;
        let copy = self.begin_copy(&view, id, name);
        let copied = self.clone_range(&view, 0, &copy, 0, view.size_bytes()).await;
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
                state.is_read_only = self.core.is_read_only(&state.record.properties);
            }
        }
        let committed = self.commit_change().await;
        copied.and(committed)
    }

    /// An empty volume that nobody sees.
    fn begin_copy(&self, view: &Volume, id: DatasetId, name: &str) -> Arc<Volume> {
        let of = view.state.lock().record.clone();
        let properties = of_clone(&of.properties);
        let mut record = self.empty_record(id, name, of.size_bytes, properties);
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
