//! The split of a pool's memory between its caches, dirty data, and the layers above the engine,
//! such as the inodes of open filesystems.
//!
//! weir-server splits `--memory` between the pools.
//!
//! Invariant: the caches and all layers together have [`CACHE_PERCENT`] of the pool's memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::state::engine::Engine;
use crate::state::memory_split::{CACHE_PERCENT, Memory};
use crate::state::shared::Core;

/// Part of the memory for dirty data.
const DIRTY_PERCENT: u64 = 42;
/// The open layers together have this fraction of the memory for caches: a quarter.
const LAYERS_SHARE: u64 = 4;

impl Core {
    /// Sets the memory of the pool.
    pub(crate) fn set_memory(&self, bytes: u64) {
        self.split_memory(|memory| memory.bytes = bytes);
        self.set_dirty_max(bytes / 100 * DIRTY_PERCENT);
    }

    fn split_memory(&self, change: impl FnOnce(&mut Memory)) {
        let mut memory = self.memory.memory.lock();
        change(&mut memory);
        let caches = memory.bytes / 100 * CACHE_PERCENT;
        let layers = if memory.layers == 0 { 0 } else { caches / LAYERS_SHARE };
        self.memory.layer_bytes.store(layers / memory.layers.max(1), Ordering::Release);
        self.pool.set_cache_bytes(caches - layers);
    }
}

/// Memory of an open layer. Dropping it returns the memory to the caches of the pool.
pub struct LayerMemory {
    core: Arc<Core>,
}

impl LayerMemory {
    /// Current maximum, in bytes. It changes when another layer opens or closes, and when the
    /// server opens or closes a pool.
    pub fn bytes(&self) -> u64 {
        self.core.memory.layer_bytes.load(Ordering::Acquire)
    }
}

impl Drop for LayerMemory {
    fn drop(&mut self) {
        self.core.split_memory(|memory| memory.layers -= 1);
    }
}

impl Engine {
    /// Changes the memory of this pool's dirty data, caches and layers.
    pub fn set_memory(&self, bytes: u64) {
        self.core.set_memory(bytes);
    }

    /// Takes memory for a layer that opens.
    pub fn layer_memory(&self) -> LayerMemory {
        self.core.split_memory(|memory| memory.layers += 1);
        LayerMemory { core: Arc::clone(&self.core) }
    }
}
