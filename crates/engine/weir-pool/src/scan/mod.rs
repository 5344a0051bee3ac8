//! Scrub and resilver of one segment.

pub(crate) mod copies;
pub(crate) mod own_scan;
pub(crate) mod part;
pub(crate) mod raidz_rows;
pub(crate) mod recall;
pub(crate) mod repair;
pub(crate) mod segment_scan;
