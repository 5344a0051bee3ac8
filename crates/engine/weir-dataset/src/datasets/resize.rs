//! Resizes volumes.
//!
//! `accounting` enforces quotas.
//!
//! Invariant: a volume never becomes shorter than its data.

use async_recursion::async_recursion as boxed;
use weir_base::property::{REFRESERVATION, Refreservation};
use weir_pool::Tree;

use crate::error::DatasetError;
use crate::objects::record::VolumeSize;
use crate::state::engine::Engine;
use crate::state::limits::thick_bytes;
use crate::state::outcome::Outcome;
use crate::state::volume::Volume;

impl Engine {
    /// Grows or shrinks a volume. Shrinking never discards data.
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
            // From here on no client writes beyond the new end. Earlier writes beyond the new end
            // are committed, so the tree alone shows whether data is there.
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
            let properties = volume.state.lock().record.properties.clone();
            let quota_bytes = properties.quota_bytes();
            let refreservation_bytes = properties.refreservation_bytes();
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
                // Keep a thick volume thick: adapt its refreservation to the new size.
                let properties = &mut state.record.properties;
                if properties.refreservation_bytes() == thick_bytes(from) {
                    let reserved = Refreservation::Bytes(thick_bytes(to));
                    properties.set(REFRESERVATION, Some(reserved));
                }
                state.record_dirty = true;
                volume.measure_limits(&mut state)
            };
            let _list = self.volume_list.write();
            let what = "its refreservation at the new size";
            let undo = || {
                resize(size, before);
            };
            self.enlarge_reservation(name, what, || resize(before, size), undo)?;
            // Log no change of the volume until the commit: a replay after a crash before this
            // commit would not know the new size.
            volume.state.lock().object.log.skip_until(self.core.open_txg());
        }
        self.commit_change().await
    }

    /// Returns the end of the last block with data, after a commit.
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
}
