//! The cleaner: moves what lives of mostly dead segments together, so that their places come back.
//!
//! Not here: the segment table and its remap tables (segments, moves), storing them (commit).
//!
//! Invariants:
//! - it runs inside a write-out, after the trees of the txg can be read: nothing it moves can die
//!   under it;
//! - a block is alive if the one place that can lead to it does (the summary says which): no list
//!   of freed blocks is kept;
//! - the bytes found alive must add up to the segment's counter, and each block must match its
//!   checksum; a segment for which that fails is left as it is;
//! - readers are sent to the new place only when it can be read; the old place is held as long as
//!   that of a dead segment.

use futures_util::StreamExt as _;
use hashbrown::HashMap;
use weir_base::limits::NODE_READS_IN_FLIGHT;
use weir_base::{DatasetId, VsegId};
use weir_format::{
    BlockPtr, FormatError, SEGMENT_BLOCKS_MAX, SegmentEntry, Summary, SummaryEntry, SummaryPlace,
    TreeRoot,
};

use crate::error::PoolError;
use crate::moves::{Moved, Order};
use crate::pool::Pool;
use crate::read::{Wanted, split_runs};
use crate::reserve::Reserve;
use crate::tree::Tree;
use crate::write_out::WriteOut;

/// Where each dataset's tree is in the txg being written.
pub type Roots = HashMap<DatasetId, TreeRoot>;

/// Segments that one commit may gain beside twice what it wrote: catches up without holding
/// anybody up for long.
const CATCH_UP_SEGMENTS: u64 = 4;

/// How much to clean, from where.
struct Plan {
    gain_bytes: u64,
    live_max: u64,
    order: Order,
}

/// Why a segment was not cleaned.
enum Stop {
    /// Something in it, or an owner of it: the segment stays as it is.
    Unreadable(PoolError),
    /// The copies: the txg fails.
    Unwritable(PoolError),
}

impl From<PoolError> for Stop {
    fn from(error: PoolError) -> Self {
        Self::Unreadable(error)
    }
}

impl Pool {
    /// Watermarks of this pool.
    pub fn reserve(&self) -> Reserve {
        Reserve::of(self.segments.total)
    }

    /// Whether cleaning can make room beside what commits bring back anyway.
    pub fn can_clean(&self) -> bool {
        self.has_room_to_move() && !self.victims(Order::Greedy, u64::MAX).is_empty()
    }

    fn has_room_to_move(&self) -> bool {
        let (free, _) = self.segments.free_now_and_later();
        free as u64 > self.cleaner_floor()
    }

    /// Whether an idle pool should clean.
    pub fn wants_idle_cleaning(&self) -> bool {
        let some = |plan: Plan| !self.victims(plan.order, plan.live_max).is_empty();
        self.has_room_to_move() && self.plan(true, 0).is_some_and(some)
    }

    fn victims(&self, order: Order, live_max: u64) -> Vec<(VsegId, SegmentEntry)> {
        let txg = self.committed_txg().next();
        self.segments.victims(txg, order, live_max)
    }

    /// Free segments below which nothing is moved: a victim may open one segment per vdev.
    fn cleaner_floor(&self) -> u64 {
        self.reserve().cleaner + self.vdevs.len() as u64
    }

