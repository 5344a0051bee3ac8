//! Parameters of a run with filesystems.
//!
//! Invariant: a scenario always runs the same steps.

use weir_pool::PlantedBug;

use crate::fault::{Budget, Fault};
use crate::rng::Rng;
use crate::world::SimWorld;

/// Frequency of the faults of a leg.
const NOW_AND_THEN: Budget = Budget { per_million: 30_000, left: 12 };
/// Maximum number of polls after which a leg dies.
const POLLS_MAX: u64 = 200;

/// Fault of the first leg of the mirror. The other leg has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegFault {
    /// A fault of some operations.
    Of(Fault),
    /// After some time, all operations fail.
    Dies,
}

impl LegFault {
    /// All faults.
    pub const ALL: [Self; 9] = [
        Self::Of(Fault::BitRot),
        Self::Of(Fault::LatentRead),
        Self::Of(Fault::WriteError),
        Self::Of(Fault::FlushError),
        Self::Of(Fault::LostWrite),
        Self::Of(Fault::MisdirectedWrite),
        Self::Of(Fault::LyingFlush),
        Self::Of(Fault::Misread),
        Self::Dies,
    ];
}

/// A run of clients on a filesystem, with power cuts at random steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesScenario {
    /// Seed of all choices.
    pub seed: u64,
    /// Fault of the engine.
    pub bug: PlantedBug,
    /// Whether an operator takes and destroys snapshots while the clients run.
    pub has_operator: bool,
    /// Fault of one disk; `None`: the disks have no fault.
    pub fault: Option<LegFault>,
    /// Whether the clients write 1 MiB at a time, so that a sync needs several log batches.
    pub is_large: bool,
    /// Whether the filesystem is case-insensitive, and the clients use several spellings of names.
    pub folds: bool,
    /// Probability, as one divided by this number, that the power is cut before a step.
    pub cuts_one_in: u64,
}

impl FilesScenario {
    /// Clients alone, with small writes.
    pub const fn new(seed: u64, bug: PlantedBug) -> Self {
        let (has_operator, fault, is_large, cuts_one_in) = (false, None, false, 4);
        Self { seed, bug, has_operator, fault, is_large, folds: false, cuts_one_in }
    }

    /// The scenario of a seed, without a fault of the engine. Two of three scenarios have an
    /// operator, one of two has a fault of a leg, one of eight has large writes, and one of five
    /// has a case-insensitive filesystem.
    pub fn of_seed(seed: u64) -> Self {
        let (has_operator, is_large) = (!seed.is_multiple_of(3), seed.is_multiple_of(8));
        let mut rng = Rng::new(seed).stream("fault of a leg", 0);
        let fault = rng.coin().then(|| LegFault::ALL[rng.index(LegFault::ALL.len())]);
        // The checks of snapshots and of large files take longer.
        let cuts_one_in = if has_operator || is_large { 8 } else { 4 };
        let plain = Self::new(seed, PlantedBug::None);
        let folds = seed.is_multiple_of(5);
        Self { has_operator, fault, is_large, folds, cuts_one_in, ..plain }
    }

    /// Enables the fault of the leg.
    pub(super) fn start_fault(&self, world: &SimWorld) {
        let (disk, executor) = (world.disk(0), world.executor().clone());
        match self.fault {
            None => {}
            Some(LegFault::Of(fault)) => disk.set_fault(fault, NOW_AND_THEN),
            Some(LegFault::Dies) => {
                let after = Rng::new(self.seed).stream("death of a leg", 0).below(POLLS_MAX);
                let _detached = world.executor().spawn("death of a leg", async move {
                    for _ in 0..after {
                        executor.yield_now().await;
                    }
                    disk.set_dead(true);
                });
            }
        }
    }

    /// Enables the faults of reads for a recovery. The other faults end with the power cut.
    pub(super) fn start_read_fault(&self, world: &SimWorld) {
        if let Some(LegFault::Of(fault @ (Fault::BitRot | Fault::LatentRead | Fault::Misread))) =
            self.fault
        {
            world.disk(0).set_fault(fault, NOW_AND_THEN);
        }
    }
}
