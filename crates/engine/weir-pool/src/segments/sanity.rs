//! Validates decoded fields against their pool. Decoders check each field alone; this file checks
//! bounds set by other structures: locations inside vdevs and segments, txgs up to the newest one,
//! numbers already assigned.
//!
//! Checksums are verified in `read`, the decoders are in weir-format.
//!
//! Invariant: arithmetic on a field that passed its check cannot overflow.

use std::ops::Range;

use weir_base::hash::{HashMap, HashSet};
use weir_base::{PsegIndex, Txg, VsegId};
use weir_format::layout::PACK_BYTES;
use weir_format::log::ALIGN_BYTES;
use weir_format::{
    BlockPtr, Bootstrap, FormatError, Label, PtrKind, SegmentClass, SegmentEntry, SegmentState,
    SummaryEntry, TreeRoot, Uberblock, VdevRole,
};

use crate::segments::areas::{Areas, SegmentArea};

/// Number of txgs that a pool must still be able to commit. Pointers have 44 bits for a birth txg;
/// a pool that commits a thousand times a second uses this many in 34 years.
const TXGS_LEFT_MIN: u64 = 1 << 40;
const TXG_MAX: Txg = Txg((1 << 44) - TXGS_LEFT_MIN);
/// Largest log epoch and batch number: far beyond any use, far below an overflow.
pub(crate) const LOG_NUMBER_MAX: u64 = 1 << 62;
/// Largest next virtual segment number: pointers have 40 bits for it.
const NEXT_VSEG_MAX: u64 = (1 << 40) - (1 << 32);
/// Largest next dataset number: the highest tree has 128^6 blocks.
const NEXT_DATASET_MAX: u64 = (1 << 42) - (1 << 32);
/// Maximum length of a bootstrap table: many times the length that any pool needs.
const BOOTSTRAP_BYTES_MAX: u32 = 64 << 20;

fn bad(what: &'static str, field: &'static str, value: u64) -> FormatError {
    FormatError::Field { what, field, value }
}

fn ensure(
    holds: bool,
    what: &'static str,
    field: &'static str,
    value: u64,
) -> Result<(), FormatError> {
    if holds { Ok(()) } else { Err(bad(what, field, value)) }
}

/// Checks an uberblock against the label of its pool.
pub(crate) fn uberblock(label: &Label, ub: &Uberblock) -> Result<(), FormatError> {
    let stays = label.vdevs.iter().any(|vdev| vdev.role == VdevRole::Data);
    ensure(stays, "label", "role", VdevRole::Evacuating as u64)?;
    let what = "uberblock";
    ensure(ub.txg <= TXG_MAX && ub.txg > Txg(0), what, "txg", ub.txg.0)?;
    ensure(ub.log_epoch < LOG_NUMBER_MAX, what, "log_epoch", ub.log_epoch)?;
    ensure(ub.log_batch < LOG_NUMBER_MAX, what, "log_batch", ub.log_batch)?;
    let vdev = label.vdevs.get(usize::from(ub.log_vdev));
    let holds_log =
        vdev.is_some_and(|vdev| !matches!(vdev.role, VdevRole::Removed | VdevRole::Spare));
    ensure(holds_log, what, "log_vdev", u64::from(ub.log_vdev))?;
    let in_log =
        ub.log_offset <= label.log_bytes && ub.log_offset.is_multiple_of(ALIGN_BYTES as u64);
    ensure(in_log, what, "log_offset", ub.log_offset)?;
    let len = ub.bootstrap_bytes;
    ensure((1..=BOOTSTRAP_BYTES_MAX).contains(&len), what, "bootstrap_bytes", u64::from(len))?;
    for stale in &ub.stale_legs {
        ensure(stale.after <= ub.txg, what, "stale", stale.after.0)?;
    }
    for import_epoch in &ub.lineage {
        ensure(import_epoch.first <= ub.txg, what, "import epoch", import_epoch.first.0)?;
    }
    Ok(())
}

/// Checks a bootstrap table against the uberblock that references it.
pub(crate) fn bootstrap(ub: &Uberblock, table: &Bootstrap) -> Result<(), FormatError> {
    let what = "bootstrap table";
    ensure(table.txg <= ub.txg, what, "txg", table.txg.0)?;
    let since = table.damaged_since.unwrap_or_default();
    ensure(since <= ub.txg, what, "damaged_since", since.0)?;
    ensure(table.next_vseg.0 <= NEXT_VSEG_MAX, what, "next_vseg", table.next_vseg.0)?;
    let datasets = 1..=NEXT_DATASET_MAX;
    ensure(datasets.contains(&table.next_dataset), what, "next_dataset", table.next_dataset)?;
    let trees = [
        (table.segments, "segments", table.next_vseg.0),
        (table.datasets, "datasets", table.next_dataset),
        (table.remaps, "remaps", table.next_vseg.0),
        (table.references, "references", table.next_vseg.0),
    ];
    for (root, field, numbers) in trees {
        self::root(&root, table.txg).map_err(|_| bad(what, field, root.ptr.birth.0))?;
        ensure(
            root.height <= TreeRoot::height_for(numbers + 1),
            what,
            field,
            u64::from(root.height),
        )?;
    }
    for (vseg, entry) in &table.root_segments {
        ensure(entry.class == SegmentClass::Root, what, "root segments", vseg.0)?;
    }
    Ok(())
}

