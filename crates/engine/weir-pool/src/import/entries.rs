//! Reads the stored segment tables during an import: segment table, remap tables and reference
//! tables.
//!
//! Not here: the bootstrap table that refers to these tables (`open_pool`), the form of the tables
//! in RAM (`segments`, `tables`).
//!
//! Invariants (I10):
//! - an unreadable part affects only the segments that it describes. If it is a part of the segment
//!   table, the pool does not write where these segments may be; blocks behind an unreadable remap
//!   table cannot be read; blocks of an unreadable reference table are not freed;
//! - if two tables contradict each other, the import assumes the case that loses no data
//!   ([`lost_remaps`], [`lost_references`]).

use std::collections::BTreeSet;

use async_recursion::async_recursion as boxed;
use weir_base::hash::HashSet;
use weir_base::{BLOCK_BYTES, ErrorKind, VsegId};
use weir_format::{
    BlockPtr, Bootstrap, FormatError, RemapTable, SEGMENT_ENTRIES_PER_BLOCK, SegmentClass,
    SegmentEntry, SegmentState,
};

use crate::error::PoolError;
use crate::import::reads::Reads;
use crate::segments::entries::{Entries, LostEntries};
use crate::segments::lost_part::LostPart;
use crate::segments::sanity;
use crate::state::pool::Pool;
use crate::tree::metadata_trees::WholeTree;
use crate::tree::radix_tree::Tree;

const SEGMENT_TABLE: &str = "segment table";

/// Reads the segment, remap and reference tables, and lists the unreadable parts.
///
/// # Errors
/// Disks are missing: `LossWhileMissing`, unless `force` allows the import to abandon the parts
/// that missing disks may have.
#[boxed(?Send)]
pub(crate) async fn read_entries(
    pool: &Pool,
    bootstrap: &Bootstrap,
    force: bool,
) -> Result<Entries, PoolError> {
    let mut reads = Reads::default();
    loop {
        let entries = read_entries_once(pool, bootstrap, force).await;
        let is_whole = entries.as_ref().is_ok_and(|entries| entries.lost.is_empty());
        let may_change = |error: &PoolError| {
            error.kind() == ErrorKind::Data || matches!(error, PoolError::LossWhileMissing { .. })
        };
        let is_final = entries.as_ref().is_err_and(|error| !may_change(error));
        if is_whole || is_final || !reads.again(pool.clock()).await {
            return entries;
        }
    }
}

async fn read_entries_once(
    pool: &Pool,
    bootstrap: &Bootstrap,
    force: bool,
) -> Result<Entries, PoolError> {
    let (segments, lost) = read_segment_table(pool, bootstrap).await?;
    let mut lost = LostEntries {
        segments: lost.iter().map(segments_below).collect(),
        free: bootstrap.free.clone(),
        ..LostEntries::default()
    };
    let mut remaps = Tree::new(pool, bootstrap.remaps).read_whole().await?;
    lost.remaps = lost_remaps(&segments, &mut remaps, &lost);
    lost.remap_parts.clone_from(&remaps.lost);
    let tables = read_remaps(pool, remaps, &mut lost.unread_remaps).await?;
    let references = Tree::new(pool, bootstrap.references).read_whole().await?;
    lost.references = lost_references(&segments, &references, &lost);
    lost.reference_parts.clone_from(&references.lost);
    let given_up = lost.remap_parts.len() + lost.reference_parts.len();
    let missing = pool.missing_legs();
    if given_up > 0 && !missing.is_empty() && !force {
        let (pool, missing) = (pool.label.name.clone(), missing.join(", "));
        let what = format!("{given_up} tree nodes of the remap and reference tables");
        return Err(PoolError::LossWhileMissing { pool, what, missing });
    }
    let references = references.blocks.into_iter().map(|(vseg, ptr)| (VsegId(vseg), ptr)).collect();
    Ok(Entries { segments, tables, references, saved_bytes: bootstrap.saved_bytes, lost })
}

