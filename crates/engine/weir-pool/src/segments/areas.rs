//! Segment areas of the vdevs: the number of segments on each vdev, and whether the vdev takes new
//! segments.
//!
//! The free segments are in `entries`.
//!
//! Invariants:
//! - an area has the number of its vdev, even after the vdev was removed;
//! - an area grows and never shrinks; its segments keep their size.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use weir_format::{Label, VdevConfig, VdevRole};

/// The segment area of one vdev.
#[derive(Debug)]
pub(crate) struct SegmentArea {
    segments: AtomicU32,
    /// Data bytes of each segment: whole rows.
    pub(crate) segment_bytes: u64,
    pub(crate) row_bytes: u64,
    /// True if new segments may be opened in the area.
    open: AtomicBool,
}

impl SegmentArea {
    /// Builds the segment area of a vdev from its label.
    pub(crate) fn of(label: &Label, vdev: &VdevConfig) -> Self {
        Self {
            segments: AtomicU32::new(label.segments(vdev) as u32),
            segment_bytes: label.vdev_segment_bytes(vdev),
            row_bytes: label.row_bytes(vdev),
            open: AtomicBool::new(vdev.role == VdevRole::Data),
        }
    }

    /// Number of physical segments.
    pub(crate) fn segments(&self) -> u32 {
        self.segments.load(Ordering::Acquire)
    }

    /// True if new segments may be opened in the area.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Allows or forbids new segments in the area.
    pub(crate) fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Release);
    }

    /// Grows the area to `segments` physical segments; returns the range of the new ones.
    pub(crate) fn grow(&self, segments: u32) -> std::ops::Range<u32> {
        let before = self.segments.fetch_max(segments, Ordering::AcqRel);
        before..segments.max(before)
    }
}

/// The areas of all vdevs, by number.
#[derive(Debug)]
pub(crate) struct Areas(boxcar::Vec<SegmentArea>);

impl Areas {
    /// The areas of the vdevs in a label.
    pub(crate) fn of(label: &Label) -> Self {
        Self(label.vdevs.iter().map(|vdev| SegmentArea::of(label, vdev)).collect())
    }

    pub(crate) fn get(&self, vdev: u16) -> Option<&SegmentArea> {
        self.0.get(usize::from(vdev))
    }

    pub(crate) fn push(&self, area: SegmentArea) {
        self.0.push(area);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &SegmentArea> {
        self.0.iter().map(|(_, area)| area)
    }

    /// Numbers of the vdevs on which new segments may be opened.
    pub(crate) fn open(&self) -> Vec<u16> {
        let open = self.0.iter().filter(|(_, area)| area.is_open());
        open.map(|(index, _)| index as u16).collect()
    }

    fn open_areas(&self) -> impl Iterator<Item = &SegmentArea> {
        self.iter().filter(|area| area.is_open())
    }

    /// Number of physical segments of the vdevs on which new segments may be opened.
    pub(crate) fn total_segments(&self) -> u64 {
        self.open_areas().map(|area| u64::from(area.segments())).sum()
    }

    /// Data bytes of the vdevs on which new segments may be opened.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.open_areas().map(|area| u64::from(area.segments()) * area.segment_bytes).sum()
    }

    /// Size of the smallest segments on the vdevs on which new segments may be opened.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.open_areas().map(|area| area.segment_bytes).min().unwrap_or_default()
    }
}
