//! Reports of lost data: every path that finds no good copy of something calls
//! [`Pool::note_lost`], and status, events and `weir check` follow from the list that it fills.
//!
//! Not here: the list (damage), clients' reads (weir-dataset's damage, which ends in the same
//! list).
//!
//! Paths: scrub and resilver (scan), cleaner and evacuation (moving, live), commit (apply), recount
//! (live), tables of segments (tables), import (here).
//!
//! Invariant: a path reports only what failed on every leg. An error of a missing disk is no loss.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::ErrorKind;
use weir_format::{PoolPart, TreeRoot};

use crate::error::PoolError;
use crate::segments::lost_part::LostPart;
use crate::state::damage::DamageList;
use crate::state::live_of::LiveOf;
use crate::state::pool::Pool;
use crate::tree::trace::Tracer;

impl Pool {
    /// Puts data or a part of the pool's own structures without a good copy on the list of damage.
    pub(crate) fn note_lost(&self, of: &LiveOf) {
        match *of {
            LiveOf::Volume { volume, level, index, birth, version } => {
                let records = LostPart { level, index }.blocks();
                self.note_damage(volume, records, birth, version);
            }
            LiveOf::Shared(address) => self.note_shared_damage(address),
            LiveOf::Part(part, number) => {
                self.note_damaged_part(part, number);
                if !matches!(part, PoolPart::Summary | PoolPart::IntentLog) {
                    self.want_new_roots();
                }
                if part == PoolPart::ReferenceTable {
                    // Until a recount rebuilds it, counters of its segment are too high.
                    self.note_lost_node(self.committed_txg().next());
                    self.want_recount();
                }
            }
        }
    }

    /// Puts the records below an unreadable node on the list of damage, after a lookup of `wanted`
    /// in the tree under `root` failed there with `error`.
    #[boxed(?Send)]
    pub(crate) async fn note_unreachable(
        &self,
        error: &PoolError,
        root: TreeRoot,
        wanted: &LiveOf,
    ) {
        let LiveOf::Volume { volume, level, index, version, .. } = *wanted else { return };
        if error.kind() != ErrorKind::Data {
            return;
        }
        let record = LostPart { level, index }.blocks().start;
        // Damage is no error of a trace. An error says nothing about the disks.
        let Ok(traced) = Tracer::new(self).trace(root, record).await else { return };
        if traced.level > 0 && !traced.ptr.is_hole() {
            let (level, index, birth) = (traced.level, traced.index, traced.ptr.birth);
            self.note_lost(&LiveOf::Volume { volume, level, index, birth, version });
        }
    }

    /// Loads the stored list of damage during an import. Drops the parts that the import read and
    /// adds the parts that it could not read.
    ///
    /// `directory`: unreadable places of the dataset directory.
    pub fn load_damage_at_import(&self, mut list: DamageList, directory: &[Range<u64>]) {
        let mut lost: Vec<(PoolPart, u64)> =
            directory.iter().map(|range| (PoolPart::Directory, range.start)).collect();
        {
            let inner = self.segments.inner.lock();
            let segments = inner.lost.iter().map(|range| range.start.0);
            lost.extend(segments.map(|vseg| (PoolPart::SegmentTable, vseg)));
            let remaps = inner.remaps.lost_numbers().into_iter();
            lost.extend(remaps.map(|vseg| (PoolPart::RemapTable, vseg)));
            let references = inner.references.lost_numbers().into_iter();
            lost.extend(references.map(|vseg| (PoolPart::ReferenceTable, vseg)));
        }
        // An import reads all of these.
        let is_read = |part| {
            matches!(part, PoolPart::Directory | PoolPart::SegmentTable | PoolPart::RemapTable)
        };
        list.parts
            .retain(|known| !is_read(known.part) || lost.contains(&(known.part, known.number)));
        self.load_damage(list);
        // Commits leave these parts in place: no rewrite is wanted.
        lost.into_iter().for_each(|(part, number)| self.note_damaged_part(part, number));
    }
}