impl LostEntries {
    /// True if all tables were read.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { segments, remaps, remap_parts, unread_remaps, references, .. } = self;
        let numbers = [remaps, unread_remaps, references];
        segments.is_empty()
            && remap_parts.is_empty()
            && self.reference_parts.is_empty()
            && numbers.iter().all(|numbers| numbers.is_empty())
    }
}

/// Segments that a part of the segment table describes. If the part is unreadable, the locations of
/// these segments are unknown.
fn segments_below(part: &LostPart) -> std::ops::Range<VsegId> {
    let (blocks, each) = (part.blocks(), SEGMENT_ENTRIES_PER_BLOCK as u64);
    VsegId(blocks.start * each)..VsegId(blocks.end * each)
}

fn is_below(parts: &[LostPart], number: u64) -> bool {
    parts.iter().any(|part| part.blocks().contains(&number))
}

/// Returns cleaned segments without a remap table; removes remap tables of other segments. A
/// segment that is marked as moved but has no remap table is unreadable; a remap table of a segment
/// that is not marked as moved is ignored.
fn lost_remaps(
    segments: &[(VsegId, SegmentEntry)],
    remaps: &mut WholeTree,
    lost: &LostEntries,
) -> Vec<VsegId> {
    let moved = |state| matches!(state, SegmentState::Evacuating | SegmentState::Remapped);
    let cleaned: HashSet<VsegId> =
        segments.iter().filter(|(_, e)| moved(e.state)).map(|(vseg, _)| *vseg).collect();
    let is_known = |vseg: VsegId| !lost.segments.iter().any(|range| range.contains(&vseg));
    remaps.blocks.retain(|(vseg, _)| {
        let is_wanted = cleaned.contains(&VsegId(*vseg)) || !is_known(VsegId(*vseg));
        if !is_wanted {
            tracing::error!(vseg, "remap table of a segment that was not cleaned is ignored");
        }
        is_wanted
    });
    let found: HashSet<VsegId> = remaps.blocks.iter().map(|(vseg, _)| VsegId(*vseg)).collect();
    let mut missing: Vec<VsegId> = cleaned.difference(&found).copied().collect();
    missing.sort_unstable();
    for vseg in missing.iter().filter(|vseg| !is_below(&remaps.lost, vseg.0)) {
        tracing::error!(vseg = vseg.0, "a cleaned segment has no remap table");
    }
    missing
}

/// Data segments whose reference tables may be lost, and segments of other classes that have a
/// reference table. The pool frees no block of these segments.
fn lost_references(
    segments: &[(VsegId, SegmentEntry)],
    references: &WholeTree,
    lost: &LostEntries,
) -> Vec<VsegId> {
    let holds_data = |(vseg, entry): &(VsegId, SegmentEntry)| {
        let alive = entry.state != SegmentState::Dead && entry.class == SegmentClass::Data;
        alive.then_some(*vseg)
    };
    let data: HashSet<VsegId> = segments.iter().filter_map(holds_data).collect();
    let is_known = |vseg: VsegId| !lost.segments.iter().any(|range| range.contains(&vseg));
    let found = references.blocks.iter().map(|(vseg, _)| VsegId(*vseg));
    let mut unknown: Vec<VsegId> =
        found.filter(|vseg| is_known(*vseg) && !data.contains(vseg)).collect();
    for vseg in &unknown {
        tracing::error!(vseg = vseg.0, "a segment without data has a reference table");
    }
    unknown.extend(data.into_iter().filter(|vseg| is_below(&references.lost, vseg.0)));
    unknown.sort_unstable();
    unknown
}

