//! Write heads: the segments that are open for appending, by class.
//!
//! `write_out` writes to the open segments.
//!
//! Invariant: a segment is open in one write head only.

use weir_base::{Txg, VsegId};
use weir_block::IoBuf;
use weir_format::{SegmentClass, SegmentEntry, SummaryEntry};

use crate::segments::segment_table::Segments;

/// An open segment and its fill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenSegment {
    pub(crate) vseg: VsegId,
    pub(crate) vdev: u16,
    /// Byte offset in the vdev's segment area.
    pub(crate) start: u64,
    /// Bytes that the segment can hold, counted from its start.
    pub(crate) room: u64,
    /// True if the write-out writes each row twice, and a third time if the segment has a third
    /// copy.
    pub(crate) is_twice: bool,
    /// Bytes appended so far, including bytes still in the buffer.
    pub(crate) cursor: u64,
}

impl OpenSegment {
    pub(crate) fn new(
        segments: &Segments,
        (vseg, entry, start): (VsegId, SegmentEntry, u64),
    ) -> Self {
        let (room, is_twice) = (segments.room(&entry), entry.second_at > 0);
        let cursor = u64::from(entry.fill_bytes);
        Self { vseg, vdev: entry.vdev, start, room, is_twice, cursor }
    }
}

/// A write head: one open segment and its buffer. The classes data and clean have one write head
/// for each vdev, so that all disks write concurrently.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) open: Option<OpenSegment>,
    pub(crate) buf: Option<IoBuf>,
    /// Number of filled bytes of `buf`, which are the bytes before the cursor.
    pub(crate) used: usize,
    /// Blocks since the last summary.
    pub(crate) entries: Vec<SummaryEntry>,
    /// True if one of `entries` belongs to an object other than 0.
    pub(crate) has_objects: bool,
    /// Number of blocks that this process wrote to the segment.
    pub(crate) blocks: u32,
}

impl Lane {
    const EMPTY: Self =
        Self { open: None, buf: None, used: 0, entries: Vec::new(), has_objects: false, blocks: 0 };
}

#[derive(Debug)]
pub(crate) struct WriteHead {
    pub(crate) lanes: Vec<Lane>,
    /// For each of `lanes`, the vdev on which this lane opens new segments while the vdev has
    /// space.
    pub(crate) homes: Vec<u16>,
    pub(crate) current: usize,
}

/// The open segments of a pool between write-outs, by class.
#[derive(Debug)]
pub(crate) struct WriteHeads(pub(crate) Vec<WriteHead>);

impl WriteHeads {
    /// Resumes with the segments that were open at the last commit. Bytes beyond the fill of such a
    /// segment were never committed.
    pub(crate) fn resume(segments: &Segments, committed: Txg) -> Self {
        let stream = |class| {
            let open = segments.open_of(class).into_iter();
            let lanes = open.map(|open| {
                let open = OpenSegment::new(segments, open);
                Lane { open: Some(open), ..Lane::EMPTY }
            });
            WriteHead { lanes: lanes.collect(), homes: Vec::new(), current: 0 }
        };
        let mut streams = Self(SegmentClass::ALL.map(stream).into());
        streams.follow_vdevs(segments, committed);
        streams
    }

    /// Open segments of a class, each with its fill.
    pub(crate) fn fills(&self, class: SegmentClass) -> Vec<(VsegId, u64)> {
        let open = self.0[class as usize].lanes.iter().filter_map(|lane| lane.open);
        open.map(|open| (open.vseg, open.cursor)).collect()
    }

    /// Provides one write head for each vdev on which new segments may be opened, and seals the
    /// open segments on other vdevs. The caller runs this function between txgs.
    pub(crate) fn follow_vdevs(&mut self, segments: &Segments, txg: Txg) {
        let seal = |lane: &mut Lane| {
            assert_eq!(lane.used, 0, "nothing is buffered between txgs");
            if let Some(OpenSegment { vseg, cursor, .. }) = lane.open.take() {
                segments.set_fill(vseg, cursor as u32, txg, true);
            }
        };
        let open_vdevs = segments.areas.open();
        for (class, stream) in SegmentClass::ALL.into_iter().zip(&mut self.0) {
            let wide = matches!(class, SegmentClass::Data | SegmentClass::Clean);
            let lanes = if wide { open_vdevs.len() } else { 1 };
            let closed =
                |lane: &&mut Lane| lane.open.is_some_and(|open| !open_vdevs.contains(&open.vdev));
            stream.lanes.iter_mut().filter(closed).for_each(seal);
            stream.lanes.iter_mut().skip(lanes).for_each(seal);
            stream.lanes.resize_with(lanes, || Lane::EMPTY);
            stream.homes.clone_from(&open_vdevs);
        }
    }
}
