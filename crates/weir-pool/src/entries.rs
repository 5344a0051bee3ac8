//! The stored tables of a pool, as an import reads them: segment table, remap tables, reference
//! tables.
//!
//! Not here: the bootstrap table that leads to them (import), what RAM keeps of them (segments,
//! tables).
//!
//! Invariants:
//! - a part that cannot be read costs what it describes: the places of its segments are not known
//!   and are never written, blocks behind its remap tables cannot be read, and blocks of its
//!   reference tables are not freed;
//! - tables that contradict each other where nothing was lost are refused.

use weir_base::hash::HashSet;
use weir_base::{ErrorKind, VsegId};
use weir_format::{
    BlockPtr, Bootstrap, FormatError, RemapTable, SEGMENT_ENTRIES_PER_BLOCK, SegmentClass,
    SegmentEntry, SegmentState,
};

use crate::error::PoolError;
use crate::import::structure;
use crate::own_trees::{LostPart, WholeTree};
use crate::pool::Pool;
use crate::segments::{Entries, LostEntries};
use crate::tree::Tree;

/// Everything the stored tables say of the segments of a pool, and what cannot be read of them.
///
/// # Errors
/// Disks are missing, or tables contradict each other; `LossWhileMissing` unless `force` gives up
/// what missing disks may have.
pub(crate) async fn read_entries(
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
    let remaps = Tree::new(pool, bootstrap.remaps).read_whole().await?;
    lost.remaps = lost_remaps(pool, &segments, &remaps, &lost)?;
    lost.remap_parts.clone_from(&remaps.lost);
    let tables = read_remaps(pool, remaps, &mut lost.unread_remaps).await?;
    let references = Tree::new(pool, bootstrap.references).read_whole().await?;
    lost.references = lost_references(pool, &segments, &references, &lost)?;
    lost.reference_parts.clone_from(&references.lost);
    let given_up = lost.remap_parts.len() + lost.reference_parts.len();
    let missing = pool.missing_legs();
    if given_up > 0 && !missing.is_empty() && !force {
        let (pool, missing) = (pool.label.name.clone(), missing.join(", "));
        let what = format!("{given_up} nodes that lead to tables of segments");
        return Err(PoolError::LossWhileMissing { pool, what, missing });
    }
    let references = references.blocks.into_iter().map(|(vseg, ptr)| (VsegId(vseg), ptr)).collect();
    Ok(Entries { segments, tables, references, saved_bytes: bootstrap.saved_bytes, lost })
}

/// The segments that a part of the segment table describes.
fn segments_below(part: &LostPart) -> std::ops::Range<VsegId> {
    let (blocks, each) = (part.blocks(), SEGMENT_ENTRIES_PER_BLOCK as u64);
    VsegId(blocks.start * each)..VsegId(blocks.end * each)
}

fn is_below(parts: &[LostPart], number: u64) -> bool {
    parts.iter().any(|part| part.blocks().contains(&number))
}

/// Cleaned segments whose remap tables cannot be found.
fn lost_remaps(
    pool: &Pool,
    segments: &[(VsegId, SegmentEntry)],
    remaps: &WholeTree,
    lost: &LostEntries,
) -> Result<Vec<VsegId>, PoolError> {
    let moved = |state| matches!(state, SegmentState::Leaving | SegmentState::Remapped);
    let cleaned: HashSet<VsegId> =
        segments.iter().filter(|(_, e)| moved(e.state)).map(|(vseg, _)| *vseg).collect();
    let found: HashSet<VsegId> = remaps.blocks.iter().map(|(vseg, _)| VsegId(*vseg)).collect();
    let is_known = |vseg: &&VsegId| !lost.segments.iter().any(|range| range.contains(vseg));
    let mut missing: Vec<VsegId> = cleaned.difference(&found).copied().collect();
    missing.sort_unstable();
    let unexplained = missing.iter().find(|vseg| !is_below(&remaps.lost, vseg.0));
    let unwanted = || found.difference(&cleaned).find(is_known);
    match unexplained.or_else(unwanted) {
        None => Ok(missing),
        Some(vseg) => {
            let what = "remap tables";
            let source = FormatError::Field { what, field: "vseg", value: vseg.0 };
            Err(structure(&pool.label, what, source))
        }
    }
}

/// Segments of which blocks may be shared, and whose reference tables cannot be found.
fn lost_references(
    pool: &Pool,
    segments: &[(VsegId, SegmentEntry)],
    references: &WholeTree,
    lost: &LostEntries,
) -> Result<Vec<VsegId>, PoolError> {
    let holds_data = |(vseg, entry): &(VsegId, SegmentEntry)| {
        let alive = entry.state != SegmentState::Dead && entry.class == SegmentClass::Data;
        alive.then_some(*vseg)
    };
    let data: HashSet<VsegId> = segments.iter().filter_map(holds_data).collect();
    let is_known = |vseg: VsegId| !lost.segments.iter().any(|range| range.contains(&vseg));
    let mut found = references.blocks.iter().map(|(vseg, _)| VsegId(*vseg));
    if let Some(vseg) = found.find(|vseg| is_known(*vseg) && !data.contains(vseg)) {
        let what = "reference tables";
        let source = FormatError::Field { what, field: "vseg", value: vseg.0 };
        return Err(structure(&pool.label, what, source));
    }
    let mut unknown: Vec<VsegId> =
        data.into_iter().filter(|vseg| is_below(&references.lost, vseg.0)).collect();
    unknown.sort_unstable();
    Ok(unknown)
}

/// Reads every remap table, and keeps those that fit the budget.
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
            // Blocks behind it cannot be read, and all others can.
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

/// Every segment that is found, root segments first, and the parts of the table that are lost.
async fn read_segment_table(
    pool: &Pool,
    bootstrap: &Bootstrap,
) -> Result<(Vec<(VsegId, SegmentEntry)>, Vec<LostPart>), PoolError> {
    let WholeTree { blocks, mut lost, .. } =
        Tree::new(pool, bootstrap.segments).read_whole().await?;
    let mut entries = bootstrap.root_segments.clone();
    for (block, ptr) in blocks {
        let decoded = match pool.read_block(&ptr).await {
            Ok(content) => SegmentEntry::decode_block(&content)
                .map_err(|source| structure(&pool.label, "segment table", source)),
            Err(error) => Err(error),
        };
        match decoded {
            Ok(decoded) => {
                let first = block * SEGMENT_ENTRIES_PER_BLOCK as u64;
                let numbered = decoded.into_iter().zip(first..);
                entries.extend(numbered.filter_map(|(entry, vseg)| Some((VsegId(vseg), entry?))));
            }
            Err(error) if error.kind() == ErrorKind::Data => {
                tracing::error!(block, %error, "part of the segment table is lost");
                lost.push(LostPart { level: 0, index: block });
            }
            Err(error) => return Err(error),
        }
    }
    Ok((entries, lost))
}
