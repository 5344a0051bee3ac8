//! Options of an open pool.
//!
//! Not here: options of its creation and import (`import`).
//!
//! Invariant: they do not change while the pool is open.

use std::sync::Arc;

use weir_base::Clock;

use crate::planted_bugs::PlantedBug;

/// How to run a pool; nothing of it is stored.
#[derive(Clone)]
pub struct PoolOptions {
    /// Budget of the caches: blocks, tree nodes, remap tables.
    pub cache_bytes: u64,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// A deliberate fault, for the simulator.
    pub bug: PlantedBug,
}
