//! Exclusive use of a dataset with many objects.
//!
//! The layer above the engine holds slots in memory. A rollback or a received stream changes slots
//! without it, and two layers would not see the changes of each other.
//!
//! Invariant: a dataset has at most one holder: an open layer, a rollback, or the beginning of a
//! receive. A dataset that receives a stream has none.

use std::sync::Arc;

use crate::error::DatasetError;
use crate::state::volume::Volume;

/// Exclusive use of a dataset with many objects, until it is dropped.
pub struct OpenObjects {
    volume: Arc<Volume>,
}

impl Drop for OpenObjects {
    fn drop(&mut self) {
        self.volume.state.lock().has_open_objects = false;
    }
}

impl Volume {
    /// Begins the exclusive use of a dataset, for a layer that holds slots in memory and changes
    /// them.
    ///
    /// # Errors
    /// `InUse` if the dataset has another holder or receives a stream.
    pub fn open_objects(self: &Arc<Self>) -> Result<OpenObjects, DatasetError> {
        let mut state = self.state.lock();
        if state.has_open_objects {
            let name = self.full_name(&state);
            let next = Some(format!("weir unmount {name}"));
            return Err(DatasetError::InUse { name, why: "is mounted or in use".to_owned(), next });
        }
        self.check_not_receiving(&state)?;
        state.has_open_objects = true;
        Ok(OpenObjects { volume: Arc::clone(self) })
    }
}