    fn plan(&self, idle: bool, written_bytes: u64) -> Option<Plan> {
        let segment = self.segments.segment_bytes;
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

    /// Cleans as much as the space left asks for. `roots`: every dataset as of this txg, readable.
    ///
    /// # Errors
    /// A write failed. A segment that cannot be read or understood is left alone and is no error.
    pub async fn clean(
        &self,
        out: &mut WriteOut<'_>,
        roots: &Roots,
        idle: bool,
    ) -> Result<(), PoolError> {
        let Some(plan) = self.plan(idle, out.written_bytes) else { return Ok(()) };
        let (mut gained, mut done) = (0, Vec::new());
        for (vseg, entry) in self.victims(plan.order, plan.live_max) {
            if gained >= plan.gain_bytes || !self.has_room_to_move() {
                break;
            }
            match self.move_live(out, roots, vseg, &entry).await {
                Ok(moved) => {
                    gained += self.segments.bytes_on(entry.vdev) - u64::from(entry.live_bytes);
                    done.push((vseg, moved));
                }
                Err(Stop::Unreadable(error)) => {
                    self.segments.set_unclean(vseg);
                    tracing::error!(vseg = vseg.0, %error, "segment cannot be cleaned");
                }
                Err(Stop::Unwritable(error)) => return Err(error),
            }
        }
        if done.is_empty() {
            return Ok(());
        }
        out.finish_clean().await?;
        for (vseg, moved) in &done {
            self.segments.install(*vseg, moved, out.txg);
        }
        tracing::debug!(segments = done.len(), gained, "segments cleaned");
        Ok(())
    }

    /// Appends what lives of a segment to the clean stream.
    async fn move_live(
        &self,
        out: &mut WriteOut<'_>,
        roots: &Roots,
        vseg: VsegId,
        entry: &SegmentEntry,
    ) -> Result<Vec<Moved>, Stop> {
        let entries = self.read_summaries(vseg, entry.summary).await?;
        let live = self.find_live(roots, vseg, entries).await?;
        let bytes: u64 = live.iter().map(|(_, ptr)| ptr.stored_bytes() as u64).sum();
        if bytes != u64::from(entry.live_bytes) || live.len() > SEGMENT_BLOCKS_MAX as usize {
            let field = "live_bytes";
            let source = FormatError::Field { what: SEGMENT, field, value: bytes };
            return Err(Stop::Unreadable(self.bad_segment(source)));
        }
        let mut wanted = Vec::with_capacity(live.len());
        for (index, (_, ptr)) in live.iter().enumerate() {
            let place = self.segments.locate(ptr).expect("it was found alive in this segment");
            wanted.push(Wanted { index, ptr: *ptr, place });
        }
        let mut moved = Vec::with_capacity(live.len());
        for run in split_runs(&mut wanted) {
            let mut blocks = Vec::with_capacity(run.len());
            self.read_run(run, |wanted, stored| {
                blocks.push((wanted.index, stored.map(<[u8]>::to_vec)));
            })
            .await;
            for (index, stored) in blocks {
                let (entry, ptr) = &live[index];
                let moving = out.append_moved(ptr, entry.owner, &stored?).await;
                let (host, new) = moving.map_err(Stop::Unwritable)?;
                moved.push(Moved { ptr: *ptr, host, new });
            }
        }
        Ok(moved)
    }

    fn bad_segment(&self, source: FormatError) -> PoolError {
        PoolError::Structure { pool: self.label.name.clone(), what: SEGMENT, source }
    }

    /// Every block ever appended to a segment.
    async fn read_summaries(
        &self,
        vseg: VsegId,
        last: SummaryPlace,
    ) -> Result<Vec<SummaryEntry>, PoolError> {
        let pinned = self.segments.pin(vseg).expect("a sealed segment has a place");
        let vdev = &self.vdevs[usize::from(pinned.vdev)];
        let (mut entries, mut place) = (Vec::new(), last);
        while !place.is_none() {
            let (at, len) = (pinned.at + u64::from(place.at), place.bytes as usize);
            let verify = |bytes: &[u8]| Summary::decode(bytes, vseg).is_ok();
            let (buf, start) = vdev.read_verified(vdev.next_leg(), at, len, verify).await?;
            let summary = Summary::decode(&buf[start..start + len], vseg)
                .map_err(|source| self.bad_segment(source))?;
            let before = summary.previous.at.checked_add(summary.previous.bytes);
            if before.is_none_or(|end| end > place.at) {
                let (field, value) = ("previous_at", u64::from(summary.previous.at));
                return Err(self.bad_segment(FormatError::Field { what: SEGMENT, field, value }));
            }
            entries.extend(summary.entries);
            place = summary.previous;
        }
        Ok(entries)
    }

    /// Those of `entries` that their owners still lead to, here.
    async fn find_live(
        &self,
        roots: &Roots,
        vseg: VsegId,
        mut entries: Vec<SummaryEntry>,
    ) -> Result<Vec<(SummaryEntry, BlockPtr)>, PoolError> {
        // Neighbours share the nodes above them.
        entries.sort_unstable_by_key(|entry| entry.owner);
        let lookups = entries.iter().filter_map(|entry| {
            let tree = Tree::new(self, *roots.get(&entry.owner.dataset)?);
            let owner = entry.owner;
            Some(async move { (*entry, tree.pointer_at(owner.level, owner.index).await) })
        });
        let mut lookups = futures_util::stream::iter(lookups).buffered(NODE_READS_IN_FLIGHT);
        let mut live = Vec::new();
        while let Some(found) = lookups.next().await {
            let (entry, ptr) = (found.0, found.1?);
            let same = !ptr.is_hole()
                && (ptr.vseg, ptr.offset_units) == (entry.vseg, entry.offset_units)
                && (ptr.stored_units, ptr.checksum as u64) == (entry.stored_units, entry.checksum);
            if same && self.segments.stands_at(&ptr, vseg, entry.at_units) {
                live.push((entry, ptr));
            }
        }
        Ok(live)
    }
}

const SEGMENT: &str = "segment to be cleaned";
