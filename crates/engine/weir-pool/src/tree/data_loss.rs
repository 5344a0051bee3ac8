//! Reports of lost data. Each code path that finds no good copy of a block calls
//! [`Pool::note_lost`], which fills the list of permanent errors. Status, events and `weir check`
//! read that list.
//!
//! The list is in `state::damage`; client reads add to it through weir-dataset's `damage`.
//!
//! Reporting paths: scrub and resilver (`scan::segment_scan`), cleaner and evacuation
//! (`cleaner::mover` and `tree::live`), recount (`tree::live`), tree diffs (`tree::diff`), commit
//! (`txg::apply_nodes`), remap and reference tables (`read::tables`), import (this file).
//!
//! Invariant: a path reports only data that is bad on every leg. An error of a missing disk is no
//! loss.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::ErrorKind;
use weir_format::{BlockPtr, PoolPart, TreeRoot};

use crate::error::PoolError;
use crate::segments::lost_part::LostPart;
use crate::state::damage::DamageList;
use crate::state::live_of::LiveOf;
use crate::state::pool::Pool;
use crate::tree::kind::TreeOf;
use crate::tree::trace::Tracer;

impl Pool {
    /// Adds data or metadata without a good copy to the list of permanent errors.
    pub(crate) fn note_lost(&self, of: &LiveOf) {
        match *of {
            LiveOf::Volume { volume, object, level, index, birth, version } => {
                let records = LostPart { level, index }.blocks();
                self.note_damage((volume, object), records, birth, version);
            }
            LiveOf::Shared(address) => self.note_shared_damage(address),
            LiveOf::Part(part, number) => {
                self.note_damaged_part(part, number);
                if !matches!(part, PoolPart::Summary | PoolPart::IntentLog) {
                    self.want_new_roots();
                }
                if part == PoolPart::ReferenceTable {
                    // Counters of the table's segment are too high until a recount rebuilds the
                    // table.
                    self.note_lost_node(self.committed_txg().next());
                    self.want_recount();
                }
            }
        }
    }

    /// Calls [`Self::note_lost`] for the record or node at this level and index of a tree. Does
    /// nothing if `of` is `None`.
    pub(crate) fn note_lost_in(
        &self,
        of: Option<TreeOf>,
        ptr: &BlockPtr,
        (level, index): (u8, u64),
    ) {
        if let Some(TreeOf { volume, object, version }) = of {
            let birth = ptr.birth;
            self.note_lost(&LiveOf::Volume { volume, object, level, index, birth, version });
        }
    }

    /// Adds the records below an unreadable node to the list of permanent errors, after a lookup of
    /// `wanted` in the tree under `root` failed at that node with `error`.
    #[boxed(?Send)]
    pub(crate) async fn note_unreachable(
        &self,
        error: &PoolError,
        root: TreeRoot,
        wanted: &LiveOf,
    ) {
        let LiveOf::Volume { volume, object, level, index, version, .. } = *wanted else { return };
        if error.kind() != ErrorKind::Data {
            return;
        }
        let record = LostPart { level, index }.blocks().start;
        // A trace reports damage in its result. An error of the trace itself proves no loss.
        let Ok(traced) = Tracer::new(self).trace(root, record).await else { return };
        if traced.level > 0 && !traced.ptr.is_hole() {
            let (level, index, birth) = (traced.level, traced.index, traced.ptr.birth);
            self.note_lost(&LiveOf::Volume { volume, object, level, index, birth, version });
        }
    }

    /// Loads the stored list of permanent errors during an import. Drops the parts that the import
    /// could read and adds the parts that it could not read.
    ///
    /// `directory`: unreadable index ranges of the dataset directory.
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
        // The import reads all of the dataset directory, the segment table and the remap tables. So
        // the stored list keeps an entry of these structures only if the import could not read that
        // part.
        let is_read = |part| {
            matches!(part, PoolPart::Directory | PoolPart::SegmentTable | PoolPart::RemapTable)
        };
        list.parts
            .retain(|known| !is_read(known.part) || lost.contains(&(known.part, known.number)));
        self.load_damage(list);
        // Unlike `note_lost`, this function does not request a rewrite of the metadata trees: a
        // rewrite cannot restore a part that the import could not read.
        lost.into_iter().for_each(|(part, number)| self.note_damaged_part(part, number));
    }
}
