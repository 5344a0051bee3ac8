//! Transaction groups: write-out of blocks and trees, and commit.

pub(crate) mod apply;
pub(crate) mod apply_nodes;
pub(crate) mod commit;
pub(crate) mod dedupe;
pub(crate) mod partial;
pub(crate) mod sharing;
pub(crate) mod write_out;
