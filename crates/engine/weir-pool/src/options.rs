//! Options of an open pool.
//!
//! Not here: options of pool creation and import (`import`).
//!
//! Invariant: the options do not change while the pool is open.

use std::sync::Arc;

use weir_base::Clock;

use crate::planted_bugs::PlantedBug;

/// Runtime options of a pool. None of them is stored on disk.
#[derive(Clone)]
pub struct PoolOptions {
    /// Memory budget of the caches: blocks, tree nodes, remap tables.
    pub cache_bytes: u64,
    /// Source of time and timers.
    pub clock: Arc<dyn Clock>,
    /// Deliberate fault, set by the simulator.
    pub bug: PlantedBug,
}
