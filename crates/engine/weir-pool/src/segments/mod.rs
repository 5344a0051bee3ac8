//! Segments: the table of all segments in RAM, their remap and reference tables, and the choice of
//! cleaner victims.

pub(crate) mod areas;
pub(crate) mod entries;
pub(crate) mod lost_part;
pub(crate) mod pinned;
pub(crate) mod reference_counts;
pub(crate) mod reserve;
pub(crate) mod root_copies;
pub(crate) mod sanity;
pub(crate) mod segment_table;
pub(crate) mod tables;
pub(crate) mod third_copies;
pub(crate) mod victims;
