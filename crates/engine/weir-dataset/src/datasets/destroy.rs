//! Destroys volumes.
//!
//! `commit::freeing` frees the blocks of destroyed volumes.
//!
//! Invariants:
//! - a volume with clones or held snapshots is not destroyed;
//! - a commit frees only what its own or an earlier txg stored as destroyed. So volumes and
//!   snapshots become destroyed while no commit runs.

use async_recursion::async_recursion as boxed;
use weir_format::DatasetState;

use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::outcome::Outcome;
use crate::state::volume::Volume;

impl Engine {
    /// Destroys a volume. The next commits reclaim its space.
    ///
    /// # Durability
    /// The volume is gone after any crash once this returns.
    ///
    /// # Errors
    /// `InUse` if the volume has snapshots (unless `recursive`), or if these snapshots have clones
    /// or holds. The volume's bookmarks are destroyed with it.
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

    /// As [`Self::destroy_volume`]; the caller holds the admin lock.
    #[boxed(?Send)]
    pub(crate) async fn destroy_found(
        &self,
        volume: &Volume,
        recursive: bool,
    ) -> Result<Outcome, DatasetError> {
        self.refuse_clones(volume, |_| true)?;
        {
            let _still = self.between_commits().await?;
            let mut state = volume.state.lock();
            let count = state.snapshots.iter().filter(|s| s.is_active()).count();
            if count > 0 && !recursive {
                let name = self.full_name(&state.record.name);
                let noun = if state.record.objects.is_some() { "filesystem" } else { "volume" };
                let why = format!(
                    "has {count} snapshots; destroy them first, or use -r to destroy them with \
                     the {noun}"
                );
                let next = Some(format!("weir {noun} destroy -r {name}"));
                return Err(DatasetError::InUse { name, why, next });
            }
            self.refuse_held(&state, |_| true)?;
            state.record.state = DatasetState::Destroying;
            state.record_dirty = true;
            for snapshot in &mut state.snapshots {
                snapshot.destroy();
            }
            state.remove_bookmarks(|_| true);
            // The changes in the volume's log queue are never logged; a waiting flush waits for the
            // commit.
            state.object.log.skip_until(self.core.open_txg());
            volume.measure_limits(&mut state);
        }
        self.commit_change().await
    }
}
