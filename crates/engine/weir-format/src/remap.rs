//! The remap table of a cleaned segment: new locations of the blocks that were live.
//!
//! weir-pool's segments and cleaner create and keep the tables.
//!
//! Invariants:
//! - runs are sorted by old offset and do not overlap;
//! - a run begins and ends at block boundaries, so each moved block is inside exactly one run;
//! - a host (a segment that contains moved runs) is of the clean class. A block pointer names the
//!   block's original segment, never a host, so one table lookup gives the block's address.

use weir_base::VsegId;

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::layout::{PACK_BYTES, SEGMENT_BYTES_MAX};
use crate::summary::SEGMENT_BLOCKS_MAX;

const WHAT: &str = "remap table";
const MAGIC: u64 = u64::from_le_bytes(*b"WEIRREMP");
const UNITS_MAX: u64 = SEGMENT_BYTES_MAX / PACK_BYTES as u64;

/// A run of adjacent blocks that moved together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemapRun {
    /// Offset of the run before the move, in units of [`PACK_BYTES`].
    pub old: u32,
    /// Length of the run, in units of [`PACK_BYTES`].
    pub units: u32,
    /// Segment that contains the run now.
    pub host: VsegId,
    /// Offset of the run in the segment `host`, in units of [`PACK_BYTES`].
    pub new: u32,
}

impl RemapRun {
    fn continues(&self, next: &Self) -> bool {
        self.host == next.host
            && self.old + self.units == next.old
            && self.new + self.units == next.new
    }
}

const OLD_BITS: u32 = 19;
const UNITS_BITS: u32 = 20;

/// A remap table; 10 bytes per run in RAM and on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemapTable {
    hosts: Vec<VsegId>,
    /// One number for each run, `old:19 | units:20 | new:19`, with `new` in the lowest bits, so
    /// that numeric order is the order of `old`.
    places: Vec<u64>,
    /// For each run: the index of its segment in `hosts`.
    host_of: Vec<u16>,
}

impl RemapTable {
    /// Bytes per run, in RAM and on disk.
    pub const RUN_BYTES: u64 = 10;

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "magic", "\"WEIRREMP\""),
        field(8, "vseg", "segment it translates"),
        field(4, "hosts", "segments that contain the moved blocks"),
        field(4, "runs", "moved ranges; 0: their new addresses are unreadable"),
        field(0, "hosts", "hosts x u64 vseg"),
        field(
            0,
            "runs",
            "runs x {u64: bits 0-18 new offset, 19-38 length, 39-57 old offset, in 64 B units; u16 \
             index of the host}, ascending",
        ),
    ];

    /// Creates a table from runs in any order. Merges adjacent runs that moved together.
    pub fn new(mut runs: Vec<RemapRun>) -> Self {
        runs.sort_unstable_by_key(|run| run.old);
        let mut merged: Vec<RemapRun> = Vec::with_capacity(runs.len());
        for run in runs {
            assert!(run.units > 0, "{run:?} moves nothing");
            match merged.last_mut() {
                Some(last) if last.continues(&run) => last.units += run.units,
                last => {
                    assert!(last.is_none_or(|l| l.old + l.units <= run.old), "{run:?} overlaps");
                    merged.push(run);
                }
            }
        }
        let mut table = Self::default();
        for run in merged {
            let known = table.hosts.iter().position(|host| *host == run.host);
            let host = known.unwrap_or_else(|| {
                table.hosts.push(run.host);
                table.hosts.len() - 1
            });
            table.host_of.push(u16::try_from(host).expect("fewer hosts than runs fit a u16"));
            table.places.push(
                u64::from(run.old) << (OLD_BITS + UNITS_BITS)
                    | u64::from(run.units) << OLD_BITS
                    | u64::from(run.new),
            );
        }
        table.places.shrink_to_fit();
        table.host_of.shrink_to_fit();
        table
    }

    /// Creates the table of a segment whose remap table was lost: the locations of its blocks are
    /// unknown.
    pub fn unknown() -> Self {
        Self::default()
    }

    /// True if the locations of the blocks were lost. A table with known locations is never empty.
    pub fn is_unknown(&self) -> bool {
        self.places.is_empty()
    }

    /// RAM that the table occupies. Each allocation adds 16 bytes.
    pub fn memory_bytes(&self) -> u64 {
        let heap = size_of_val(&self.hosts[..])
            + size_of_val(&self.places[..])
            + size_of_val(&self.host_of[..]);
        (size_of::<Self>() + heap + 3 * 16) as u64
    }

    /// All runs, ascending by old offset.
    pub fn runs(&self) -> impl ExactSizeIterator<Item = RemapRun> + '_ {
        self.places.iter().zip(&self.host_of).map(|(place, host)| self.run(*place, *host))
    }

    fn run(&self, place: u64, host: u16) -> RemapRun {
        RemapRun {
            old: (place >> (OLD_BITS + UNITS_BITS)) as u32,
            units: (place >> OLD_BITS) as u32 & ((1 << UNITS_BITS) - 1),
            host: *self.hosts.get(usize::from(host)).expect("checked when the table was made"),
            new: place as u32 & ((1 << OLD_BITS) - 1),
        }
    }

    /// Translates the block at offset `old` with `units` units to its segment and offset, in units
    /// of 64 bytes. Returns `None` if no block at this offset moved.
    pub fn translate(&self, old: u32, units: u32) -> Option<(VsegId, u32)> {
        let after = self.places.partition_point(|p| (p >> (OLD_BITS + UNITS_BITS)) as u32 <= old);
        let index = after.checked_sub(1)?;
        let run = self.run(*self.places.get(index)?, *self.host_of.get(index)?);
        let within = old - run.old;
        (within + units <= run.units).then_some((run.host, run.new + within))
    }

    /// Encodes the table of segment `vseg`.
    pub fn encode(&self, vseg: VsegId) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(MAGIC);
        w.u64(vseg.0);
        w.u32(self.hosts.len() as u32);
        w.u32(self.places.len() as u32);
        for host in &self.hosts {
            w.u64(host.0);
        }
        for (place, host) in self.places.iter().zip(&self.host_of) {
            w.u64(*place);
            w.u16(*host);
        }
        w.0
    }

    /// Decodes the table of `vseg`; bytes after the table are padding.
    ///
    /// # Errors
    /// The table belongs to another segment, its runs are out of order, or a field has an invalid
    /// value.
    pub fn decode(bytes: &[u8], vseg: VsegId) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, bytes);
        if r.u64()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let found = r.u64()?;
        if found != vseg.0 {
            return Err(r.bad("vseg", found));
        }
        let (hosts, runs) = (r.u32()?, r.u32()?);
        if hosts > u32::from(u16::MAX) || hosts > runs || runs > SEGMENT_BLOCKS_MAX {
            return Err(r.bad("runs", runs));
        }
        let hosts = (0..hosts).map(|_| r.u64().map(VsegId)).collect::<Result<Vec<_>, _>>()?;
        let mut table = Self { hosts, ..Self::default() };
        let mut end = 0;
        for _ in 0..runs {
            let (place, host) = (r.u64()?, r.u16()?);
            if usize::from(host) >= table.hosts.len() {
                return Err(r.bad("host", host));
            }
            let run = table.run(place, host);
            let last = u64::from(run.units) + u64::from(run.old.max(run.new));
            if run.old < end || run.units == 0 || last > UNITS_MAX {
                return Err(r.bad("run", place));
            }
            end = run.old + run.units;
            table.places.push(place);
            table.host_of.push(host);
        }
        Ok(table)
    }
}
