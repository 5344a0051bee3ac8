//! Faults of a simulated disk other than power loss, and their budgets.
//!
//! [`crate::SimDisk`] implements their effects.
//!
//! Invariants: every fault is off by default; a budget is never exceeded, so a test can limit
//! faults to the redundancy and treat every failure as a bug.

/// A fault that affects single operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A read finds one flipped bit in its range of the media.
    BitRot,
    /// A read finds an unreadable sector, which stays unreadable until it is rewritten.
    LatentRead,
    /// A write fails; any of its sectors may have been written.
    WriteError,
    /// A flush fails. Each write that the flush covers is on the media or lost, and the next flush
    /// succeeds without writing the lost ones.
    FlushError,
    /// A write is acknowledged but not executed.
    LostWrite,
    /// A write is acknowledged but written to another offset of the disk.
    MisdirectedWrite,
    /// A flush or a durable write is acknowledged, but nothing becomes durable.
    LyingFlush,
    /// A read returns one wrong bit, as with a bad cable; the media is correct.
    Misread,
}

impl Fault {
    /// All faults that scenarios draw from. [`Self::Misread`] is missing, because an additional
    /// kind would change the scenario of every seed.
    pub const ALL: [Self; 7] = [
        Self::BitRot,
        Self::LatentRead,
        Self::WriteError,
        Self::FlushError,
        Self::LostWrite,
        Self::MisdirectedWrite,
        Self::LyingFlush,
    ];
}

/// Frequency of a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Probability, per million, that the fault affects an operation of its kind.
    pub per_million: u32,
    /// Remaining number of faults.
    pub left: u32,
}

impl Budget {
    /// A budget for the next `times` operations that the fault can affect.
    pub const fn next(times: u32) -> Self {
        Self { per_million: 1_000_000, left: times }
    }

    /// A budget for every operation from now on.
    pub const ALWAYS: Self = Self::next(u32::MAX);
}

/// Budgets of all faults of one disk.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    budgets: [Budget; Fault::Misread as usize + 1],
}

impl Faults {
    pub(crate) fn set(&mut self, fault: Fault, budget: Budget) {
        self.budgets[fault as usize] = budget;
    }

    /// Draws whether the fault affects this operation; if so, charges the budget of the fault.
    pub(crate) fn strikes(&mut self, fault: Fault, rng: &mut crate::rng::Rng) -> bool {
        let budget = &mut self.budgets[fault as usize];
        if budget.left == 0 || !rng.chance(budget.per_million) {
            return false;
        }
        if *budget != Budget::ALWAYS {
            budget.left -= 1;
        }
        true
    }
}
