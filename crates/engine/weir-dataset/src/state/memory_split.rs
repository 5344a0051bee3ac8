//! State of the split of a pool's memory.
//!
//! `layer_memory` changes it.
//!
//! Invariant: `layer_bytes` fits the other fields, except while a thread holds their lock.

use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

/// Part of the memory for caches and layers. In-flight I/O and state take the rest of the memory.
pub(crate) const CACHE_PERCENT: u64 = 38;

/// Memory of a pool.
#[derive(Default)]
pub(crate) struct MemorySplit {
    pub(crate) memory: Mutex<Memory>,
    /// Memory of each open layer, in bytes.
    pub(crate) layer_bytes: AtomicU64,
}

/// Fields from which the split follows.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) bytes: u64,
    /// Number of open layers.
    pub(crate) layers: u64,
}
