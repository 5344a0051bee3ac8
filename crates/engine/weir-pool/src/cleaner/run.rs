//! The cleaner: copies live blocks out of mostly dead segments to reclaim their space.
//!
//! Not here: moving blocks (`mover`), remap tables (`victims`, `commit`), live blocks (`live`).
//!
//! Invariants:
//! - the cleaner runs inside a write-out, once the trees of the txg are readable: no block is freed
//!   while the cleaner moves it;
//! - no list of freed blocks exists: a block is live if a tree of one of its owners references it;
//! - the live bytes found must equal the segment's counter, and each block must match its checksum;
//!   otherwise the segment is left unchanged;
//! - readers use the new address of a block only when the block is readable there; the old space is
//!   reused after as many commits as the space of a dead segment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::{ErrorKind, VsegId};
use weir_format::{RemapTable, SegmentClass, SegmentEntry};

use crate::cleaner::mover::Victim;
use crate::error::PoolError;
use crate::segments::reserve::Reserve;
use crate::segments::victims::{Moved, Order};
use crate::state::cleaner_statistics::Cleaned;
use crate::state::pool::Pool;
use crate::tree::snapshot_chain::Roots;
use crate::txg::write_out::WriteOut;

/// Segments that one commit may free in addition to twice the bytes that it wrote: enough for the
/// cleaner to catch up, without a long delay of writers.
const CATCH_UP_SEGMENTS: u64 = 4;

/// Live bytes that one commit moves off evacuating vdevs: a fraction of a second of work for their
/// disks.
const EVACUATE_BYTES_PER_TXG: u64 = 64 << 20;

/// Goal of one run of the cleaner.
struct Plan {
    gain_bytes: u64,
    live_max: u64,
    order: Order,
}

impl Pool {
    /// Watermarks of this pool: the numbers of free segments at which the cleaner starts and
    /// writers stop.
    pub fn reserve(&self) -> Reserve {
        Reserve::of(self.segments.areas.total_segments())
    }

    /// True if some segments are victims, and enough segments are free for the blocks that the
    /// cleaner would move out of the victims.
    pub fn can_clean(&self) -> bool {
        self.has_free_above(self.cleaner_floor())
            && !self.victims(Order::Greedy, u64::MAX).is_empty()
    }

    /// True if more than `floor` segments are free.
    pub(crate) fn has_free_above(&self, floor: u64) -> bool {
        let (free, _) = self.segments.free_now_and_later();
        free as u64 > floor
    }

    /// True if the cleaner should run now although no client writes to the pool.
    pub fn wants_idle_cleaning(&self) -> bool {
        let some = |plan: Plan| !self.victims(plan.order, plan.live_max).is_empty();
        self.has_free_above(self.cleaner_floor()) && self.plan(true, 0).is_some_and(some)
    }

    fn victims(&self, order: Order, live_max: u64) -> Vec<(VsegId, SegmentEntry)> {
        let txg = self.committed_txg().next();
        self.segments.victims(txg, order, live_max)
    }

    /// Number of free segments below which the cleaner moves no blocks: the blocks of one victim
    /// may need a new segment on each vdev.
    fn cleaner_floor(&self) -> u64 {
        self.reserve().cleaner + self.segments.areas.open().len() as u64
    }

    /// Number of free segments below which no block moves off an evacuating vdev. Evacuation frees
    /// no segment that a commit can use. So enough free segments must remain for later commits to
    /// open the other write heads, and for the cleaner to run after these commits.
    fn evacuation_floor(&self) -> u64 {
        let heads = [SegmentClass::Data, SegmentClass::Meta, SegmentClass::Root];
        let closed = heads.iter().filter(|class| self.segments.open_of(**class).is_empty());
        self.cleaner_floor() + 1 + closed.count() as u64
    }

