//! Parameters of a run with filesystems.
//!
//! Invariant: a scenario always runs the same steps.

use weir_pool::PlantedBug;

/// A run of clients on a filesystem, with power cuts at random steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesScenario {
    /// Seed of all choices.
    pub seed: u64,
    /// Fault of the engine.
    pub bug: PlantedBug,
    /// Whether an operator takes and destroys snapshots while the clients run.
    pub has_operator: bool,
    /// Whether the clients write 1 MiB at a time, so that a sync needs several log batches.
    pub is_large: bool,
    /// Probability, as one divided by this number, that the power is cut before a step.
    pub cuts_one_in: u64,
}

impl FilesScenario {
    /// Clients alone, with small writes.
    pub const fn new(seed: u64, bug: PlantedBug) -> Self {
        let (has_operator, is_large, cuts_one_in) = (false, false, 3);
        Self { seed, bug, has_operator, is_large, cuts_one_in }
    }

    /// The scenario of a seed, without a fault of the engine. Two of three scenarios have an
    /// operator, and one of eight has large writes.
    pub fn of_seed(seed: u64) -> Self {
        let (has_operator, is_large) = (!seed.is_multiple_of(3), seed.is_multiple_of(8));
        // The checks of snapshots and of large files take longer.
        let cuts_one_in = if has_operator || is_large { 8 } else { 3 };
        let plain = Self::new(seed, PlantedBug::None);
        Self { has_operator, is_large, cuts_one_in, ..plain }
    }
}