/// Reads every remap table, and keeps tables in RAM up to the memory budget.
async fn read_remaps(
    pool: &Pool,
    remaps: WholeTree,
    unread: &mut Vec<VsegId>,
) -> Result<Vec<(VsegId, BlockPtr, Option<RemapTable>)>, PoolError> {
    let mut left = pool.segments.inner.lock().remaps.max();
    let mut tables = Vec::with_capacity(remaps.blocks.len());
    for (vseg, ptr) in remaps.blocks {
        let vseg = VsegId(vseg);
        let table = match pool.read_table::<RemapTable>(vseg, &ptr).await {
            Ok(table) => {
                let rest = left.checked_sub(table.memory_bytes());
                left = rest.unwrap_or(left);
                rest.map(|_| table)
            }
            // Only the blocks that this remap table translates become unreadable.
            Err(error) if error.kind() == ErrorKind::Data => {
                tracing::error!(vseg = vseg.0, %error, "remap table of a cleaned segment is lost");
                unread.push(vseg);
                None
            }
            Err(error) => return Err(error),
        };
        tables.push((vseg, ptr, table));
    }
    Ok(tables)
}

/// Returns all readable segments, root segments first, and the unreadable parts of the table.
async fn read_segment_table(
    pool: &Pool,
    bootstrap: &Bootstrap,
) -> Result<(Vec<(VsegId, SegmentEntry)>, Vec<LostPart>), PoolError> {
    let WholeTree { blocks, mut lost, .. } =
        Tree::new(pool, bootstrap.segments).read_whole().await?;
    let mut entries = bootstrap.root_segments.clone();
    for (block, ptr) in blocks {
        let decoded = match pool.read_block(&ptr).await {
            Ok(content) => decode_entries(pool, bootstrap, block, &content)
                .map_err(|source| pool.bad_block(&ptr, SEGMENT_TABLE, source)),
            Err(error) => Err(error),
        };
        match decoded {
            Ok(decoded) => entries.extend(decoded),
            Err(error) if error.kind() == ErrorKind::Data => {
                tracing::error!(block, %error, "part of the segment table is lost");
                lost.push(LostPart { level: 0, index: block });
            }
            Err(error) => return Err(error),
        }
    }
    let roots = bootstrap.root_segments.len();
    let table_block = |vseg: VsegId| vseg.0 / SEGMENT_ENTRIES_PER_BLOCK as u64;
    let is_root = |vseg| bootstrap.root_segments.iter().any(|(root, _)| *root == vseg);
    let misplaced = sanity::misplaced(&pool.segments.areas, &entries).into_iter();
    let wrong: BTreeSet<u64> = misplaced.filter(|vseg| !is_root(*vseg)).map(table_block).collect();
    for block in wrong {
        tracing::error!(block, "segment table entries have invalid physical segments");
        lost.push(LostPart { level: 0, index: block });
        let mut index = 0;
        entries.retain(|(vseg, _)| {
            index += 1;
            index <= roots || table_block(*vseg) != block
        });
    }
    Ok((entries, lost))
}

/// Decodes one block of the segment table and checks each entry against the pool. One invalid entry
/// rejects the whole block, because its other entries may be wrong too.
fn decode_entries(
    pool: &Pool,
    bootstrap: &Bootstrap,
    block: u64,
    content: &[u8; BLOCK_BYTES],
) -> Result<Vec<(VsegId, SegmentEntry)>, FormatError> {
    let first = block * SEGMENT_ENTRIES_PER_BLOCK as u64;
    let numbered = SegmentEntry::decode_block(content)?.into_iter().zip(first..);
    let entries = numbered.filter_map(|(entry, vseg)| Some((VsegId(vseg), entry?)));
    let entries: Vec<(VsegId, SegmentEntry)> = entries.collect();
    let numbers = (bootstrap.next_vseg, pool.committed_txg());
    for (vseg, entry) in &entries {
        if entry.class == SegmentClass::Root {
            return Err(FormatError::Field { what: SEGMENT_TABLE, field: "class", value: vseg.0 });
        }
        sanity::segment(&pool.segments.areas, *vseg, entry, numbers)?;
    }
    Ok(entries)
}
