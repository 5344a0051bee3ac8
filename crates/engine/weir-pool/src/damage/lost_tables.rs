//! Restores lost tables of segments by a traversal of all trees: recounts the references to shared
//! blocks, and proves that no pointer refers to segments whose entries are lost.
//!
//! Not here: the calls (weir-dataset's recount), counters of segments (`recount`).
//!
//! Invariants:
//! - a table or segment changes only after all trees of datasets were read without an error; no
//!   commit runs during that read;
//! - a restored table counts each block that a pointer names, even a block with a single reference:
//!   the last owner of a shared block may differ from the owner in its summary;
//! - lost segments are abandoned only once no tree of the last txgs, to which an import may go
//!   back, refers to them.

use std::collections::BTreeMap;

use async_recursion::async_recursion as boxed;
use weir_base::hash::HashSet;
use weir_base::limits::REUSE_AFTER_TXGS;
use weir_base::{ErrorKind, VsegId};
use weir_format::{BlockPtr, ReferenceTable, RemapTable};

use crate::error::PoolError;
use crate::state::pool::Pool;
use crate::tree::snapshot_chain::Roots;

impl Pool {
    /// Recounts the references to blocks of segments whose reference tables are lost; the next
    /// commit stores the result. Returns false if no table is lost, or if some tree cannot be read.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn recount_lost_references(&self, roots: &Roots) -> Result<bool, PoolError> {
        let mut found = BTreeMap::<VsegId, Vec<u32>>::new();
        for vseg in self.segments.with_references() {
            match self.translated(|segments| segments.references_of(vseg)).await {
                Ok(table) if table.as_ref().is_none_or(|table| !table.is_unknown()) => {}
                Err(error) if error.kind() != ErrorKind::Data => return Err(error),
                _ => drop(found.insert(vseg, Vec::new())),
            }
        }
        if found.is_empty() || roots.has_lost() {
            return Ok(false);
        }
        let mut visit = |ptr: BlockPtr| {
            if let Some(offsets) = found.get_mut(&ptr.vseg) {
                offsets.push(ptr.offset_units);
            }
        };
        if self.walk_datasets(roots, &mut visit).await? > 0 {
            return Ok(false);
        }
        let mut inner = self.segments.inner.lock();
        for (vseg, mut offsets) in found {
            offsets.sort_unstable();
            tracing::info!(vseg = vseg.0, references = offsets.len(), "references were recounted");
            if offsets.is_empty() {
                inner.references.remove(vseg);
            } else {
                inner.references.put(vseg, table_of(&offsets));
            }
        }
        Ok(true)
    }

    /// Abandons the segments whose entries are lost once no pointer refers to any such segment, and
    /// frees the physical segments that were reserved for them. Returns true if this call freed
    /// physical segments, or if a later call may free them.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn free_lost_segments(&self, roots: &Roots) -> Result<bool, PoolError> {
        let lost = self.segments.inner.lock().lost.clone();
        if lost.is_empty() || roots.has_lost() || self.references_lost_segments(roots).await? {
            self.segments.inner.lock().unreached_since = None;
            return Ok(false);
        }
        let now = self.committed_txg();
        let mut inner = self.segments.inner.lock();
        let inner = &mut *inner;
        let since = *inner.unreached_since.get_or_insert(now);
        if now.0 <= since.0 + REUSE_AFTER_TXGS {
            return Ok(true);
        }
        tracing::info!(
            pool = self.name(),
            "no pointer refers to lost segments: their space is free"
        );
        for (free, places) in inner.free.iter_mut().zip(&mut inner.withheld) {
            free.append(places);
        }
        let of_lost = |vseg: &VsegId| lost.iter().any(|range| range.contains(vseg));
        for vseg in inner.remaps.vsegs().filter(of_lost).collect::<Vec<_>>() {
            inner.remaps.remove(vseg);
        }
        for vseg in inner.references.vsegs().filter(of_lost).collect::<Vec<_>>() {
            inner.references.remove(vseg);
        }
        inner.lost.clear();
        inner.unreached_since = None;
        // The next commit rewrites the segment table without its unreadable parts.
        self.want_new_roots();
        Ok(true)
    }

    /// True if a pointer refers to a block in a lost segment, directly or through a remap table, or
    /// if that cannot be determined.
    async fn references_lost_segments(&self, roots: &Roots) -> Result<bool, PoolError> {
        let mut named = HashSet::default();
        let mut visit = |ptr: BlockPtr| _ = named.insert(ptr.vseg);
        if self.walk_datasets(roots, &mut visit).await? > 0 {
            return Ok(true);
        }
        if named.iter().any(|vseg| self.segments.is_lost(*vseg)) {
            return Ok(true);
        }
        for vseg in self.segments.moved().into_iter().filter(|vseg| named.contains(vseg)) {
            match self.translated(|segments| segments.table::<RemapTable>(vseg)).await {
                Ok(table) => {
                    let mut runs = table.iter().flat_map(|table| table.runs());
                    if runs.any(|run| self.segments.is_lost(run.host)) {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Data => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// Builds the reference table of a segment with one reference for each of these sorted offsets.
fn table_of(offsets: &[u32]) -> ReferenceTable {
    let mut table = ReferenceTable::default();
    // For a block that is not in the table, `share` sets the count to two at the first offset, so
    // that each count is one too high until the code below lowers the count.
    table.share(offsets);
    for same in offsets.chunk_by(|a, b| a == b) {
        table.lower(same[0], same.len() as u32);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restored_tables_count_each_pointer_once() {
        let table = table_of(&[1, 4, 4, 4, 9]);
        assert_eq!([1, 4, 9].map(|offset| table.count(offset)), [Some(1), Some(3), Some(1)]);
        assert_eq!(table_of(&[7]).count(7), Some(1));
    }
}