    fn plan(&self, idle: bool, written_bytes: u64) -> Option<Plan> {
        let segment = self.segments.segment_bytes();
        let (free, later) = self.segments.free_now_and_later();
        let have = (free + later) as u64;
        let Reserve { reserve, writers, always, idle: idle_below, .. } = self.reserve();
        let most = 2 * written_bytes + CATCH_UP_SEGMENTS * segment;
        let cheap = Plan { gain_bytes: most, live_max: segment / 2, order: Order::CostBenefit };
        if have < reserve {
            let order = if have < writers { Order::Greedy } else { Order::CostBenefit };
            let gain_bytes = most.min((reserve - have) * segment);
            return Some(Plan { gain_bytes, live_max: u64::MAX, order });
        }
        (have < always || (idle && have < idle_below)).then_some(cheap)
    }

    /// Cleans as many segments as the shortage of free space requires, then moves blocks off
    /// evacuating vdevs. `roots`: the roots of all datasets in this txg; the nodes below them must
    /// be readable.
    ///
    /// # Errors
    /// A write failed. A segment that cannot be read or is inconsistent is left unchanged, without
    /// an error.
    #[boxed(?Send)]
    pub async fn clean(
        &self,
        out: &mut WriteOut<'_>,
        roots: &Roots,
        idle: bool,
    ) -> Result<(), PoolError> {
        if let Some(plan) = self.plan(idle, out.written_bytes) {
            let victims = self.victims(plan.order, plan.live_max);
            let gain = |entry: &SegmentEntry| {
                self.segments.bytes_on(entry.vdev) - u64::from(entry.live_bytes)
            };
            let victims = take_until(victims, plan.gain_bytes, gain);
            self.move_some(out, roots, victims, self.cleaner_floor()).await?;
        }
        let live = |entry: &SegmentEntry| u64::from(entry.live_bytes);
        let evacuees = take_until(self.segments.evacuees(), EVACUATE_BYTES_PER_TXG, live);
        if evacuees.is_empty() {
            return Ok(());
        }
        self.move_some(out, roots, evacuees, self.evacuation_floor()).await
    }

    /// Moves the live blocks of segments while more than `floor` segments are free.
    async fn move_some(
        &self,
        out: &mut WriteOut<'_>,
        roots: &Roots,
        victims: Vec<Victim>,
        floor: u64,
    ) -> Result<(), PoolError> {
        if victims.is_empty() || !self.has_free_above(floor) {
            return Ok(());
        }
        let done = self.move_victims(out, roots, victims, floor).await?;
        if done.is_empty() {
            return Ok(());
        }
        out.finish_clean().await?;
        for ((vseg, _), moved) in &done {
            match self.remaps_of(moved).await {
                Ok(tables) => self.segments.install(*vseg, moved, &tables, out.txg),
                Err(error) if error.kind() == ErrorKind::Data => {
                    tracing::error!(vseg = vseg.0, %error, "segment cannot be cleaned");
                    self.segments.set_unclean(*vseg);
                }
                Err(error) => return Err(error),
            }
        }
        let moved = done.iter().flat_map(|(_, moved)| moved);
        let moved_bytes = moved.map(|moved| moved.ptr.stored_bytes() as u64).sum();
        let cleaned = Cleaned { segments: done.len() as u64, moved_bytes };
        self.cleanings.add(self.clock.monotonic(), cleaned);
        tracing::debug!(segments = done.len(), moved_bytes, "segments cleaned");
        Ok(())
    }

    /// Remap tables that currently translate the pointers of the moved blocks.
    async fn remaps_of(
        &self,
        moved: &[Moved],
    ) -> Result<BTreeMap<VsegId, Arc<RemapTable>>, PoolError> {
        let vsegs: BTreeSet<VsegId> = moved.iter().map(|moved| moved.ptr.vseg).collect();
        let mut tables = BTreeMap::new();
        for vseg in vsegs {
            let table = self.translated(|segments| segments.table(vseg)).await?;
            tables.extend(table.map(|table| (vseg, table)));
        }
        Ok(tables)
    }
}

/// Returns the first of `victims`, until the sum of their costs reaches `budget`; `count` returns
/// the cost of one victim.
fn take_until(
    mut victims: Vec<Victim>,
    budget: u64,
    count: impl Fn(&SegmentEntry) -> u64,
) -> Vec<Victim> {
    let mut counted = 0;
    victims.retain(|(_, entry)| {
        let wanted = counted < budget;
        counted += count(entry);
        wanted
    });
    victims
}
