//! Cut plans: which unflushed writes survive a power cut.
//!
//! [`crate::SimDisk`] determines the unflushed writes.
//!
//! Invariants:
//! - the plan alone decides: two cuts of one instant with the same plan give the same images;
//! - units are numbered across all disks of a world: disk by disk, completed writes in completion
//!   order, then writes in flight in issue order;
//! - only random plans tear units, and only on disks that allow torn units.

use crate::rng::Rng;

/// Maximum number of units for which [`CutPlan::standard`] tries every subset: 4096 cuts.
pub const SUBSET_UNITS_MAX: u64 = 12;

/// Maximum number of units that [`CutPlan::standard`] omits one at a time. If there are more units,
/// it omits evenly spaced ones.
const ALL_BUT_MAX: u64 = 16;

/// Kind of unit that a plan keeps or loses as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Unit that the disk writes atomically ([`crate::DiskOptions::atomic_bytes`]).
    Sector,
    /// One write operation.
    Write,
}

/// Amount of data that a cut could lose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unflushed {
    /// Number of units of [`Grain::Sector`].
    pub sectors: u64,
    /// Number of units of [`Grain::Write`].
    pub writes: u64,
}

impl Unflushed {
    fn count(self, grain: Grain) -> u64 {
        match grain {
            Grain::Sector => self.sectors,
            Grain::Write => self.writes,
        }
    }
}

/// Plan of a power cut: selects the unflushed units that survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutPlan {
    /// No unit survives.
    Nothing,
    /// All units survive.
    Everything,
    /// Only the unit with this number survives.
    Only(Grain, u64),
    /// All units survive except the unit with this number.
    AllBut(Grain, u64),
    /// Unit n survives if bit n is set; units from 64 on are lost.
    Subset(Grain, u64),
    /// Random choice from this seed: by sector or by write, with a random survival rate, with torn
    /// units where the disk allows them, and with the writes in flight in any order.
    Random(u64),
}

impl CutPlan {
    /// Plans to try at one instant. With at most [`SUBSET_UNITS_MAX`] sectors: every subset of the
    /// sectors. Otherwise: none, all, only the first, only the last, all but one, every subset of
    /// at most six writes, and `random` random plans.
    pub fn standard(unflushed: Unflushed, random: u32, seed: u64) -> Vec<Self> {
        if unflushed.sectors <= SUBSET_UNITS_MAX {
            let subsets = 0..1 << unflushed.sectors;
            return subsets.map(|mask| Self::Subset(Grain::Sector, mask)).collect();
        }
        let mut plans = vec![Self::Nothing, Self::Everything];
        for grain in [Grain::Sector, Grain::Write] {
            let count = unflushed.count(grain);
            plans.extend([Self::Only(grain, 0), Self::Only(grain, count - 1)]);
            let step = count.div_ceil(ALL_BUT_MAX).max(1) as usize;
            plans.extend((0..count).step_by(step).map(|index| Self::AllBut(grain, index)));
        }
        if unflushed.writes <= SUBSET_UNITS_MAX / 2 {
            let subsets = 1..(1 << unflushed.writes) - 1;
            plans.extend(subsets.map(|mask| Self::Subset(Grain::Write, mask)));
        }
        let mut rng = Rng::new(seed).stream("cut plans", 0);
        plans.extend((0..random).map(|_| Self::Random(rng.next_u64())));
        plans
    }
}

/// Outcome of a power cut for one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Gone,
    Whole,
    /// Only this many bytes at the start of the unit survive.
    Torn(usize),
}

/// Decides the fate of each unit of a world, in the order of the units.
pub(crate) struct Chooser {
    plan: CutPlan,
    rng: Rng,
    random: RandomCut,
    next: Unflushed,
    write_survives: bool,
}

/// Parameters of one random cut, which make random cuts differ from each other.
struct RandomCut {
    survive_per_million: u32,
    torn_per_million: u32,
    by_write: bool,
}

impl Chooser {
    pub(crate) fn new(plan: CutPlan) -> Self {
        let seed = if let CutPlan::Random(seed) = plan { seed } else { 0 };
        let mut rng = Rng::new(seed).stream("cut", 0);
        let odds = [500_000, 500_000, 100_000, 900_000];
        let random = RandomCut {
            survive_per_million: odds[rng.index(odds.len())],
            torn_per_million: [0, 100_000, 500_000][rng.index(3)],
            by_write: rng.below(3) == 0,
        };
        Self { plan, rng, random, next: Unflushed::default(), write_survives: false }
    }

    /// Reorders the writes in flight to the order in which they reach the media.
    pub(crate) fn order<T>(&mut self, in_flight: &mut [T]) {
        if let CutPlan::Random(_) = self.plan {
            self.rng.shuffle(in_flight);
        }
    }

    /// True if a discard in flight took effect.
    pub(crate) fn discard_done(&mut self) -> bool {
        match self.plan {
            CutPlan::Everything => true,
            CutPlan::Random(_) => self.rng.coin(),
            _ => false,
        }
    }

    /// Starts the next write, to which the units of the following calls belong.
    pub(crate) fn begin_write(&mut self) {
        self.write_survives = match self.plan {
            CutPlan::Random(_) => self.rng.chance(self.random.survive_per_million),
            _ => self.by_number(Grain::Write, self.next.writes),
        };
        self.next.writes += 1;
    }