/// Checks the root of a tree as of a txg: a node, or a data block if the tree has no nodes.
pub(crate) fn root(root: &TreeRoot, txg: Txg) -> Result<(), FormatError> {
    let what = "tree root";
    let kind = if root.height == 0 { PtrKind::Data } else { PtrKind::Node };
    ensure(root.ptr.is_hole() || root.ptr.kind == kind, what, "kind", root.ptr.kind.code())?;
    ensure(root.ptr.birth <= txg, what, "birth", root.ptr.birth.0)
}

/// Checks a pointer in a node of this level: to a lower node, or to a record in a leaf.
pub(crate) fn child(ptr: &BlockPtr, level: u8) -> Result<(), FormatError> {
    let fits = match ptr.kind {
        PtrKind::Hole => true,
        PtrKind::Data => level == 1,
        PtrKind::Node => level > 1,
        // A damage marker in a node of this level names a node of this level or above.
        PtrKind::Damaged { level: named } => named >= level,
    };
    ensure(fits, "block pointer", "kind", ptr.kind.code())
}

/// Nodes that a tree traversal has visited. A node belongs at one index of one tree. Without this
/// check, a few nodes that reference one another in a cycle could cause a traversal of 128^6 steps.
#[derive(Default)]
pub(crate) struct Visited(HashSet<u64>);

impl Visited {
    /// Records a visit to a node of `level`. Leaves are not recorded: each recorded node has at
    /// most 128 of them.
    ///
    /// # Errors
    /// The traversal visited the node before.
    pub(crate) fn note(&mut self, node: &BlockPtr, level: u8) -> Result<(), FormatError> {
        if level < 2 { Ok(()) } else { self.note_any(node) }
    }

    /// Like [`Self::note`], but records leaves and blocks too. A walk that stores a result for each
    /// block uses this function: it fails at a repeated address, so the number of addresses in the
    /// pool bounds its RAM.
    ///
    /// # Errors
    /// The traversal visited the node before.
    pub(crate) fn note_any(&mut self, node: &BlockPtr) -> Result<(), FormatError> {
        ensure(self.0.insert(node.address()), "tree node", "address", node.address())
    }
}

/// Returns the offset at which blocks of a summary overlap, or extend beyond the part of the
/// segment that the summary describes. Entries are in append order.
pub(crate) fn overlap(entries: &[SummaryEntry], stretch: Range<u32>) -> Option<u64> {
    let unit = PACK_BYTES as u64;
    let mut end = u64::from(stretch.start);
    for entry in entries {
        let start = u64::from(entry.at_units) * unit;
        if start < end {
            return Some(start);
        }
        end = start + u64::from(entry.stored_units) * unit;
    }
    (end > u64::from(stretch.end)).then_some(end)
}

/// Checks a segment's entry against the pool's vdevs and its newest txg.
pub(crate) fn segment(
    areas: &Areas,
    vseg: VsegId,
    entry: &SegmentEntry,
    (next, txg): (VsegId, Txg),
) -> Result<(), FormatError> {
    let what = "segment table";
    ensure(vseg < next, what, "vseg", vseg.0)?;
    let in_time = entry.first_txg <= entry.last_txg && entry.last_txg <= txg;
    ensure(in_time, what, "last_txg", entry.last_txg.0)?;
    let aligned = entry.live_bytes.is_multiple_of(PACK_BYTES as u32)
        && (entry.summary.at | entry.summary.bytes).is_multiple_of(PACK_BYTES as u32);
    ensure(aligned, what, "live_bytes", u64::from(entry.live_bytes))?;
    let is_empty = entry.state != SegmentState::Dead || entry.live_bytes == 0;
    ensure(is_empty, what, "live_bytes of a dead segment", u64::from(entry.live_bytes))?;
    // The location of a cleaned segment is not checked: it has no physical segment, and its former
    // vdev may be gone.
    let area = areas.get(entry.vdev).filter(|_| entry.state != SegmentState::Remapped);
    let fill = u64::from(entry.fill_bytes);
    let second = u64::from(entry.second_at);
    let whole = area.is_none_or(|area| {
        let row = area.row_bytes;
        fill.is_multiple_of(row) && second.is_multiple_of(row) && 2 * second <= area.segment_bytes
    });
    ensure(whole, what, "fill_bytes or second", fill)
}

/// Segments whose entries name a physical segment that another entry names as well, or one that the
/// vdev does not have.
pub(crate) fn misplaced(areas: &Areas, entries: &[(VsegId, SegmentEntry)]) -> Vec<VsegId> {
    let mut taken: HashMap<(u16, PsegIndex), VsegId> = HashMap::default();
    let mut wrong = Vec::new();
    for (vseg, entry) in entries.iter().filter(|(_, e)| e.state != SegmentState::Remapped) {
        let end = u64::from(entry.second_at) + u64::from(entry.fill_bytes);
        let fits = |area: &SegmentArea| entry.pseg.0 < area.segments() && end <= area.segment_bytes;
        if !areas.get(entry.vdev).is_some_and(fits) {
            wrong.push(*vseg);
        } else if let Some(other) = taken.insert((entry.vdev, entry.pseg), *vseg) {
            wrong.extend([*vseg, other]);
        }
    }
    wrong
}
