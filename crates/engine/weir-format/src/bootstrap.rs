//! The bootstrap table: locations of the root segments, and the roots of the four trees in these
//! segments (segment table, dataset directory, remap tables, reference tables).
//!
//! Locations of the other segments are in the segment table, whose root is in this table.
//!
//! Invariants: each commit rewrites the whole table; the table's checksum is in the uberblock; the
//! table lists every root segment, so that finding a root segment never needs the segment table.

use weir_base::{PsegIndex, Txg, VsegId};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::node::TreeRoot;
use crate::segment::SegmentEntry;

const WHAT: &str = "bootstrap table";
const MAGIC: u64 = u64::from_le_bytes(*b"WEIRBOOT");
/// Limit for the number of root segments: more than any pool has (2-3 MiB of root nodes per TiB),
/// so that a forged count cannot cause a large allocation.
const SEGMENTS_MAX: u32 = 65_536;
/// Maximum of [`Bootstrap::saved_bytes`]. The decoder lowers a larger value to this one, so that
/// sums do not overflow.
const SAVED_BYTES_MAX: u64 = 1 << 60;

/// Maximum number of runs of free physical segments in a bootstrap table. A vdev on which no
/// segment was reused yet has one run.
pub const FREE_RUNS_MAX: usize = 64;

/// A run of consecutive physical segments of a vdev that no virtual segment occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeRun {
    /// Number of the vdev.
    pub vdev: u16,
    /// First physical segment.
    pub first: PsegIndex,
    /// Number of physical segments.
    pub count: u32,
}

/// A decoded bootstrap table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// The txg that wrote the table.
    pub txg: Txg,
    /// Next unused virtual segment number.
    pub next_vseg: VsegId,
    /// Next unused dataset number.
    pub next_dataset: u64,
    /// Root of the segment table. The entry of segment n is entry n mod 64 of block n / 64.
    pub segments: TreeRoot,
    /// Root of the dataset directory. The entry of dataset n is block n.
    pub datasets: TreeRoot,
    /// Root of the tree of remap tables. Block n is the table of segment n, if that segment was
    /// cleaned.
    pub remaps: TreeRoot,
    /// Root of the tree of reference tables. Block n is the table of segment n, if blocks of that
    /// segment were shared.
    pub references: TreeRoot,
    /// Additional bytes that the pool's blocks would occupy if no block were shared.
    pub saved_bytes: u64,
    /// Root segments, with their entries.
    pub root_segments: Vec<(VsegId, SegmentEntry)>,
    /// Some of the free physical segments. If a part of the segment table is unreadable, the pool
    /// may write only to these segments.
    pub free: Vec<FreeRun>,
    /// The txg in which a commit or a destroy first encountered an unreadable tree node. From this
    /// txg on, trees may contain damage markers and counters may exceed the contents of the trees.
    /// `None` if no node was unreadable.
    pub damaged_since: Option<Txg>,
}

impl Bootstrap {
    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "magic", "\"WEIRBOOT\""),
        field(8, "txg", "transaction group that wrote it"),
        field(8, "next_vseg", "next virtual segment number"),
        field(8, "next_dataset", "next dataset number"),
        field(33, "segments", "tree root of the segment table"),
        field(33, "datasets", "tree root of the dataset directory"),
        field(33, "remaps", "tree root of the remap tables"),
        field(33, "references", "tree root of the reference tables"),
        field(8, "saved_bytes", "stored bytes of all references but the first of each block"),
        field(4, "count", "root segments"),
        field(0, "root segments", "count x {u64 vseg, segment table entry}"),
        field(4, "runs", "runs of free addresses, at most 64; absent in older pools"),
        field(0, "free", "runs x {u16 vdev, u32 first physical segment, u32 count}"),
        field(
            8,
            "damaged_since",
            "first txg with an unreadable tree node; since then damage markers may exist and \
             counters may be too high; absent or 0: none",
        ),
    ];

    /// Encodes the table.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(MAGIC);
        w.u64(self.txg.0);
        w.u64(self.next_vseg.0);
        w.u64(self.next_dataset);
        self.segments.write(&mut w);
        self.datasets.write(&mut w);
        self.remaps.write(&mut w);
        self.references.write(&mut w);
        w.u64(self.saved_bytes);
        w.u32(self.root_segments.len() as u32);
        for (vseg, entry) in &self.root_segments {
            w.u64(vseg.0);
            entry.write(&mut w);
        }
        w.u32(self.free.len() as u32);
        for run in &self.free {
            w.u16(run.vdev);
            w.u32(run.first.0);
            w.u32(run.count);
        }
        // A table without `damaged_since` ends before this field, as in pools that predate damage
        // markers.
        if let Some(since) = self.damaged_since {
            w.u64(since.0);
        }
        w.0
    }

    /// Decodes the table.
    ///
    /// # Errors
    /// A field has an invalid value.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, bytes);
        if r.u64()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let (txg, next_vseg, next_dataset) = (Txg(r.u64()?), VsegId(r.u64()?), r.u64()?);
        let (segments, datasets) = (TreeRoot::read(&mut r)?, TreeRoot::read(&mut r)?);
        let (remaps, references) = (TreeRoot::read(&mut r)?, TreeRoot::read(&mut r)?);
        // A wrong value of `saved_bytes` affects only a displayed number.
        let saved_bytes = r.u64()?.min(SAVED_BYTES_MAX);
        let count = r.u32()?;
        if count > SEGMENTS_MAX {
            return Err(r.bad("count", count));
        }
        let mut root_segments = Vec::new();
        for _ in 0..count {
            let vseg = VsegId(r.u64()?);
            let entry = SegmentEntry::read(&mut r)?.ok_or_else(|| r.bad("state", 0_u8))?;
            root_segments.push((vseg, entry));
        }
        let free = Self::read_free(&mut r)?;
        let damaged_since = if r.left() == 0 { 0 } else { r.u64()? };
        let damaged_since = (damaged_since > 0).then_some(Txg(damaged_since));
        Ok(Self {
            txg,
            next_vseg,
            next_dataset,
            segments,
            datasets,
            remaps,
            references,
            saved_bytes,
            root_segments,
            free,
            damaged_since,
        })
    }

    fn read_free(r: &mut Reader<'_>) -> Result<Vec<FreeRun>, FormatError> {
        let runs = if r.left() == 0 { 0 } else { r.u32()? };
        if runs as usize > FREE_RUNS_MAX {
            return Err(r.bad("runs", runs));
        }
        let run = |r: &mut Reader<'_>| {
            Ok(FreeRun { vdev: r.u16()?, first: PsegIndex(r.u32()?), count: r.u32()? })
        };
        (0..runs).map(|_| run(r)).collect()
    }
}
