//! Copies by reference: block clones, record copies, volume copies, and one pattern over a range.

pub(crate) mod block_clone;
pub(crate) mod record_copy;
pub(crate) mod volume_copy;
pub(crate) mod write_same;