    /// Fate of the next unit of `len` bytes.
    pub(crate) fn unit(&mut self, len: usize, may_tear: bool) -> Fate {
        let index = self.next.sectors;
        self.next.sectors += 1;
        let survives = match self.plan {
            CutPlan::Random(_) if self.random.by_write => self.write_survives,
            CutPlan::Random(_) => {
                if may_tear && self.rng.chance(self.random.torn_per_million) {
                    return Fate::Torn(self.rng.within(1..len as u64) as usize);
                }
                self.rng.chance(self.random.survive_per_million)
            }
            CutPlan::Only(Grain::Write, _)
            | CutPlan::AllBut(Grain::Write, _)
            | CutPlan::Subset(Grain::Write, _) => self.write_survives,
            _ => self.by_number(Grain::Sector, index),
        };
        if survives { Fate::Whole } else { Fate::Gone }
    }

    fn by_number(&self, of: Grain, index: u64) -> bool {
        match self.plan {
            CutPlan::Nothing | CutPlan::Random(_) => false,
            CutPlan::Everything => true,
            CutPlan::Only(grain, only) => grain == of && index == only,
            CutPlan::AllBut(grain, but) => grain == of && index != but,
            CutPlan::Subset(grain, mask) => grain == of && index < 64 && mask >> index & 1 == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fates of the units of several writes; `writes` has the number of units of each.
    fn walk(plan: CutPlan, writes: &[usize]) -> Vec<Vec<bool>> {
        let mut chooser = Chooser::new(plan);
        let mut walk_one = |units: &usize| {
            chooser.begin_write();
            (0..*units).map(|_| chooser.unit(512, false) == Fate::Whole).collect()
        };
        writes.iter().map(&mut walk_one).collect()
    }

    #[test]
    fn numbered_plans_keep_exactly_the_units_they_name() {
        use Grain::{Sector, Write};
        let writes = [2, 1, 2];
        for (plan, expected) in [
            (CutPlan::Nothing, [false, false, false, false, false]),
            (CutPlan::Everything, [true, true, true, true, true]),
            (CutPlan::Only(Sector, 1), [false, true, false, false, false]),
            (CutPlan::Only(Write, 2), [false, false, false, true, true]),
            (CutPlan::AllBut(Sector, 4), [true, true, true, true, false]),
            (CutPlan::AllBut(Write, 0), [false, false, true, true, true]),
            (CutPlan::Subset(Sector, 0b10101), [true, false, true, false, true]),
            (CutPlan::Subset(Write, 0b011), [true, true, true, false, false]),
        ] {
            assert_eq!(walk(plan, &writes).concat(), expected, "{plan:?}");
        }
    }

    #[test]
    fn few_sectors_are_tried_in_every_combination() {
        let unflushed = Unflushed { sectors: 5, writes: 3 };
        let plans = CutPlan::standard(unflushed, 200, 1);
        let mut outcomes: Vec<_> =
            plans.iter().map(|plan| walk(*plan, &[2, 1, 2]).concat()).collect();
        outcomes.sort();
        outcomes.dedup();
        assert_eq!((plans.len(), outcomes.len()), (32, 32));
        assert_eq!(CutPlan::standard(Unflushed::default(), 200, 1).len(), 1);
        let most = Unflushed { sectors: SUBSET_UNITS_MAX, writes: 1 };
        assert_eq!(CutPlan::standard(most, 200, 1).len(), 4096);
    }

    #[test]
    fn many_sectors_get_corners_and_random_draws() {
        let unflushed = Unflushed { sectors: 1000, writes: 3 };
        let plans = CutPlan::standard(unflushed, 200, 1);
        for corner in [
            CutPlan::Nothing,
            CutPlan::Everything,
            CutPlan::Only(Grain::Sector, 999),
            CutPlan::Only(Grain::Write, 2),
            CutPlan::AllBut(Grain::Write, 1),
            CutPlan::Subset(Grain::Write, 0b101),
        ] {
            assert!(plans.contains(&corner), "{corner:?}");
        }
        let random = plans.iter().filter(|plan| matches!(plan, CutPlan::Random(_))).count();
        assert_eq!(random, 200);
        assert_eq!(plans, CutPlan::standard(unflushed, 200, 1));
        assert_ne!(plans, CutPlan::standard(unflushed, 200, 2));
    }

    #[test]
    fn random_cuts_vary_and_repeat_with_their_seed() {
        let mut torn = 0;
        let mut by_write = 0;
        for seed in 0..100 {
            let first = walk(CutPlan::Random(seed), &[8, 8, 8]);
            assert_eq!(first, walk(CutPlan::Random(seed), &[8, 8, 8]));
            by_write += u32::from(first.iter().all(|w| w.iter().all(|s| *s == w[0])));
            let mut chooser = Chooser::new(CutPlan::Random(seed));
            chooser.begin_write();
            torn +=
                (0..8).filter(|_| matches!(chooser.unit(512, true), Fate::Torn(1..512))).count();
        }
        assert!(torn > 50 && (20..80).contains(&by_write), "{torn} {by_write}");
    }
}
