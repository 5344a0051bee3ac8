//! The data path of a volume: reads, writes, flushes, extents.

pub(crate) mod extents;
pub(crate) mod flush;
pub(crate) mod object_lists;
pub(crate) mod object_data;
pub(crate) mod objects;
pub(crate) mod open_objects;
pub(crate) mod read;
pub(crate) mod records;
pub(crate) mod write;
