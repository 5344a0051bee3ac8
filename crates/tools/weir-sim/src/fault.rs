//! What can go wrong with a simulated disk beside losing power, and how often.
//!
//! Not here: how a fault acts ([`crate::SimDisk`]).
//!
//! Invariants: every fault is off until switched on; a budget is never exceeded, so that a test can
//! promise "no more faults than redundancy covers" and treat every failure as a bug.

/// A kind of fault that strikes single operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A read finds that one bit in its range has flipped on the media.
    BitRot,
    /// A read finds a sector that cannot be read; it stays so until rewritten.
    LatentRead,
    /// A write fails; any of its sectors may have been written.
    WriteError,
    /// A flush fails. Each write it covered is on the media or gone for good, and the next flush
    /// succeeds without it.
    FlushError,
    /// A write is acknowledged and never done.
    LostWrite,
    /// A write is acknowledged and done elsewhere on the disk.
    MisdirectedWrite,
    /// A flush or a durable write is acknowledged and nothing is made durable.
    LyingFlush,
    /// A read returns one wrong bit, as with a bad cable; the media has the right one.
    Misread,
}

impl Fault {
    /// Every kind that scenarios draw from. Not [`Self::Misread`]: one more kind would change what
    /// every seed does.
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

/// How often a fault strikes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Chance of each operation it could strike.
    pub per_million: u32,
    /// Strikes left.
    pub left: u32,
}

impl Budget {
    /// Strikes the next `times` operations it can.
    pub const fn next(times: u32) -> Self {
        Self { per_million: 1_000_000, left: times }
    }

    /// Strikes every operation from now on.
    pub const ALWAYS: Self = Self::next(u32::MAX);
}

/// The budgets of one disk.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    budgets: [Budget; Fault::Misread as usize + 1],
}

impl Faults {
    pub(crate) fn set(&mut self, fault: Fault, budget: Budget) {
        self.budgets[fault as usize] = budget;
    }

    /// Whether the fault strikes now; spends from its budget if so.
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
